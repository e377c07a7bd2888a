"""``web.config.file`` as other Prometheus exporters have it: TLS, client certificates, passwords, headers.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
"""

from __future__ import annotations

import logging
import math
import re
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wslgpud.config.key import ConfigError
from wslgpud.security import safe_files
from wslgpud.serve import tls
from wslgpud.serve.section import Section, hint
from wslgpud.words import failure, say

_SECTIONS = ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
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
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+")

_Facts = tuple[int, int, int, int]

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
        """Read the file at ``path``, if it names one. Raises ConfigError if it, or one it names, cannot be used."""
        self._path = Path(path) if path else None
        #: what was loaded last
        self.current = WebConfig() if self._path is None else load(self._path)
        for file, facts in zip(self.current.files, self._facts(), strict=True):
            if facts and facts[0] & stat.S_IWOTH:
                # No more than a warning: Windows' drives show all their files like this.
                _log.warning("%s: every user can write it, and so let themselves in; chmod o-w %s", file, file)
        # Of the files before they were last read; None where it was not known yet which they are.
        self._known: list[_Facts | None] | None = None

    def refresh(self) -> WebConfig:
        """Load again what has changed.

        If it became unusable or guards less, say so once and keep what there was: a file that was cut short or
        emptied must not open what was guarded.
        """
        files = self.current.files
        if self._path is None or (facts := self._facts()) == self._known:
            return self.current
        try:
            new = load(self._path)
        except ConfigError as error:
            _log.error("%s; going on with what was read before", error)
        else:
            if gone := weaker(self.current, new):
                remedy = "put it back, or restart the daemon if you mean it"
                _log.error("%s: %s would be gone; %s; going on with what was read before", self._path, gone, remedy)
            else:
                self.current = new
                if self._known is not None:
                    _log.info("%s was read again", self._path)
        self._known = facts if self.current.files == files else None
        return self.current

    def _facts(self) -> list[_Facts | None]:
        """Return mode, time, size and inode of each file, None for a missing one: a change means a new file."""
        found: list[_Facts | None] = []
        for file in self.current.files:
            try:
                facts = file.stat()
            except OSError:
                found.append(None)
            else:
                found.append((facts.st_mode, facts.st_mtime_ns, facts.st_size, facts.st_ino))
        return found


def weaker(old: WebConfig, new: WebConfig) -> str:
    """Return which protection of ``old`` is missing in ``new``; empty if none is.

    Other passwords, certificates and names protect just as well.
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


def load(path: Path) -> WebConfig:
    """Read and check a web configuration.

    Raises:
        ConfigError: it, or a file it names, cannot be used; says where and what to do.
    """
    file = Section(path, _parse(path), _SECTIONS)

    def section(name: str, known: tuple[str, ...]) -> Section:
        return Section(path, file.values.get(name), known, name)

    http = section("http_server_config", ("http2", "headers"))
    if http.values.get("http2"):
        _log.info("%s: http2 is not spoken here and stays off", path)
    encryption = section("tls_server_config", tls.KEYS)
    server = tls.load(encryption) if encryption.values else None
    return WebConfig(
        tls=server.context if server else None,
        client_allowed_sans=server.client_allowed_sans if server else (),
        users=_users(file),
        headers=_headers(http.values.get("headers"), file),
        rate_limit=_rate_limit(section("rate_limit", ("interval", "burst")), file),
        files=(path, *(server.files if server else ())),
    )


def _parse(path: Path) -> Any:
    import yaml  # only where such a file is configured

    try:
        text, depth = safe_files.contents(path, _BYTES_MAX, follow=True).decode(), 0
        # Before it is built: deep nesting ends in RecursionError, aliases make gigabytes of a few lines.
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEPTH_MAX or isinstance(event, yaml.AliasEvent):
                said = say("{path}: nested too deeply, or with an alias (*name); write it out", path=str(path))
                raise ConfigError(said)
        return yaml.safe_load(text)
    except OSError as error:
        said = say("server.web_config_file: {path}: {reason}", path=str(path), reason=failure(error))
        raise ConfigError(said) from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # odd scalars: no YAMLError
        # Not the whole message: it quotes the line, which may hold a password's hash or a key.
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError("{where}: not valid YAML: {problem}", where=where, problem=problem or "bad text") from None


def _users(file: Section) -> dict[str, str]:
    users = file.values.get("basic_auth_users")
    if not isinstance(users, dict | None):
        raise file.say("basic_auth_users must be user names and bcrypt hashes")
    for user, hashed in (users or {}).items():
        if not isinstance(user, str) or not user or ":" in user:
            raise file.say("basic_auth_users: {user} cannot be a user name", user=repr(user))
        if not isinstance(hashed, str) or not _BCRYPT.fullmatch(hashed):
            raise file.say(
                "basic_auth_users: the password of {user} is not a bcrypt hash; make one "
                "with: htpasswd -nBC 10 '' | tr -d ':\\n'",
                user=user,
            )
    return dict(users or {})


def _headers(headers: Any, file: Section) -> dict[str, str]:
    if not isinstance(headers, dict | None):
        raise file.say("http_server_config.headers must be names and values")
    for name, content in (headers or {}).items():
        if name not in _HEADERS:
            raise file.say("header {name} cannot be set; {hint}", name=name, hint=hint(name, _HEADERS))
        if not isinstance(content, str) or not content.isascii() or (content and not content.isprintable()):
            raise file.say("header {name} must be one line of text", name=name)
        if content and (names := _HEADERS[name]) and content not in names:
            raise file.say(
                "header {name} must be one of {names}, not {content}", name=name, names=names, content=content
            )
    return {name: content for name, content in (headers or {}).items() if content}


def _rate_limit(section: Section, file: Section) -> tuple[float, int] | None:
    interval, burst = section.values.get("interval", 0), section.values.get("burst", 0)
    seconds = parse_duration(interval)
    if seconds is None:
        raise file.say("rate_limit.interval must be a duration such as 100ms or 1s, not {interval}", interval=interval)
    if seconds and (type(burst) is not int or burst < 1):
        raise file.say("rate_limit.burst must be a whole number of at least 1, not {burst}", burst=burst)
    return (seconds, burst) if seconds else None


def parse_duration(text: Any) -> float | None:
    """Return the seconds in a duration as Go writes it (``1m30s``); None if it is not one."""
    if text in (0, "0"):
        return 0.0
    if not isinstance(text, str) or not _DURATION.fullmatch(text):
        return None
    seconds = sum(float(number) * _DURATION_UNITS[unit] for number, unit in _DURATION_PART.findall(text))
    return seconds if math.isfinite(seconds) else None
