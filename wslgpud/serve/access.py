"""Who may ask: requests allowed from a browser, passwords, TLS and client certificates.

The latter are configured by a ``web.config.file`` as in other Prometheus exporters:
https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md. Versions, ciphers, headers and
rates are not set here: OpenSSL's and ours hold, and a proxy in front has all of them. A file that names them is
refused, as it may rely on them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import ssl
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wslgpud.config import ConfigError
from wslgpud.security import safe_files
from wslgpud.words import Fact, Message, cause, say
from wslgpud.words.units import nearest

_log = logging.getLogger(__name__)

#: "same-site" includes other ports of this host, which are other servers
_OURS = ("same-origin", "none")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+)(?::[0-9]*)?")


def host_name(header: str) -> str | None:
    """Return the name or address in a Host header, without port; None when it is not a Host header."""
    match = _HOST.fullmatch(header.strip())
    return match[1].strip("[]").lower().rstrip(".") if match else None


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def network_of(address: str) -> str:
    """Return an IPv4 address, or the /64 of an IPv6 one, of which a client has only a few (RFC 6177)."""
    parsed = _address(address.partition("%")[0])
    if not isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed or address)
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((parsed, 64), strict=False))


def is_loopback(address: str) -> bool:
    parsed = _address(address)
    return parsed is not None and parsed.is_loopback


def is_unspecified(address: str) -> bool:
    """Return whether listening on ``address`` means listening on all addresses of the machine."""
    parsed = _address(address)
    return parsed is not None and parsed.is_unspecified


class HostRule:
    """The accepted Host headers: loopback, our address, this machine's names, and configured ones; any port.

    A web page can point its own domain at 127.0.0.1 and read the answers (DNS rebinding); the browser then sends that
    domain as Host. So names that do not belong to this machine are rejected.
    https://github.com/transmission/transmission/pull/468 fixed this hole in a similar daemon.
    """

    def __init__(self, address: str, machine: str, allowed: Iterable[str]) -> None:
        """Build the rule for a server on ``address`` of the machine called ``machine``."""
        names = {"localhost", address, machine, machine.partition(".")[0], *allowed}
        self._names = {host_name(n) or n.lower() for n in names if n}
        # When listening everywhere, any address of the machine is valid. An address in Host is harmless: rebinding
        # needs a name.
        self._any_address = is_unspecified(address)

    def allows(self, header: str) -> bool:
        name = host_name(header)
        if name is None:
            return False
        if name in self._names or is_loopback(name):
            return True
        return self._any_address and _address(name) is not None


def cross_origin(path: str, headers: Mapping[str, str]) -> bool:
    """Return whether to refuse a request because a page of another origin makes it.

    Such a page cannot read the answers, but it can cause work, with the user's own password, and learn from sizes and
    times. Browsers declare the origin: https://w3c.github.io/webappsec-fetch-metadata/; the rule is the resource
    isolation policy of https://web.dev/articles/fetch-metadata. They do so only for trustworthy addresses (HTTPS and
    loopback), so the cost of each request must be bounded anyway. Programs (Prometheus, curl) declare nothing.

    Following a link to one of our pages is allowed; the API has no pages. Names of ``headers`` are in lower case.
    """
    site = headers.get("sec-fetch-site")
    if site is None:  # older browsers send Origin with CORS requests, all of them with WebSockets
        origin = headers.get("origin")
        return origin is not None and origin.rpartition("//")[2].lower() != headers.get("host", "").lower()
    follows_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return site not in _OURS and not (follows_link and not path.startswith("/api/"))


CHALLENGE = {"WWW-Authenticate": 'Basic realm="wslgpud", charset="UTF-8"'}

#: bcrypt uses no more bytes; Go's implementation truncates here too, Python's rejects longer passwords.
_BCRYPT_BYTES = 72
_MAX_REMEMBERED = 1000


def parse_basic(header: str) -> tuple[str, bytes] | None:
    """Return user and password of an Authorization header; None if it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode(), password[:_BCRYPT_BYTES]) if colon else None
    except ValueError:
        return None


class Passwords:
    """Checks passwords: once by bcrypt, afterwards by a keyed digest of the correct one."""

    def __init__(self, run: Callable[[Callable[[], bool], str], Awaitable[bool]]) -> None:
        """Use ``run`` for checks, each a tenth of a second on one core; its second argument is the client."""
        self._run = run
        self._key = secrets.token_bytes(32)
        self._right: set[bytes] = set()

    async def accept(self, users: Mapping[str, str], header: str, client: str = "") -> bool:
        """Return whether ``header`` (sent by ``client``) names one of ``users`` with its password.

        An unknown user takes as long as a wrong password, or user names could be guessed by timing. The digest covers
        the hash, so a changed password takes effect at once.
        """
        given = parse_basic(header)
        if given is None:
            return False
        user, password = given
        known = user in users
        # the same bcrypt cost
        wanted = users[user] if known else max(users.values(), key=lambda hashed: int(hashed.split("$")[2]))
        material = b"\0".join((user.encode(), wanted.encode(), password))
        digest = hmac.digest(self._key, material, hashlib.sha256)
        if digest in self._right:
            return True

        def check() -> bool:
            # Scrapers start at the same time, so it may have been found right while this one waited.
            is_right = digest in self._right or (_matches(password, wanted) and known)
            if is_right:
                if len(self._right) >= _MAX_REMEMBERED:
                    self._right.clear()
                self._right.add(digest)
            return is_right

        return await self._run(check, client)


def _matches(password: bytes, hashed: str) -> bool:
    import bcrypt  # needed only with passwords

    try:
        return bcrypt.checkpw(password, hashed.encode())
    except ValueError:  # bcrypt takes no NUL in a password, so no user has one
        return False


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
        self._problem = ""

    def refresh(self) -> WebConfig:
        """Reload changed files.

        If the new configuration is invalid or protects less, log it once and keep the old one: a truncated or empty
        file must not remove protection. It is tried again each time, as a file that it names may have come meanwhile.
        """
        files = self.current.files
        if self._path is None or (stamps := [_stamp(file) for file in files]) == self._known:
            return self.current
        problem = ""
        try:
            new = load(self._path)
            if gone := weaker(self.current, new):
                problem = f"{self._path}: {gone} would be gone; put it back, or restart the daemon if you mean it"
        except ConfigError as error:
            problem = str(error)
        if not problem:
            if self._problem or self._known is not None:
                _log.info("%s was read again", self._path)
            self.current, self._known = new, stamps if new.files == files else None
        elif problem != self._problem:
            _log.error("%s; keeping the configuration read before", problem)
        self._problem = problem
        return self.current


def _stamp(file: Path) -> tuple[int, int]:
    """Return a value that changes with a file or its rights; zeros if missing."""
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
