"""Provenance of a Python: everything that decides which code it runs, and who can alter it.

That is each folder and link on the path to the interpreter, its environment, and its packages. Whoever can alter one of
these decides what runs, so a program started by root must have no rights beyond theirs:

* one ordinary user besides root: it runs as that user, who could have started it anyway;
* root alone, or several users: it runs as an account without any rights;
* if still others can write to a part, it is refused: its owner is unknown.

It never runs as root, so a mistake in gathering the facts costs a wrong account at worst.

Checking first and starting later is safe here. The first component of the path that a user can alter lies in a folder
that only root can alter: it is found, with that user's uid, whatever they do meanwhile. So a user can add components to
the chain, which costs rights, but cannot remove their own uid from it; and anything they replace after the check runs
with their own rights at most.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from wslgpud.security import safe_files
from wslgpud.words import MessageError, MessageLike, cause, say

#: gid without rights, by convention of every distribution (nogroup, nobody)
NOBODY = 65534


class UntrustedProgram(MessageError):
    """Root does not start this program; the message names the path and the remedy."""


@dataclass(frozen=True, slots=True)
class Component:
    """A file, folder or link that decides what runs, by lstat(2).

    ``acl``: it has an access control list, for which the group bits of ``mode`` are the mask. ``searched``: a lookup
    folder, where a new file changes what runs.
    """

    path: str
    uid: int
    gid: int
    mode: int
    acl: bool = False
    searched: bool = False


@dataclass(frozen=True, slots=True)
class Account:
    """The account to switch to; ``groups`` are the supplementary ones. ValueError: it is root, or in root's group."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"

    def __post_init__(self) -> None:
        if 0 in (self.uid, self.gid, *self.groups):
            raise ValueError(f"{self.name} has the rights of root")


def owner(chain: Collection[Component], members: Mapping[int, Collection[int]]) -> int | None:
    """Return the uid of the single ordinary owner besides root; None: the account without rights.

    ``chain`` is everything that decides what runs, ``members`` the members of each group that may write to it, if
    known.

    Raises UntrustedProgram: other users may write to a part of it.
    """
    owners = {0, *(component.uid for component in chain)}
    for component in chain:
        if writers := _others(component, owners, members):
            raise UntrustedProgram(
                "{path} can be written by {writers}: only root and its one owner may (chmod {bits}),"
                " or anybody could change what runs",
                path=component.path,
                writers=writers,
                bits="o-w" if component.mode & stat.S_IWOTH else "g-w",
            )
    ordinary = owners - {0}
    return ordinary.pop() if len(ordinary) == 1 else None


def _others(component: Component, owners: Collection[int], members: Mapping[int, Collection[int]]) -> MessageLike:
    """Return who may alter a component besides its owners; empty when no one may."""
    if stat.S_ISLNK(component.mode):
        return ""  # a link's mode has no meaning: it cannot be altered, only replaced in its folder
    if component.mode & stat.S_ISVTX and stat.S_ISDIR(component.mode) and not component.searched:
        return ""  # as /tmp: others may add names, but not touch the next one on the path, which is checked
    if component.mode & stat.S_IWOTH:
        return say("everybody")
    if component.mode & stat.S_IWGRP:
        if component.acl:
            return say("users in its access control list")
        known = members.get(component.gid)
        if known is None or not set(known) <= set(owners):
            return say("its group ({gid})", gid=component.gid)
    return ""


def unreachable(chain: Iterable[Component], account: Account) -> str:
    """Return the first path that an account may not read, by the modes; empty when there is none."""
    groups = {account.gid, *account.groups}
    for component in chain:
        if stat.S_ISLNK(component.mode) or component.acl:
            continue
        shift = 6 if component.uid == account.uid else 3 if component.gid in groups else 0
        # A folder on the path must be enterable, a searched one also listable, a file readable.
        need = 0o5 if component.searched else 0o1 if stat.S_ISDIR(component.mode) else 0o4
        if component.mode >> shift & need != need:
            return component.path
    return ""


#: the kernel's limit (MAXSYMLINKS)
_MAX_LINKS = 40
#: depth of nested environments: venv records the original base, other tools go up to two levels
_MAX_BASES = 4
#: limits on the names of a folder, and on the bytes of pyvenv.cfg, which has five lines
_MAX_NAMES, _MAX_BYTES = 10_000, 1 << 16
_LIBRARIES = ("lib", "lib64", "local/lib", "local/lib64")
_PACKAGES = ("site-packages", "dist-packages")


class PythonChain(NamedTuple):
    """Everything that decides which code a Python runs, and whether torch is among its packages."""

    chain: tuple[Component, ...]
    torch: bool


def survey(python: Path) -> PythonChain:
    """Return everything that decides what runs when ``python`` is started.

    Raises:
        OSError: it does not exist, or may not be inspected.
        UntrustedProgram: its links form a loop, or it lies on a user's own file system.
    """
    surveyor = _Surveyor()
    names = surveyor.names(python.absolute())
    surveyor.environments([name.parent.parent for name in names], [name.parent for name in names])
    own = surveyor.torches & {names[0].parent.parent}  # an environment does not see its base's torch
    return PythonChain(tuple(surveyor.seen.values()), bool(own))


