"""``web.config.file`` as other Prometheus exporters have it: TLS, client certificates, passwords, headers.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
"""

from __future__ import annotations

import difflib
import logging
import math
import re
import ssl
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wslgpud import documents
from wslgpud.config_key import ConfigError
from wslgpud.serve import tls
from wslgpud.words import Message, failure, say

_KEYS: dict[str, tuple[str, ...]] = {
    "": ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit"),
    "tls_server_config": tls.KEYS,
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
#: A configuration with all certificates in it has a third of this; parsing it takes a second at most.
_BYTES_MAX = 1 << 16
_DEPTH_MAX = 8
_BCRYPT = re.compile(r"\$2[abxy]?\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
_DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WebConfig:
    """A web configuration, checked and loaded."""

    tls: ssl.SSLContext | None = None
    client_allowed_sans: tuple[str, ...] = ()
    users: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    rate_limit: tuple[float, int] | None = None
    files: tuple[Path, ...] = ()

    @property
    def guarded(self) -> bool:
        """Tell whether strangers are kept out and what is said is kept secret."""
        return self.tls is not None and (bool(self.users) or self.tls.verify_mode is ssl.CERT_REQUIRED)


class WebConfigFile:
    """The file as it is now: what changes in it, or in the certificates it names, holds at once."""

    def __init__(self, path: str) -> None:
        """Read the file at ``path``; empty means that there is none.

        Raises:
            ConfigError: the file, or one it names, cannot be used.
        """
        self._path = Path(path) if path else None
        self._current = WebConfig() if self._path is None else load(self._path)
        for file in filter(_open_to_all, self._current.files):
            # No more than a warning: Windows' drives show all their files like this.
            _log.warning("%s: every user can write it, and so let themselves in; chmod o-w %s", file, file)
        # Of the files before they were last read; None where it was not known yet which they are.
        self._stamps: list[_Stamp | None] | None = None

    @property
    def current(self) -> WebConfig:
        """What was loaded last."""
        return self._current

    def refresh(self) -> WebConfig:
        """Load again what has changed.

        If it became unusable or guards less, say so once and keep what there was.
        """
        files = self._current.files
        if self._path is None or (stamps := [_stamp(f) for f in files]) == self._stamps:
            return self._current
        try:
            self._current = _at_least(self._current, load(self._path), self._path)
        except ConfigError as error:
            _log.error("%s; going on with what was read before", error)
        else:
            if self._stamps is not None:
                _log.info("%s was read again", self._path)
        self._stamps = stamps if self._current.files == files else None
        return self._current


def weaker(old: WebConfig, new: WebConfig) -> str:
    """Say what of the guard in ``old`` is gone in ``new``; empty when nothing is.

    Other passwords, other certificates and other names are no less of a guard.
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


def _at_least(old: WebConfig, new: WebConfig, path: Path) -> WebConfig:
    """Return ``new``; a file that was cut short or emptied must not open what was guarded.

    Raises:
        ConfigError: it guards less than ``old``.
    """
    if gone := weaker(old, new):
        raise ConfigError(
            say(
                "{path}: {gone} would be gone; put it back, or restart the daemon if you mean it",
                path=str(path),
                gone=gone,
            )
        )
    return new


_Stamp = tuple[int, int, int]


def _stamp(file: Path) -> _Stamp | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _open_to_all(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & stat.S_IWOTH)
    except OSError:  # it has gone since; the next look says so
        return False


def load(path: Path) -> WebConfig:
    """Read and check a web configuration.

    Raises:
        ConfigError: it, or a file it names, cannot be used; says where and what to do.
    """
    document = _mapping(_parse(path), "", path)
    for section in document:
        if section in _KEYS:
            _mapping(document[section], section, path)
    http = document.get("http_server_config") or {}
    if http.get("http2"):
        _log.info("%s: http2 is not spoken here and stays off", path)
    server = tls.load(document["tls_server_config"], path) if document.get("tls_server_config") else None
    return WebConfig(
        tls=server.context if server else None,
        client_allowed_sans=server.client_allowed_sans if server else (),
        users=_users(document.get("basic_auth_users"), path),
        headers=_headers(http.get("headers"), path),
        rate_limit=_rate_limit(document.get("rate_limit") or {}, path),
        files=(path, *(server.files if server else ())),
    )


def _parse(path: Path) -> Any:
    import yaml  # noqa: PLC0415 - only where such a file is configured

    try:
        text, depth = documents.contents(path, _BYTES_MAX, follow=True).decode(), 0
        # Before it is built: deep nesting ends in RecursionError, aliases make gigabytes of a few lines.
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEPTH_MAX or isinstance(event, yaml.AliasEvent):
                raise ConfigError(
                    say("{path}: nested too deeply, or with an alias (*name); write it out", path=str(path))
                )
        return yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(
            say("server.web_config_file: {path}: {reason}", path=str(path), reason=failure(error))
        ) from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # odd scalars: no YAMLError
        # Not the whole message: it quotes the line, which may hold a password's hash or a key.
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(
            say(
                "{where}: not valid YAML: {problem}",
                where=str(where),
                problem=getattr(error, "problem", None) or "bad text",
            )
        ) from None


def _mapping(value: Any, section: str, path: Path) -> Mapping[str, Any]:
    where = f"{path}: {section}" if section else str(path)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(say("{where}: must be keys and values", where=str(where)))
    for name in value:
        if name not in _KEYS[section]:
            close = difflib.get_close_matches(str(name), _KEYS[section], n=1)
            hint = _hint(close, _KEYS[section])
            raise ConfigError(
                say("{where}: unknown key {name}; {hint}", where=str(where), name=name, hint=hint)
            )
    return value


def _hint(close: list[str], known: Iterable[str]) -> Message:
    if close:
        return say("did you mean {name}?", name=close[0])
    return say("known are {names}", names=tuple(known))


def _users(value: Any, path: Path) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(
            say("{path}: basic_auth_users must be user names and bcrypt hashes", path=str(path))
        )
    for user, hashed in value.items():
        if not isinstance(user, str) or not user or ":" in user:
            raise ConfigError(
                say("{path}: basic_auth_users: {user} cannot be a user name", path=str(path), user=repr(user))
            )
        if not isinstance(hashed, str) or not _BCRYPT.fullmatch(hashed):
            raise ConfigError(
                say(
                    "{path}: basic_auth_users: the password of {user} is not a bcrypt hash; make one "
                    "with: htpasswd -nBC 10 '' | tr -d ':\\n'",
                    path=str(path),
                    user=user,
                )
            )
    return dict(value)


def _headers(value: Any, path: Path) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(say("{path}: http_server_config.headers must be names and values", path=str(path)))
    for name, content in value.items():
        if name not in _HEADERS:
            close = difflib.get_close_matches(str(name), _HEADERS, n=1)
            hint = _hint(close, _HEADERS)
            raise ConfigError(
                say("{path}: header {name} cannot be set; {hint}", path=str(path), name=name, hint=hint)
            )
        if not isinstance(content, str) or not content.isascii() or (content and not content.isprintable()):
            raise ConfigError(
                say("{path}: header {name} must be one line of text", path=str(path), name=name)
            )
        if content and _HEADERS[name] and content not in _HEADERS[name]:
            raise ConfigError(
                say(
                    "{path}: header {name} must be one of {names}, not {content}",
                    path=str(path),
                    name=name,
                    names=tuple(_HEADERS[name]),
                    content=content,
                )
            )
    return {name: content for name, content in value.items() if content}


def _rate_limit(value: Mapping[str, Any], path: Path) -> tuple[float, int] | None:
    interval, burst = value.get("interval", 0), value.get("burst", 0)
    seconds = parse_duration(interval)
    if seconds is None:
        raise ConfigError(
            say(
                "{path}: rate_limit.interval must be a duration such as 100ms or 1s, not {interval}",
                path=str(path),
                interval=interval,
            )
        )
    if seconds == 0:
        return None
    if type(burst) is not int or burst < 1:
        raise ConfigError(
            say(
                "{path}: rate_limit.burst must be a whole number of at least 1, not {burst}",
                path=str(path),
                burst=burst,
            )
        )
    return seconds, burst


def parse_duration(text: Any) -> float | None:
    """Return the seconds in one of Go's durations (``1m30s``); None when it is none."""
    if text in (0, "0"):
        return 0.0
    if not isinstance(text, str):
        return None
    parts: Sequence[tuple[str, str]] = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    seconds = sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)
    return seconds if math.isfinite(seconds) else None
