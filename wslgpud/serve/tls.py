"""``tls_server_config``: from the words of Go's crypto/tls to an OpenSSL context."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from wslgpud import documents
from wslgpud.config_key import ConfigError
from wslgpud.words import Said, cause, failure, say

KEYS = (
    "cert",
    "key",
    "client_ca",
    "cert_file",
    "key_file",
    "client_auth_type",
    "client_ca_file",
    "client_allowed_sans",
    "min_version",
    "max_version",
    "cipher_suites",
    "prefer_server_cipher_suites",
    "curve_preferences",
)

#: A bundle of certificates or a key: all public authorities have a fifth of it.
FILE_BYTES = 1 << 20

# RequestClientCert asks for a certificate and does nothing with it; we don't ask.
_VERIFY = {
    "": ssl.CERT_NONE,
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_UNVERIFIED = ("RequireAnyClientCert", "RequireClientCert")
_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1_2,  # RFC 8996: nothing older than 1.2 is spoken
    "TLS11": ssl.TLSVersion.TLSv1_2,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
# What Go's tls.CipherSuites() returns (https://pkg.go.dev/crypto/tls#CipherSuites), in OpenSSL's words. Those
# of TLS 1.3 cannot be chosen in either.
_TLS13_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
_SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
}
_CURVES = ("CurveP256", "CurveP384", "CurveP521", "X25519")

_log = logging.getLogger(__name__)


class TlsServer(NamedTuple):
    """What a ``tls_server_config`` comes to, and the files it was made from."""

    context: ssl.SSLContext
    client_allowed_sans: tuple[str, ...]
    files: tuple[Path, ...]


def load(section: Mapping[str, Any], path: Path) -> TlsServer:
    """Build the context that ``section`` of the file at ``path`` asks for.

    Raises:
        ConfigError: a value is not what it may be, or a certificate cannot be used.
    """
    words = _Words(section, say("{title}: {text}", title=str(path), text="tls_server_config"), path.parent)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could have us do handshakes without end
    _set_versions(context, words)
    _set_ciphers(context, words)
    files = _load_certificate(context, words) + _set_client_auth(context, words)
    allowed = tuple(words.texts("client_allowed_sans"))
    if allowed and context.verify_mode is not ssl.CERT_REQUIRED:
        raise words.error(
            say(
                "client_allowed_sans lets in who brings no certificate; set client_auth_type "
                "RequireAndVerifyClientCert with client_ca_file"
            )
        )
    return TlsServer(context, allowed, files)


class _Words:
    """The section's values by type, and the names of its files relative to the folder it lies in."""

    def __init__(self, section: Mapping[str, Any], where: Said, folder: Path) -> None:
        self.section, self.where, self.folder = section, where, folder

    def error(self, message: Said) -> ConfigError:
        return ConfigError(say("{path}: {why}", path=self.where, why=message))

    def text(self, name: str) -> str:
        value = self.section.get(name) or ""
        if not isinstance(value, str):
            raise self.error(say("{name} must be {form}", name=name, form=say("text")))
        return value

    def texts(self, name: str) -> list[str]:
        value = self.section.get(name) or []
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.error(say("{name} must be {form}", name=name, form=say("a list of strings")))
        return value

    def flag(self, name: str, default: bool) -> bool:  # noqa: FBT001 - a value, not a switch
        value = self.section.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(say("{name} must be {form}", name=name, form=say("true or false")))
        return default if value is None else value

    def choice(self, name: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
        return self.known(name, self.text(name), known)

    def known(self, name: str, value: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
        if value not in known:
            raise self.error(
                say(
                    "{name}: {value} is unknown; it may be {known}",
                    name=name, value=value, known=tuple(k for k in known if k),
                )
            )  # fmt: skip
        return value

    def file(self, name: str) -> Path | None:
        value = self.text(name)
        return self.folder / value if value else None


def _set_versions(context: ssl.SSLContext, words: _Words) -> None:
    lowest = words.known("min_version", words.text("min_version") or "TLS12", _VERSIONS)
    highest = words.known("max_version", words.text("max_version") or "TLS13", _VERSIONS)
    if lowest in ("TLS10", "TLS11"):
        _log.warning("%s: min_version %s: nothing older than TLS12 is spoken here", words.where, lowest)
    if highest in ("TLS10", "TLS11") or _VERSIONS[lowest] > _VERSIONS[highest]:
        raise words.error(
            say(
                "nothing can be spoken between min_version {lowest} and max_version {highest}",
                lowest=lowest, highest=highest,
            )
        )  # fmt: skip
    context.minimum_version, context.maximum_version = _VERSIONS[lowest], _VERSIONS[highest]


def _set_ciphers(context: ssl.SSLContext, words: _Words) -> None:
    suites = words.texts("cipher_suites")
    for suite in suites:
        words.known("cipher_suites", suite, (*_SUITES, *_TLS13_SUITES))
    if chosen := [_SUITES[s] for s in suites if s in _SUITES]:
        try:
            context.set_ciphers(":".join(chosen))
        except ssl.SSLError as error:
            raise words.error(say("this machine's OpenSSL has none of the cipher_suites")) from error
    if not words.flag("prefer_server_cipher_suites", default=True):
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    curves = words.texts("curve_preferences")
    for curve in curves:
        words.known("curve_preferences", curve, _CURVES)
    if curves:
        _log.info("%s: curve_preferences are left to OpenSSL", words.where)


def _load_certificate(context: ssl.SSLContext, words: _Words) -> tuple[Path, ...]:
    files = []
    with contextlib.ExitStack() as stack:
        sources: list[str | Path] = []
        for name in ("cert", "key"):
            inline, file = words.text(name), words.file(f"{name}_file")
            if bool(inline) == bool(file):
                raise words.error(say("give either {file} or {name}", file=f"{name}_file", name=name))
            if file:
                _readable(file, f"{name}_file", words)
                files.append(file)
            sources.append(file or stack.enter_context(_as_file(inline)))
        try:
            # A callable that fails keeps OpenSSL from asking for a pass phrase on the terminal.
            context.load_cert_chain(sources[0], sources[1], password=_no_pass_phrase)
        except (ssl.SSLError, ValueError) as error:
            why = getattr(error, "reason", None) or cause(error)
            raise words.error(say("certificate and key cannot be used: {why}", why=why)) from error
    return tuple(files)


def _set_client_auth(context: ssl.SSLContext, words: _Words) -> tuple[Path, ...]:
    policy = words.text("client_auth_type")
    if policy in _UNVERIFIED:
        raise words.error(
            say(
                "client_auth_type {policy} takes certificates that anybody can make; "
                "use RequireAndVerifyClientCert with client_ca_file",
                policy=policy,
            )
        )
    context.verify_mode = _VERIFY[words.known("client_auth_type", policy, _VERIFY)]
    inline, file = words.text("client_ca"), words.file("client_ca_file")
    if inline and file:
        raise words.error(say("give either {file} or {name}", file="client_ca_file", name="client_ca"))
    if not inline and not file:
        if context.verify_mode is not ssl.CERT_NONE:
            raise words.error(say("client_auth_type {policy} needs client_ca_file", policy=policy))
        return ()
    if policy in ("", "NoClientCert"):
        raise words.error(say("client_ca_file without client_auth_type; set RequireAndVerifyClientCert"))
    data = _readable(file, "client_ca_file", words) if file else inline
    try:
        context.load_verify_locations(cadata=data)
    except (ssl.SSLError, ValueError) as error:
        raise words.error(
            say("client_ca_file holds no certificates: {why}", why=str(getattr(error, "reason", None)))
        ) from error
    return (file,) if file else ()


def _readable(file: Path, name: str, words: _Words) -> str:
    try:
        return documents.contents(file, FILE_BYTES, follow=True).decode("ascii", "replace")
    except OSError as error:
        raise words.error(
            say("{name}: {path}: {why}", name=name, path=str(file), why=failure(error))
        ) from error


def _no_pass_phrase() -> str:
    raise ValueError(say("the key has a pass phrase; give one without"))


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Show ``text`` as a file that never touches a disk: OpenSSL's API for keys takes only names."""
    descriptor = os.memfd_create("wslgpud-pem")
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
