"""``tls_server_config``: an OpenSSL context from the terms of Go's crypto/tls."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wslgpud.serve.section import Section
from wslgpud.words import cause, say

KEYS = (
    *("cert", "key", "client_ca", "cert_file", "key_file", "client_auth_type", "client_ca_file"),
    *("client_allowed_sans", "min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites"),
    "curve_preferences",
)
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
# What Go's tls.CipherSuites() returns (https://pkg.go.dev/crypto/tls#CipherSuites), in OpenSSL's words, whose
# own cipher lists take these names only since 3.2. Those of TLS 1.3 cannot be chosen in either.
_TLS13_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
_SUITES = {
    f"TLS_ECDHE_{key}_WITH_{suite}": f"ECDHE-{key}-{openssl}"
    for key in ("ECDSA", "RSA")
    for suite, openssl in (
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}
_CURVES = ("CurveP256", "CurveP384", "CurveP521", "X25519")

_log = logging.getLogger(__name__)


class TlsServer(NamedTuple):
    """A context, the names that clients' certificates must bear, and the files it was made from."""

    context: ssl.SSLContext
    client_allowed_sans: tuple[str, ...]
    files: tuple[Path, ...]


def load(section: Section) -> TlsServer:
    """Build the context that a section asks for.

    Raises:
        ConfigError: a value is not what it may be, or a certificate cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could have us do handshakes without end
    _set_versions(context, section)
    _set_ciphers(context, section)
    files = _load_certificate(context, section) + _set_client_auth(context, section)
    allowed = tuple(section.texts("client_allowed_sans"))
    if allowed and context.verify_mode is not ssl.CERT_REQUIRED:
        raise section.say(
            "client_allowed_sans lets in who brings no certificate; set client_auth_type "
            "RequireAndVerifyClientCert with client_ca_file"
        )
    return TlsServer(context, allowed, files)


def _set_versions(context: ssl.SSLContext, section: Section) -> None:
    lowest = section.known("min_version", section.text("min_version") or "TLS12", _VERSIONS)
    highest = section.known("max_version", section.text("max_version") or "TLS13", _VERSIONS)
    if lowest in ("TLS10", "TLS11"):
        _log.warning("%s: min_version %s: nothing older than TLS12 is spoken here", section.where, lowest)
    if highest in ("TLS10", "TLS11") or _VERSIONS[lowest] > _VERSIONS[highest]:
        raise section.say(
            "nothing can be spoken between min_version {lowest} and max_version {highest}",
            lowest=lowest,
            highest=highest,
        )
    context.minimum_version, context.maximum_version = _VERSIONS[lowest], _VERSIONS[highest]


def _set_ciphers(context: ssl.SSLContext, section: Section) -> None:
    suites = section.texts("cipher_suites", (*_SUITES, *_TLS13_SUITES))
    if chosen := [_SUITES[s] for s in suites if s in _SUITES]:
        try:
            context.set_ciphers(":".join(chosen))
        except ssl.SSLError as error:
            raise section.say("this machine's OpenSSL has none of the cipher_suites") from error
    if not section.flag("prefer_server_cipher_suites", default=True):
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if section.texts("curve_preferences", _CURVES):
        _log.info("%s: curve_preferences are left to OpenSSL", section.where)


def _load_certificate(context: ssl.SSLContext, section: Section) -> tuple[Path, ...]:
    (certificate, cert_file), (key, key_file) = (_needed(section, name) for name in ("cert", "key"))
    with _as_file(certificate) as cert_name, _as_file(key) as key_name:
        try:
            # A callable that fails keeps OpenSSL from asking for a pass phrase on the terminal.
            context.load_cert_chain(cert_name, key_name, password=_no_pass_phrase)
        except (ssl.SSLError, ValueError) as error:
            why = getattr(error, "reason", None) or cause(error)
            raise section.say("certificate and key cannot be used: {why}", why=why) from error
    return tuple(file for file in (cert_file, key_file) if file)


def _needed(section: Section, name: str) -> tuple[str, Path | None]:
    pem, file = section.pem(name)
    if not pem and not file:
        raise section.say("give either {file} or {name}", file=f"{name}_file", name=name)
    return pem, file


def _set_client_auth(context: ssl.SSLContext, section: Section) -> tuple[Path, ...]:
    policy = section.text("client_auth_type")
    if policy in _UNVERIFIED:
        raise section.say(
            "client_auth_type {policy} takes certificates that anybody can make; "
            "use RequireAndVerifyClientCert with client_ca_file",
            policy=policy,
        )
    context.verify_mode = _VERIFY[section.known("client_auth_type", policy, _VERIFY)]
    authorities, file = section.pem("client_ca")
    if not authorities and not file:
        if context.verify_mode is not ssl.CERT_NONE:
            raise section.say("client_auth_type {policy} needs client_ca_file", policy=policy)
        return ()
    if policy in ("", "NoClientCert"):
        raise section.say("client_ca_file without client_auth_type; set RequireAndVerifyClientCert")
    try:
        context.load_verify_locations(cadata=authorities)
    except (ssl.SSLError, ValueError) as error:
        why = str(getattr(error, "reason", None))
        raise section.say("client_ca_file holds no certificates: {why}", why=why) from error
    return (file,) if file else ()


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
