"""``web.config.file`` as in other Prometheus exporters: TLS, client certificates, and passwords.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md. Versions, ciphers, headers and
rates are not set here: OpenSSL's and ours hold, and a proxy in front has all of them. A file that names them is
refused, as it may rely on them.
"""

from __future__ import annotations

import logging
import re
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wslgpud.config import ConfigError
from wslgpud.security import safe_files
from wslgpud.words import Fact, Message, cause, say
from wslgpud.words.units import nearest

_TLS_KEYS = ("cert_file", "key_file", "client_auth_type", "client_ca_file")
_KEYS = ("tls_server_config", "basic_auth_users")
#: Size limit: a configuration with a thousand users has as much; parsing takes a second at most.
_MAX_BYTES = 1 << 16
#: Size limit of a certificate bundle or key: all public authorities together take a fifth.
_MAX_PEM_BYTES = 1 << 20
_BCRYPT = re.compile(r"\$2[abxy]?\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
# RequestClientCert requests a certificate and ignores it; we do not request one. Go's other policies accept
# certificates that anybody can create.
_VERIFY = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WebConfig:
    tls: ssl.SSLContext | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()

    @property
    def certified(self) -> bool:
        """Return whether clients need a certificate."""
        return self.tls is not None and self.tls.verify_mode is ssl.CERT_REQUIRED

    @property
    def guarded(self) -> bool:
        """Return whether access is restricted and traffic encrypted."""
        return self.tls is not None and (bool(self.users) or self.certified)


class WebConfigFile:
    """The current file: changes in it, or in the certificates it names, take effect at once."""

    def __init__(self, path: str) -> None:
        """Read the file at ``path``, if any. Raises ConfigError if it, or a file it names, is invalid."""
        self._path = Path(path) if path else None
        #: the last loaded configuration
        self.current = WebConfig() if self._path is None else load(self._path)
        for file in self.current.files:
            if file.stat().st_mode & stat.S_IWOTH:  # only a warning: files on Windows drives always look like this
                _log.warning("%s: every user can write it, and so let themselves in; chmod o-w %s", file, file)
        # State of the files before they were last read; None before they are known.
        self._known: list[tuple[int, int]] | None = None

    def refresh(self) -> WebConfig:
        """Reload changed files.

        If the new configuration is invalid or protects less, log it once and keep the old one: a truncated or empty
        file must not remove protection.
        """
        files = self.current.files
        if self._path is None or (stamps := [_stamp(file) for file in files]) == self._known:
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
        self._known = stamps if self.current.files == files else None
        return self.current


def _stamp(file: Path) -> tuple[int, int]:
    """Return what changes with a file, its rights included; zeros if missing."""
    try:
        status = file.stat()
    except OSError:
        return 0, 0
    return status.st_ctime_ns, status.st_ino


def weaker(old: WebConfig, new: WebConfig) -> str:
    """Return the protection of ``old`` that is missing in ``new``; empty if none is.

    Other passwords, certificates and names protect equally well.
    """
    if old.tls and not new.tls:
        return "TLS"
    if old.users and not new.users:
        return "passwords (basic_auth_users)"
    return "the demand for client certificates (client_auth_type)" if old.certified and not new.certified else ""


def load(path: Path) -> WebConfig:
    """Read and check a web configuration.

    Raises ConfigError: it, or a file it names, is invalid; says where and what to do.
    """
    values = _section(str(path), _parse(path), _KEYS)
    users = _texts(f"{path}: basic_auth_users", values.get("basic_auth_users"))
    for user, hashed in users.items():
        if not _BCRYPT.fullmatch(hashed):
            # Without repeating it: it may be a password.
            raise _error(
                str(path),
                "basic_auth_users: the password of {user} is not a bcrypt hash; write one in single quotes, made with: "
                "htpasswd -nBC 10 '' | tr -d ':\\n'",
                user=user,
            )
    where = f"{path}: tls_server_config"
    if not (tls := _texts(where, _section(where, values.get("tls_server_config"), _TLS_KEYS))):
        return WebConfig(users=users, files=(path,))
    files = {name: path.parent / tls[name] for name in _TLS_KEYS if name.endswith("_file") and tls.get(name)}
    return WebConfig(_tls(where, files, tls.get("client_auth_type", "")), users, (path, *files.values()))


def _error(where: str, template: str, /, **facts: Fact) -> ConfigError:
    return ConfigError("{path}: {why}", path=where, why=Message(template, facts))


def _parse(path: Path) -> Any:
    import yaml  # needed only with such a file

    try:
        return yaml.safe_load(safe_files.contents(path, _MAX_BYTES, follow=True).decode())
    except OSError as error:
        raise ConfigError("server.web_config_file: {path}: {reason}", path=str(path), reason=cause(error)) from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # Odd scalars raise no YAMLError. Not the full message: it quotes the line, which may contain a password hash.
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError("{where}: not valid YAML: {problem}", where=where, problem=problem or "bad text") from None


def _section(where: str, values: Any, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(values, dict | None):
        raise _error(where, "must be keys and values")
    for key in values or {}:
        if key not in known:
            near = nearest(str(key), known)
            hint = say("did you mean {name}?", name=near) if near else say("known are {names}", names=known)
            raise _error(where, "unknown key {name}; {hint}", name=str(key), hint=hint)
    return values or {}


def _texts(where: str, values: Any) -> dict[str, str]:
    texts = {} if values is None else values
    if not isinstance(texts, dict) or not all(isinstance(text, str) for pair in texts.items() for text in pair):
        raise _error(where, "must be names and texts")
    return texts


def _tls(where: str, files: Mapping[str, Path], policy: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # RFC 8996: nothing older than 1.2, by OpenSSL's own default
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could force endless handshakes
    for name in ("cert_file", "key_file"):
        if name not in files:
            raise _error(where, "{name} is missing", name=name)
    for name, file in files.items():
        try:
            safe_files.contents(file, _MAX_PEM_BYTES, follow=True)  # a pipe, or no end
        except OSError as error:
            raise _error(where, "{name}: {path}: {why}", name=name, path=str(file), why=cause(error)) from error
    if policy and policy not in _VERIFY:
        known = tuple(_VERIFY)
        raise _error(where, "client_auth_type: {value} is unknown; it may be {known}", value=policy, known=known)
    authorities = files.get("client_ca_file")
    if (authorities is None) is not (policy in ("", "NoClientCert")):
        raise _error(where, "client_auth_type and client_ca_file need each other")
    try:
        # A failing callable keeps OpenSSL from asking for a pass phrase on the terminal.
        context.load_cert_chain(files["cert_file"], files["key_file"], password=_no_pass_phrase)
        if authorities is not None:
            context.verify_mode = _VERIFY[policy]
            context.load_verify_locations(authorities)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        why = getattr(error, "reason", None) or cause(error)
        raise _error(where, "certificates and key cannot be used: {why}", why=why) from error
    return context


def _no_pass_phrase() -> str:
    raise ValueError(say("the key has a pass phrase; give one without"))
