"""Which Host headers are answered: the guard against DNS rebinding. Pure but for the machine's name.

A page on the web can point a name of its own at 127.0.0.1 and read what answers there; the browser then
sends that name as Host. Names nobody gave this machine are therefore refused.
https://github.com/transmission/transmission/pull/468 is such a hole in a daemon like this one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

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


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can reach ``address``."""
    parsed = _address(address)
    return parsed is not None and parsed.is_loopback


class HostRule:
    """Loopback, the address we listen on, this machine's names, and those the user allows; any port."""

    def __init__(self, address: str, machine: str, allowed: Iterable[str]) -> None:
        """Build the rule for a server on ``address`` of the machine called ``machine``."""
        names = {"localhost", address, machine, machine.partition(".")[0], *allowed}
        self._names = {host_name(n) or n.lower() for n in names if n}
        listening = _address(address)
        # Listening everywhere, any of the machine's addresses may be asked for. An address in Host is no
        # danger: rebinding needs a name.
        self._any_address = listening is not None and listening.is_unspecified

    def allows(self, header: str) -> bool:
        """Tell whether a request with this Host header is answered."""
        name = host_name(header)
        if name is None:
            return False
        if name in self._names or is_loopback(name):
            return True
        return self._any_address and _address(name) is not None
