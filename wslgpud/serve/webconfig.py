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
from wslgpud.words import Fact, Message, MessageLike, cause, say
from wslgpud.words.units import nearest

_TLS_KEYS = ("cert_file", "key_file", "client_auth_type", "client_ca_file")
_KEYS = ("tls_server_config", "basic_auth_users")
#: Size limit: a configuration with a thousand users has as much; parsing takes a second at most.
_BYTES_MAX = 1 << 16
#: Size limit of a certificate bundle or key: all public authorities together take a fifth.
_PEM_BYTES_MAX = 1 << 20
_DEPTH_MAX = 8
_BCRYPT = re.compile(r"\$2[abxy]?\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
#: A dollar sign as a shell or docker compose needs it: traefik/traefik#4831, khairul169/garage-webui#15.
_ESCAPED_DOLLAR = re.compile(r"\\+\$|\$\$")
#: A path as Windows writes it; of a share only WSL's own, with the distro's name: the rest is the path in Linux.
_WINDOWS_DRIVE = re.compile(r"([A-Za-z]):[\\/](.*)")
_WINDOWS_SHARE = re.compile(r"[\\/]{2}wsl(?:\$|\.localhost)[\\/][^\\/]+([\\/].*)", re.IGNORECASE)
# RequestClientCert requests a certificate and ignores it; we do not request one.
_VERIFY = {
    "": ssl.CERT_NONE,
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_UNVERIFIED = ("RequireAnyClientCert", "RequireClientCert")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WebConfig:
    tls: ssl.SSLContext | None = None
    users: Mapping[str, str] = field(default_factory=dict)
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
    ):
        if is_gone:
            return what
    return ""


def load(path: Path) -> WebConfig:
    """Read and check a web configuration.

    Raises ConfigError: it, or a file it names, is invalid; says where and what to do.
    """
    values = _section(path, _parse(path), _KEYS)
    users = _users(path, values.get("basic_auth_users"))
    where = say("{title}: {text}", title=str(path), text="tls_server_config")
    if not (tls := _section(where, values.get("tls_server_config"), _TLS_KEYS)):
        return WebConfig(users=users, files=(path,))
    for name, value in tls.items():
        if not isinstance(value, str):
            raise _error(where, "{name} must be {form}", name=name, form=say("text"))
    named = {name: tls[name] for name in _TLS_KEYS if name.endswith("_file") and tls.get(name)}
    for name, value in named.items():
        if there := in_linux(value):
            raise _error(
                where, "{name}: {path} is a path of Windows; write {there}", name=name, path=value, there=there
            )
    files = {name: path.parent / value for name, value in named.items()}
    return WebConfig(_tls(where, files, tls.get("client_auth_type", "")), users, (path, *files.values()))


def in_linux(path: str) -> str:
    """Return where WSL shows what Windows calls ``path``, by default; empty where it is no path of Windows."""
    if drive := _WINDOWS_DRIVE.fullmatch(path):
        return f"/mnt/{drive[1].lower()}/{drive[2]}".replace("\\", "/")
    share = _WINDOWS_SHARE.fullmatch(path)
    return share[1].replace("\\", "/") if share else ""


def _error(where: MessageLike | Path, template: str, /, **facts: Fact) -> ConfigError:
    place = str(where) if isinstance(where, Path) else where
    return ConfigError("{path}: {why}", path=place, why=Message(template, facts))


def _section(where: MessageLike | Path, values: Any, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(values, dict | None):
        raise _error(where, "must be keys and values")
    for key in values or {}:
        if key not in known:
            near = nearest(str(key), known)
            hint = say("did you mean {name}?", name=near) if near else say("known are {names}", names=known)
            raise _error(where, "unknown key {name}; {hint}", name=str(key), hint=hint)
    return values or {}


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
        if there := in_linux(str(path)):
            facts: dict[str, Fact] = {"name": "server.web_config_file", "path": str(path), "there": there}
            raise ConfigError("{name}: {path} is a path of Windows; write {there}", **facts) from error
        raise ConfigError("server.web_config_file: {path}: {reason}", path=str(path), reason=cause(error)) from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # odd scalars: no YAMLError
        # Not the full message: it quotes the line, which may contain a password hash or a key.
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        if "escape" in (problem or ""):  # "C:\Monitoring", "\$2y"
            raise ConfigError(
                "{where}: not valid YAML: {problem}; write this value in single quotes",
                where=where,
                problem=str(problem),
            ) from None
        raise ConfigError("{where}: not valid YAML: {problem}", where=where, problem=problem or "bad text") from None


def _users(path: Path, users: Any) -> dict[str, str]:
    if not isinstance(users, dict | None):
        raise _error(path, "basic_auth_users must be user names and bcrypt hashes")
    for user, hashed in (users or {}).items():
        if not isinstance(user, str) or not user or ":" in user:
            raise _error(path, "basic_auth_users: {user} cannot be a user name", user=repr(user))
        if not isinstance(hashed, str) or not _BCRYPT.fullmatch(hashed):
            raise _bad_hash(path, user, str(hashed))
    return dict(users or {})


def _bad_hash(path: Path, user: str, hashed: str) -> ConfigError:
    """Return why this is no bcrypt hash, without repeating it: it may be a password."""
    if _BCRYPT.fullmatch(_ESCAPED_DOLLAR.sub("$", hashed)):
        return _error(
            path,
            "basic_auth_users: the hash of {user} has escaped or doubled dollar signs, as a shell or docker compose "
            "needs them; write each as a single $ here",
            user=user,
        )
    return _error(
        path,
        "basic_auth_users: the password of {user} is not a bcrypt hash; make one with: htpasswd -nBC 10 '' | "
        "tr -d ':\\n'",
        user=user,
    )


def _tls(where: MessageLike, files: Mapping[str, Path], policy: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # RFC 8996: nothing older than 1.2, by OpenSSL's own default
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could force endless handshakes
    for name in ("cert_file", "key_file"):
        if name not in files:
            raise _error(where, "{name} is missing", name=name)
    for name, file in files.items():
        try:
            safe_files.contents(file, _PEM_BYTES_MAX, follow=True)  # a pipe, or no end
        except OSError as error:
            raise _error(where, "{name}: {path}: {why}", name=name, path=str(file), why=cause(error)) from error
    try:
        # A failing callable keeps OpenSSL from asking for a pass phrase on the terminal.
        context.load_cert_chain(files["cert_file"], files["key_file"], password=_no_pass_phrase)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        why = getattr(error, "reason", None) or cause(error)
        raise _error(where, "certificate and key cannot be used: {why}", why=why) from error
    _set_client_auth(context, where, policy, files.get("client_ca_file"))
    return context


def _set_client_auth(context: ssl.SSLContext, where: MessageLike, policy: str, authorities: Path | None) -> None:
    if policy in _UNVERIFIED:
        raise _error(
            where,
            "client_auth_type {policy} accepts certificates that anybody can create; use RequireAndVerifyClientCert "
            "with client_ca_file",
            policy=policy,
        )
    if policy not in _VERIFY:
        known = tuple(filter(None, _VERIFY))
        raise _error(
            where, "{name}: {value} is unknown; it may be {known}", name="client_auth_type", value=policy, known=known
        )
    context.verify_mode = _VERIFY[policy]
    if authorities is None:
        if context.verify_mode is not ssl.CERT_NONE:
            raise _error(where, "client_auth_type {policy} needs client_ca_file", policy=policy)
        return
    if policy in ("", "NoClientCert"):
        raise _error(where, "client_ca_file without client_auth_type; set RequireAndVerifyClientCert")
    try:
        context.load_verify_locations(authorities)
    except (OSError, ValueError) as error:
        why = str(getattr(error, "reason", None))
        raise _error(where, "client_ca_file holds no certificates: {why}", why=why) from error


def _no_pass_phrase() -> str:
    raise ValueError(say("the key has a pass phrase; give one without"))
