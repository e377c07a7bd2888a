"""Access control: passwords, and requests allowed from a browser. Pure except for the host name."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping

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
