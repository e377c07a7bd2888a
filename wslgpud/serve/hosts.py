"""What a browser may request: under our own host names, from our own pages. Pure but for the machine's name.

A page on the web can point a name of its own at 127.0.0.1 and read what answers there; the browser then
sends that name as Host. Names nobody gave this machine are therefore refused.
https://github.com/transmission/transmission/pull/468 fixed this hole in a similar daemon.

A page on the web, or of another server on this machine's loopback, can make the browser ask us. It cannot
read the answers, but it can make us work, with the user's own password, and learn from sizes and times.
Browsers say who asks: https://w3c.github.io/webappsec-fetch-metadata/; the rule is the resource isolation
policy of https://web.dev/articles/fetch-metadata. They say it only to addresses that they trust (HTTPS and
loopback), so the cost of each request must be bounded all the same. Programs (Prometheus, curl) say nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping

#: another port of the same host is "same-site", and another server
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
    """Return an IPv4 address, or the /64 of an IPv6 one: of those no client has many (RFC 6177)."""
    parsed = _address(address.partition("%")[0])
    if not isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed or address)
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((parsed, 64), strict=False))


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can reach ``address``."""
    parsed = _address(address)
    return parsed is not None and parsed.is_loopback


def is_unspecified(address: str) -> bool:
    """Tell whether listening on ``address`` means listening on all of the machine's."""
    parsed = _address(address)
    return parsed is not None and parsed.is_unspecified


class HostRule:
    """Loopback, the address we listen on, this machine's names, and those the user allows; any port."""

    def __init__(self, address: str, machine: str, allowed: Iterable[str]) -> None:
        """Build the rule for a server on ``address`` of the machine called ``machine``."""
        names = {"localhost", address, machine, machine.partition(".")[0], *allowed}
        self._names = {host_name(n) or n.lower() for n in names if n}
        # Listening everywhere, any of the machine's addresses may be asked for. An address in Host is no
        # danger: rebinding needs a name.
        self._any_address = is_unspecified(address)

    def allows(self, header: str) -> bool:
        """Tell whether a request with this Host header is answered."""
        name = host_name(header)
        if name is None:
            return False
        if name in self._names or is_loopback(name):
            return True
        return self._any_address and _address(name) is not None


def cross_origin(path: str, headers: Mapping[str, str]) -> bool:
    """Tell whether a request is to be refused because a page of another origin makes it.

    Following a link to one of our pages is allowed; the API has no pages. Names of ``headers`` are in lower case.
    """
    site = headers.get("sec-fetch-site")
    if site is None:  # older browsers send Origin with CORS requests, all of them with WebSockets
        origin = headers.get("origin")
        return origin is not None and origin.rpartition("//")[2].lower() != headers.get("host", "").lower()
    follows_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return site not in _OURS and not (follows_link and not path.startswith("/api/"))
