"""``web.config.file`` as in other Prometheus exporters: TLS, client certificates, passwords, headers.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import ssl
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from wslgpud.config import ConfigError
from wslgpud.security import safe_files
from wslgpud.words import Fact, Message, MessageLike, cause, say
from wslgpud.words.units import nearest

_SECTIONS = {
    "": ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit"),
    "tls_server_config": (
        *("cert", "key", "client_ca", "cert_file", "key_file", "client_auth_type", "client_ca_file"),
        *("client_allowed_sans", "min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites"),
        "curve_preferences",
    ),
    "http_server_config": ("http2", "headers"),
    "rate_limit": ("interval", "burst"),
}
_HEADERS: dict[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": (),
    "Strict-Transport-Security": (),
}
#: Size limit: a configuration that includes all certificates has a third; parsing takes a second at most.
_BYTES_MAX = 1 << 16
#: Size limit of a certificate bundle or key: all public authorities together take a fifth.
_PEM_BYTES_MAX = 1 << 20
_DEPTH_MAX = 8
_BCRYPT = re.compile(r"\$2[abxy]?\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
_DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")

# RequestClientCert requests a certificate and ignores it; we do not request one.
_VERIFY = {
    "": ssl.CERT_NONE,
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_UNVERIFIED = ("RequireAnyClientCert", "RequireClientCert")
# RFC 8996: nothing older than 1.2
_VERSIONS = dict.fromkeys(("TLS10", "TLS11", "TLS12"), ssl.TLSVersion.TLSv1_2) | {"TLS13": ssl.TLSVersion.TLSv1_3}
# What Go's tls.CipherSuites() returns (https://pkg.go.dev/crypto/tls#CipherSuites), in OpenSSL's names, as its cipher
# lists accept the standard ones only since 3.2. Those of TLS 1.3 cannot be selected in either.
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
_FORMS: dict[type, Message] = {str: say("text"), bool: say("true or false"), list: say("a list of strings")}

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WebConfig:
    tls: ssl.SSLContext | None = None
    client_allowed_sans: tuple[str, ...] = ()
    users: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    rate_limit: tuple[float, int] | None = None
    files: tuple[Path, ...] = ()

    @property
    def guarded(self) -> bool:
        """Return whether access is restricted and traffic encrypted."""
        return self.tls is not None and (bool(self.users) or self.tls.verify_mode is ssl.CERT_REQUIRED)


class WebConfigFile:
    """The current file: changes in it, or in the certificates it names, take effect at once."""

    def __init__(self, path: str) -> None:
        """Read the file at ``path``, if any. Raises ConfigError if it, or a file it names, is invalid."""
        self._path = Path(path) if path else None
        #: the last loaded configuration
        self.current = WebConfig() if self._path is None else load(self._path)
        for file in self.current.files:
            if (facts := _facts(file)) and facts[0] & stat.S_IWOTH:
                # Only a warning: files on Windows drives always look like this.
                _log.warning("%s: every user can write it, and so let themselves in; chmod o-w %s", file, file)
        # State of the files before they were last read; None before they are known.
        self._known: list[tuple[int, ...] | None] | None = None

    def refresh(self) -> WebConfig:
        """Reload changed files.

        If the new configuration is invalid or protects less, log it once and keep the old one: a truncated or empty
        file must not remove protection.
        """
        files = self.current.files
        if self._path is None or (facts := [_facts(file) for file in files]) == self._known:
            return self.current
        try:
            new = load(self._path)
        except ConfigError as error:
            _log.error("%s; keeping the configuration read before", error)
        else:
            if gone := weaker(self.current, new):
                remedy = "put it back, or restart the daemon if you mean it"
                _log.error("%s: %s would be gone; %s; keeping the configuration read before", self._path, gone, remedy)
            else:
                self.current = new
                if self._known is not None:
                    _log.info("%s was read again", self._path)
        self._known = facts if self.current.files == files else None
        return self.current


def _facts(file: Path) -> tuple[int, ...] | None:
    """Return mode, time, size and inode of a file, None if missing: a difference means that it has changed."""
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_mode, facts.st_mtime_ns, facts.st_size, facts.st_ino


def weaker(old: WebConfig, new: WebConfig) -> str:
    """Return the protection of ``old`` that is missing in ``new``; empty if none is.

    Other passwords, certificates and names protect equally well.
    """
    before, after = (web.tls.verify_mode if web.tls else ssl.CERT_NONE for web in (old, new))
    for is_gone, what in (
        (old.tls and not new.tls, "TLS"),
        (old.users and not new.users, "passwords (basic_auth_users)"),
        (after < before, "the demand for client certificates (client_auth_type)"),
        (old.client_allowed_sans and not new.client_allowed_sans, "client_allowed_sans"),
    ):
        if is_gone:
            return what
    return ""


class _Section:
    """Keys and values of a section; files are relative to the folder of ``path``."""

    def __init__(self, path: Path, value: Any, name: str = "") -> None:
        """Check the keys. Raises ConfigError for an unknown one."""
        self.path = path
        self.where: MessageLike = say("{title}: {text}", title=str(path), text=name) if name else str(path)
        self.values = {} if value is None else value
        if not isinstance(self.values, dict):
            raise self.error("must be keys and values")
        for key in self.values:
            if key not in (known := _SECTIONS[name]):
                raise self.error("unknown key {name}; {hint}", name=key, hint=_hint(key, known))

    def error(self, template: str, /, **facts: Fact) -> ConfigError:
        """Return the error for a mistake in this section, with its location."""
        return ConfigError("{path}: {why}", path=self.where, why=Message(template, facts))

    def get(self, name: str, default: _T, known: Collection[str] = ()) -> _T:
        """Return a value, or a list of texts; it must have the type of the default, which is used if it is missing.

        Raises ConfigError: it has another type, or it, or an item of the list, is not in ``known``, if given.
        """
        value, kind = self.values.get(name), type(default)
        if value in (None, ""):
            return default
        ones = value if isinstance(value, list) else [value]
        if not isinstance(value, kind) or (kind is list and not all(isinstance(one, str) for one in ones)):
            raise self.error("{name} must be {form}", name=name, form=_FORMS[kind])
        for one in ones:
            if known and one not in known:
                choices = tuple(filter(None, known))
                raise self.error("{name}: {value} is unknown; it may be {known}", name=name, value=one, known=choices)
        return value

    def pem(self, name: str) -> tuple[str, tuple[Path, ...]]:
        """Return the value of ``name``, or the content of the file ``name_file`` and its path; empty without either."""
        inline, file_key = self.get(name, ""), f"{name}_file"
        if not (named := self.get(file_key, "")):
            return inline, ()
        if inline:
            raise self.error("give either {file} or {name}", file=file_key, name=name)
        file = self.path.parent / named
        try:
            return safe_files.contents(file, _PEM_BYTES_MAX, follow=True).decode("ascii", "replace"), (file,)
        except OSError as error:
            why = cause(error)
            raise self.error("{name}: {path}: {why}", name=file_key, path=str(file), why=why) from error


def _hint(name: object, known: Collection[str]) -> Message:
    """Return a hint at the known name that was probably meant."""
    if near := nearest(str(name), known):
        return say("did you mean {name}?", name=near)
    return say("known are {names}", names=tuple(known))


def load(path: Path) -> WebConfig:
    """Read and check a web configuration.

    Raises ConfigError: it, or a file it names, is invalid; says where and what to do.
    """
    file = _Section(path, _parse(path))
    http, encryption, rate = (
        _Section(path, file.values.get(name), name)
        for name in ("http_server_config", "tls_server_config", "rate_limit")
    )
    if http.values.get("http2"):
        _log.info("%s: http2 is not supported and stays off", path)
    context, allowed, files = _tls(encryption) if encryption.values else (None, (), ())
    return WebConfig(
        tls=context,
        client_allowed_sans=allowed,
        users=_users(file),
        headers=_headers(http.values.get("headers"), file),
        rate_limit=_rate_limit(rate, file),
        files=(path, *files),
    )


def _parse(path: Path) -> Any:
    import yaml  # needed only with such a file

    try:
        text, depth = safe_files.contents(path, _BYTES_MAX, follow=True).decode(), 0
        # Before construction: deep nesting ends in RecursionError, aliases turn a few lines into gigabytes.
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEPTH_MAX or isinstance(event, yaml.AliasEvent):
                raise ConfigError("{path}: nested too deeply, or with an alias (*name); write it out", path=str(path))
        return yaml.safe_load(text)
    except OSError as error:
        raise ConfigError("server.web_config_file: {path}: {reason}", path=str(path), reason=cause(error)) from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # odd scalars: no YAMLError
        # Not the full message: it quotes the line, which may contain a password hash or a key.
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError("{where}: not valid YAML: {problem}", where=where, problem=problem or "bad text") from None


def _users(file: _Section) -> dict[str, str]:
    users = file.values.get("basic_auth_users")
    if not isinstance(users, dict | None):
        raise file.error("basic_auth_users must be user names and bcrypt hashes")
    for user, hashed in (users or {}).items():
        if not isinstance(user, str) or not user or ":" in user:
            raise file.error("basic_auth_users: {user} cannot be a user name", user=repr(user))
        if not isinstance(hashed, str) or not _BCRYPT.fullmatch(hashed):
            raise file.error(
                "basic_auth_users: the password of {user} is not a bcrypt hash; make one "
                "with: htpasswd -nBC 10 '' | tr -d ':\\n'",
                user=user,
            )
    return dict(users or {})


def _headers(headers: Any, file: _Section) -> dict[str, str]:
    if not isinstance(headers, dict | None):
        raise file.error("http_server_config.headers must be names and values")
    for name, content in (headers or {}).items():
        if name not in _HEADERS:
            raise file.error("header {name} cannot be set; {hint}", name=name, hint=_hint(name, _HEADERS))
        if not isinstance(content, str) or not content.isascii() or (content and not content.isprintable()):
            raise file.error("header {name} must be one line of text", name=name)
        if content and (names := _HEADERS[name]) and content not in names:
            raise file.error(
                "header {name} must be one of {names}, not {content}", name=name, names=names, content=content
            )
    return {name: content for name, content in (headers or {}).items() if content}


def _rate_limit(section: _Section, file: _Section) -> tuple[float, int] | None:
    interval, burst = section.values.get("interval", 0), section.values.get("burst", 0)
    if (seconds := parse_duration(interval)) is None:
        raise file.error(
            "rate_limit.interval must be a duration such as 100ms or 1s, not {interval}", interval=interval
        )
    if seconds and (type(burst) is not int or burst < 1):
        raise file.error("rate_limit.burst must be a whole number of at least 1, not {burst}", burst=burst)
    return (seconds, burst) if seconds else None


def parse_duration(text: Any) -> float | None:
    """Return the seconds of a duration in Go's notation (``1m30s``); None if it is invalid."""
    if text in (0, "0"):
        return 0.0
    parts = _DURATION_PART.findall(str(text))
    if not isinstance(text, str) or not parts or "".join(map("".join, parts)) != text:
        return None
    seconds = sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)
    return seconds if math.isfinite(seconds) else None


