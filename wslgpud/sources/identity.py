"""Who a process is, by the kernel's word: nothing of it can be claimed by the process itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources.text import whole
from wslgpud.units import printable

#: the service's account and group, as deploy/install makes them
ACCOUNT = "wslgpud"


class Identity(NamedTuple):
    """One process.

    Attributes:
        start_ticks: with ``pid``, names this process and no later one.
        parent: pid of its parent.
        alive: False for one that has ended and not been waited for.
        uids: real, effective, saved and file system's user; one only, unless it is a setuid program.
        groups: its supplementary groups.
        name: as the kernel knows it, at most 15 characters; a process may choose it.
    """

    pid: int
    start_ticks: int
    parent: int
    alive: bool
    uids: frozenset[int]
    groups: frozenset[int]
    name: str


def identity(host: Host, pid: int) -> Identity | None:
    """Return who a process is; None where it is gone or hidden from us.

    Formats: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html and proc_pid_status.5.html
    """
    try:
        # The name may hold anything: it ends at the last bracket.
        head, _, rest = host.read(f"/proc/{pid}/stat").rpartition(")")
        status = host.read(f"/proc/{pid}/status")
    except (NoData, SourceError):
        return None
    words, facts = rest.split(), dict(line.partition(":")[::2] for line in status.splitlines())
    parent, start = (
        whole(words[1] if len(words) > 19 else None),
        whole(words[19] if len(words) > 19 else None),
    )
    uids = frozenset(map(whole, facts.get("Uid", "").split()))
    groups = frozenset(map(whole, facts.get("Groups", "").split()))
    if parent is None or start is None or not uids or None in uids | groups:
        return None
    known, members = (frozenset(n for n in found if n is not None) for found in (uids, groups))
    name = printable(head.partition("(")[2])
    return Identity(pid, start, parent, words[0] not in ("Z", "X"), known, members, name)


@dataclass(frozen=True)
class Trust:
    """Whose stress runs may keep a daemon from warning of a card.

    Attributes:
        users: their uids.
        group: and who is in this group; None: nobody else.
    """

    users: frozenset[int]
    group: int | None = None

    def covers(self, who: Identity) -> bool:
        """Tell whether a process belongs to one of them; a setuid program belongs to nobody for certain."""
        return len(who.uids) == 1 and (who.uids <= self.users or self.group in who.groups)


def trust() -> Trust:
    """Return whom this process trusts: root, its own user, and for the service the members of its group.

    The group only where both bear the service's name: the first group of a person's account may be
    everybody's ("users").
    """
    import grp  # noqa: PLC0415 - once, at the start
    import pwd  # noqa: PLC0415

    users = frozenset({0, os.geteuid()})
    try:
        serves = pwd.getpwuid(os.geteuid()).pw_name == grp.getgrgid(os.getegid()).gr_name == ACCOUNT
    except KeyError:  # a user without a name
        serves = False
    return Trust(users, os.getegid() if serves else None)