def way(path: Path) -> tuple[Component, ...]:
    """Return each folder, link and file on the path to a file, starting at the root.

    Raises OSError, UntrustedProgram: see ``survey``.
    """
    surveyor = _Surveyor()
    surveyor.walk(path.absolute())
    return tuple(surveyor.seen.values())


class _Surveyor:
    """Collects components, each once."""

    def __init__(self) -> None:
        self.seen: dict[str, Component] = {}
        #: roots of the environments that have torch
        self.torches: set[Path] = set()
        self._users_mounts = users_mounts()

    def walk(self, path: Path, *, searched: bool = False) -> Path:
        """Collect each component of a path, including link targets; return the resolved path.

        Raises OSError, UntrustedProgram: see ``survey``.
        """
        here, rest, links = Path("/"), list(path.parts), 0
        while rest:
            name = rest.pop(0)
            here = here.parent if name == ".." else here / name
            if (user := self._users_mounts.get(str(here))) is not None:
                # Its owner controls the metadata it returns, and it may never answer.
                raise UntrustedProgram(
                    "{path} is a file system of user {user}: use a Python elsewhere", path=str(here), user=user
                )
            if stat.S_ISLNK(self._note(here).mode):
                links += 1
                if links > _MAX_LINKS:
                    raise UntrustedProgram("{path}: its links form a loop", path=str(path))
                rest = [*here.readlink().parts, *rest]
                here = here.parent
        if searched:
            self.seen[str(here)] = replace(self.seen[str(here)], searched=True)
        return here

    def _note(self, path: Path) -> Component:
        key = str(path)
        if key not in self.seen:
            facts = path.lstat()
            acl = False
            if facts.st_mode & stat.S_IWGRP and not stat.S_ISLNK(facts.st_mode):
                with contextlib.suppress(OSError):  # a file system without ACLs
                    acl = "system.posix_acl_access" in os.listxattr(path, follow_symlinks=False)
            self.seen[key] = Component(key, facts.st_uid, facts.st_gid, facts.st_mode, acl)
        return self.seen[key]

    def names(self, python: Path) -> list[Path]:
        """Return the paths by which an interpreter looks for its environment.

        First its own, then the target of its link, then the resolved path.
        """
        self.walk(python)
        names = [python]
        for _ in range(_MAX_LINKS):
            folder = self.walk(names[-1].parent)
            names.append(folder / names[-1].name)
            if not stat.S_ISLNK(self._note(names[-1]).mode):
                break
            names.append(Path(os.path.normpath(folder / names[-1].readlink())))
        return list(dict.fromkeys(names))

    def environments(self, roots: list[Path], programs: list[Path]) -> None:
        """Collect environments, their packages, and the interpreters that they were made from."""
        for _ in range(_MAX_BASES):
            folders = [folder for folder in dict.fromkeys([*programs, *roots]) if self._searched(folder) is not None]
            homes = [home for folder in folders if (home := self._home(folder / "pyvenv.cfg"))]
            for root in dict.fromkeys(roots):
                for library in _LIBRARIES:
                    self._library(root, root / library)
            if not homes:
                return
            programs, roots = homes, [home.parent for home in homes]
        raise UntrustedProgram("{path}: too many environments are made from one another", path=str(programs[0]))

    def _searched(self, folder: Path) -> Path | None:
        """Collect a folder in which names are looked up; None where it does not exist."""
        try:
            return self.walk(folder, searched=True)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _home(self, file: Path) -> Path | None:
        """Collect pyvenv.cfg; return the folder of the interpreter that the environment is made from."""
        try:
            self.walk(file)
            with os.fdopen(safe_files.open_plain(file, follow=True), "rb") as opened:
                text = opened.read(_MAX_BYTES).decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            raise
        except OSError as error:
            raise UntrustedProgram("{path}: {why}", path=str(file), why=cause(error)) from error
        home = re.search(r"^\s*home\s*=\s*(/.*?)\s*$", text, re.MULTILINE | re.IGNORECASE)
        return Path(home[1]) if home else None

    def _library(self, root: Path, folder: Path) -> None:
        if (real := self._searched(folder)) is None:
            return
        for version in listed(real):
            if not version.startswith("python3"):
                continue
            self._searched(folder / version)
            for packages in _PACKAGES:
                if self._searched(folder / version / packages) is None:
                    continue
                torch = folder / version / packages / "torch"
                if self._searched(torch) is not None:
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        self.walk(torch / "version.py")
                        self.torches.add(root)


def listed(folder: Path) -> list[str]:
    """Return the names in a folder in order, up to a limit; none where it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in itertools.islice(entries, _MAX_NAMES))
    except OSError:
        return []


def users_mounts() -> dict[str, int]:
    """Return the file systems that ordinary users have mounted (FUSE), and by whom."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        for line in text.splitlines():
            # 36 35 0:50 / /home/me/far rw,nosuid - fuse.sshfs me@far: rw,user_id=1000,group_id=1000
            place, _, kind = line.partition(" - ")
            match = re.search(r"\buser_id=(\d+)", kind)
            if kind.startswith("fuse") and match and int(match[1]):
                name = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), place.split(" ")[4])
                found[name] = int(match[1])
    return found