def _tls(section: _Section) -> tuple[ssl.SSLContext, tuple[str, ...], tuple[Path, ...]]:
    """Return the context for a section, the names required in client certificates, and its files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could force endless handshakes
    _set_versions(context, section)
    _set_ciphers(context, section)
    files = _load_certificate(context, section) + _set_client_auth(context, section)
    allowed = tuple(section.get("client_allowed_sans", list[str]()))
    if allowed and context.verify_mode is not ssl.CERT_REQUIRED:
        raise section.error(
            "client_allowed_sans lets in who brings no certificate; set client_auth_type "
            "RequireAndVerifyClientCert with client_ca_file"
        )
    return context, allowed, files


def _set_versions(context: ssl.SSLContext, section: _Section) -> None:
    lowest = section.get("min_version", "TLS12", _VERSIONS)
    highest = section.get("max_version", "TLS13", _VERSIONS)
    if lowest in ("TLS10", "TLS11"):
        _log.warning("%s: min_version %s: nothing older than TLS12 is supported", section.where, lowest)
    if highest in ("TLS10", "TLS11") or _VERSIONS[lowest] > _VERSIONS[highest]:
        raise section.error(
            "there is no TLS version from min_version {lowest} to max_version {highest}", lowest=lowest, highest=highest
        )
    context.minimum_version, context.maximum_version = _VERSIONS[lowest], _VERSIONS[highest]


def _set_ciphers(context: ssl.SSLContext, section: _Section) -> None:
    suites = section.get("cipher_suites", list[str](), (*_SUITES, *_TLS13_SUITES))
    if chosen := [_SUITES[s] for s in suites if s in _SUITES]:
        try:
            context.set_ciphers(":".join(chosen))
        except ssl.SSLError as error:
            raise section.error("this machine's OpenSSL has none of the cipher_suites") from error
    if not section.get("prefer_server_cipher_suites", True):
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if section.get("curve_preferences", list[str](), _CURVES):
        _log.info("%s: curve_preferences are left to OpenSSL", section.where)


def _load_certificate(context: ssl.SSLContext, section: _Section) -> tuple[Path, ...]:
    (certificate, cert_files), (key, key_files) = section.pem("cert"), section.pem("key")
    for name, given in (("cert", certificate or cert_files), ("key", key or key_files)):
        if not given:
            raise section.error("give either {file} or {name}", file=f"{name}_file", name=name)
    with _as_file(certificate) as cert_name, _as_file(key) as key_name:
        try:
            # A failing callable keeps OpenSSL from asking for a pass phrase on the terminal.
            context.load_cert_chain(cert_name, key_name, password=_no_pass_phrase)
        except (ssl.SSLError, ValueError) as error:
            why = getattr(error, "reason", None) or cause(error)
            raise section.error("certificate and key cannot be used: {why}", why=why) from error
    return cert_files + key_files


def _set_client_auth(context: ssl.SSLContext, section: _Section) -> tuple[Path, ...]:
    policy = section.get("client_auth_type", "")
    if policy in _UNVERIFIED:
        raise section.error(
            "client_auth_type {policy} accepts certificates that anybody can create; use RequireAndVerifyClientCert "
            "with client_ca_file",
            policy=policy,
        )
    context.verify_mode = _VERIFY[section.get("client_auth_type", "", _VERIFY)]
    authorities, files = section.pem("client_ca")
    if not authorities and not files:
        if context.verify_mode is not ssl.CERT_NONE:
            raise section.error("client_auth_type {policy} needs client_ca_file", policy=policy)
        return ()
    if policy in ("", "NoClientCert"):
        raise section.error("client_ca_file without client_auth_type; set RequireAndVerifyClientCert")
    try:
        context.load_verify_locations(cadata=authorities)
    except (ssl.SSLError, ValueError) as error:
        why = str(getattr(error, "reason", None))
        raise section.error("client_ca_file holds no certificates: {why}", why=why) from error
    return files


def _no_pass_phrase() -> str:
    raise ValueError(say("the key has a pass phrase; give one without"))


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Provide ``text`` as an in-memory file: OpenSSL's API for keys accepts only paths."""
    descriptor = os.memfd_create("wslgpud-pem")
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
