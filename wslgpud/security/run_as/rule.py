"""The account as which root may start a program that a user may have made. Pure; ``evidence.py`` gathers the facts.

The rule is about everything that decides what will run: each folder and link on the way to the interpreter,
the environment it belongs to, its packages. Whoever can alter one of these decides what runs, so what runs
must have no rights beyond theirs:

* one ordinary user besides root: it runs as that user, who could have started the same thing anyway;
* root alone, or several users: it runs as an account that owns nothing and may do nothing;
* something that yet others can write is refused: nobody could say whose program it is.

Root is never the answer, so a mistake in gathering the facts costs somebody a wrong account at worst.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from wslgpud.words import MessageError, MessageLike, say

#: of a user who has no group of their own, by convention of every distribution (nogroup, nobody)
NOBODY = 65534


class Refused(MessageError):
    """Root does not start this program; the message names the path and the remedy."""


@dataclass(frozen=True, slots=True)
class Component:
    """A file, folder or link that decides what runs, as lstat(2) tells.

    ``acl``: it has an access control list, whose entries stand behind the group's bits of ``mode``.
    ``searched``: names are looked up in this folder that need not exist, so that a new one changes what runs.
    """

    path: str
    uid: int
    gid: int
    mode: int
    acl: bool = False
    searched: bool = False


@dataclass(frozen=True, slots=True)
class Account:
    """Whom to become; ``groups`` are the supplementary ones. ValueError: it is root, or in root's group."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"

    def __post_init__(self) -> None:
        if 0 in (self.uid, self.gid, *self.groups):
            raise ValueError(f"{self.name} has the rights of root")


def owner(chain: Collection[Component], members: Mapping[int, Collection[int]]) -> int | None:
    """Return the uid of the one ordinary user who owns what is not root's; None: the account without rights.

    ``chain`` is everything that decides what runs, ``members`` who is in each group that may write to it, if known.

    Raises:
        Refused: somebody else may write to a part of it.
    """
    owners = {0, *(component.uid for component in chain)}
    for component in chain:
        if writers := _others(component, owners, members):
            said = say(
                "{path} can be written by {writers}: only root and its one owner may (chmod {bits}),"
                " or anybody could change what runs",
                path=component.path,
                writers=writers,
                bits="o-w" if component.mode & stat.S_IWOTH else "g-w",
            )
            raise Refused(said)
    ordinary = owners - {0}
    return ordinary.pop() if len(ordinary) == 1 else None


def _others(component: Component, owners: Collection[int], members: Mapping[int, Collection[int]]) -> MessageLike:
    """Say who may alter a component besides its owners; nothing when nobody may."""
    if stat.S_ISLNK(component.mode):
        return ""  # a link's mode says nothing, and it cannot be altered, only replaced in its folder
    if component.mode & stat.S_ISVTX and stat.S_ISDIR(component.mode) and not component.searched:
        return ""  # as /tmp: others may add names, but not touch the next one on our way, which is checked
    if component.mode & stat.S_IWOTH:
        return say("everybody")
    if component.mode & stat.S_IWGRP:
        if component.acl:
            return say("whoever its access control list names")
        known = members.get(component.gid)
        if known is None or not set(known) <= set(owners):
            return say("its group ({gid})", gid=component.gid)
    return ""


def unreachable(chain: Iterable[Component], account: Account) -> str:
    """Return the first path that an account may not read, by the modes; nothing when there is none."""
    groups = {account.gid, *account.groups}
    for component in chain:
        if stat.S_ISLNK(component.mode) or component.acl:
            continue
        shift = 6 if component.uid == account.uid else 3 if component.gid in groups else 0
        # A folder on the way is entered, one that is searched is also listed, a file is read.
        need = 0o5 if component.searched else 0o1 if stat.S_ISDIR(component.mode) else 0o4
        if component.mode >> shift & need != need:
            return component.path
    return ""
