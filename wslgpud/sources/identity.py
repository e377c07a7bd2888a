"""Identity of a process according to the kernel, which the process itself cannot fake."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from wslgpud.host import Host
from wslgpud.sources import parse_uint
from wslgpud.words.units import printable

#: the service's account and group, see wslgpud/service/accounts.py
ACCOUNT = "wslgpud"


class Identity(NamedTuple):
    """One process; ``pid`` and ``start_ticks`` identify it uniquely.

    ``alive`` is False for a zombie. ``uids`` are the real, effective, saved and file system's user, several for a
    setuid program only; ``groups`` the supplementary ones. The process chooses its ``name`` (comm), of at most 15
    characters.
    """

    pid: int
    start_ticks: int
    parent: int
    alive: bool
    uids: frozenset[int]
    groups: frozenset[int]
    name: str


def identity(host: Host, pid: int) -> Identity | None:
    """Return the identity of a process; None where it is gone or hidden from us.

    Formats: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html and proc_pid_status.5.html; psutil has neither
    the supplementary groups nor the start in ticks.
    """
    # The name may contain anything: it ends at the last bracket.
    head, _, rest = host.read_optional(f"/proc/{pid}/stat").rpartition(")")
    status = host.read_optional(f"/proc/{pid}/status")
    words, facts = rest.split(), dict(line.partition(":")[::2] for line in status.splitlines())
    parent, start = (parse_uint(words[column]) if len(words) > 19 else None for column in (1, 19))
    uids, groups = ({parse_uint(word) for word in facts.get(name, "").split()} for name in ("Uid", "Groups"))
    if parent is None or start is None or not uids or None in uids | groups:
        return None
    known, members = (frozenset(n for n in found if n is not None) for found in (uids, groups))
    name = printable(head.partition("(")[2])
    return Identity(pid, start, parent, words[0] not in ("Z", "X"), known, members, name)


@dataclass(eq=False, slots=True)
class Peer:
    """The process that has connected to our Unix socket; ``gone`` once its connection has ended."""

    pid: int
    uid: int
    gone: bool = False


@dataclass(frozen=True)
class Trust:
    """Users whose stress runs may suppress warnings about a card: these, and members of the group."""

    users: frozenset[int]
    group: int | None = None

    def covers(self, who: Identity) -> bool:
        """Return whether a process belongs to one of them; a setuid program is trusted for no one."""
        return len(who.uids) == 1 and (who.uids <= self.users or self.group in who.groups)


def trust() -> Trust:
    """Return the trusted users: root, our own user, and for the service the members of its group.

    The group counts only where both have the service's name: a person's primary group may include everybody ("users").
    """
    import grp  # once, at the start
    import pwd

    users = frozenset({0, os.geteuid()})
    try:
        serves = pwd.getpwuid(os.geteuid()).pw_name == grp.getgrgid(os.getegid()).gr_name == ACCOUNT
    except KeyError:  # a user without a name
        serves = False
    return Trust(users, os.getegid() if serves else None)
