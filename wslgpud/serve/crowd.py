"""Who has to leave when all places are taken, so that somebody new is always heard. Pure.

A thousand slow clients would otherwise hold every place for as long as a head may take, and a probe would
wait behind them. A client with manners sends its head at once and is answered within a few turns of the event
loop, long before it could become the oldest of those who hold a place.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable
from typing import Protocol, TypeVar


class Guest(Protocol):
    """A connection, as far as it matters here."""

    @property
    def network(self) -> str:
        """Where it comes from, see ``network_of``."""

    @property
    def since(self) -> float:
        """When it last got an answer, or came; monotonic seconds."""

    @property
    def waits_for_client(self) -> bool:
        """Whether it is the client's turn: to agree on TLS, to ask, or to take what was answered."""


G = TypeVar("G", bound=Guest)


def network_of(address: str) -> str:
    """Return an IPv4 address, or the /64 of an IPv6 one: of those no client has many (RFC 6177)."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((parsed, 64), strict=False))


def who_leaves(guests: Iterable[G]) -> G | None:
    """Return whose place a new client gets: of those from where most come, who has kept us waiting longest.

    None while all of them wait for us.
    """
    waited_for = [guest for guest in guests if guest.waits_for_client]
    crowd = Counter(guest.network for guest in waited_for)
    return min(waited_for, key=lambda guest: (-crowd[guest.network], guest.since), default=None)
