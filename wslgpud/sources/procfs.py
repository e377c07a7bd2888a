"""Processes by the kernel's files in /proc/PID, and the users that are trusted.

The process itself cannot fake ``stat`` and ``status``, but chooses its name. For ``cmdline``, ``maps`` and
``smaps_rollup`` the kernel takes the lock of the process's own memory map, which the process can hold for ever: an mmap
of a file on a FUSE of its own suffices (https://docs.kernel.org/filesystems/proc.html,
https://docs.kernel.org/mm/process_addrs.html). So nothing that decides a warning is read from them, and each is read in
a thread that is left behind if it does not return in time. ``stat``, ``status``, ``statm``, ``comm``, ``cgroup``,
``exe`` and ``fd`` answer without that lock.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass
from typing import Literal, NamedTuple

from wslgpud.host import Host, NoData, SourceError
from wslgpud.security.redaction import named
from wslgpud.sources import parse_uint

log = logging.getLogger(__name__)

#: the service's account and group, see wslgpud/service/install.py
ACCOUNT = "wslgpud"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ProcessStat(NamedTuple):
    """One process as /proc/<pid>/stat has it; ``pid`` and ``start_ticks`` identify it uniquely.

    The process chooses its ``name`` (comm), of at most 15 characters, in which nothing is that a terminal interprets.
    A virtual size of 0 is a kernel thread or a zombie.
    """

    pid: int
    name: str
    state: str
    parent: int
    start_ticks: int
    virtual_bytes: int
    rss_bytes: int
    cpu_seconds: float | None = None
    faults_total: int | None = None
    major_faults_total: int | None = None

    @property
    def alive(self) -> bool:
        """Return whether it is more than an entry in the table of processes."""
        return self.state not in ("Z", "X")

    @property
    def stopped(self) -> bool:
        """Return whether a signal or a debugger has stopped it."""
        return self.state in ("T", "t")


def parse_stat(text: str) -> ProcessStat | None:
    """Return the process in the text of /proc/<pid>/stat; None if malformed.

    Format: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    # The name may contain anything, even ") R 1 (": it ends at the last bracket.
    head, _, rest = text.rpartition(")")
    pid, _, name = head.partition(" (")
    words = rest.split()
    if len(words) < 22:
        return None
    number, parent, start, virtual, pages = map(parse_uint, (pid, words[1], *words[19:22]))
    if number is None or parent is None or start is None or virtual is None or pages is None:
        return None
    faults, major, user, system = map(parse_uint, (words[7], words[9], *words[11:13]))
    cpu = None if user is None or system is None else (user + system) / _TICKS_PER_SECOND
    return ProcessStat(number, named(name), words[0], parent, start, virtual, pages * _PAGE_BYTES, cpu, faults, major)


def process_stat(host: Host, pid: int) -> ProcessStat | None:
    """Return a process; None where it has ended or is hidden from us (hidepid)."""
    return parse_stat(host.read_optional(f"/proc/{pid}/stat"))


def status_field(status: str, name: str) -> list[str]:
    """Return the words of a field in the text of /proc/<pid>/status; none where it is missing.

    Format: https://man7.org/linux/man-pages/man5/proc_pid_status.5.html; a regular expression is ten times slower.
    """
    _, separator, rest = f"\n{status}".partition(f"\n{name}:")
    return rest.partition("\n")[0].split() if separator else []


def status_number(status: str, name: str) -> int | None:
    """Return the first number of a field in the text of /proc/<pid>/status, sizes in KiB; None where it is missing."""
    return parse_uint(next(iter(status_field(status, name)), None))


class Identity(NamedTuple):
    """One process; ``pid`` and ``start_ticks`` identify it uniquely.

    ``alive`` is False for a zombie. ``uids`` are the real, effective, saved and file system's user, several for a
    setuid program only; ``groups`` the supplementary ones.
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

    psutil has neither the supplementary groups nor the start in ticks.
    """
    row = process_stat(host, pid)
    status = host.read_optional(f"/proc/{pid}/status")
    uids, groups = status_field(status, "Uid"), status_field(status, "Groups")
    if row is None or not uids or not all(map(str.isdecimal, (*uids, *groups))):
        return None
    users, members = frozenset(map(int, uids)), frozenset(map(int, groups))
    return Identity(pid, row.start_ticks, row.parent, row.alive, users, members, row.name)


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


def memory_cgroup(text: str) -> str:
    """Return the cgroup whose memory limit applies to a process, from the text of /proc/<pid>/cgroup.

    Format: https://man7.org/linux/man-pages/man7/cgroups.7.html, "/proc/[pid]/cgroup". With a version 1 memory
    controller, that line counts, else that of version 2 (``0::``).
    """
    found = ""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return path
        if number == "0" and not controllers:
            found = path
    return found


OwnedFile = Literal["cmdline", "maps", "smaps_rollup"]
#: A read takes 20 us, and milliseconds while the process is being swapped.
PATIENCE_SECONDS = 0.5
#: threads left behind, one for each user at most; the wait of each can be killed, so they do not outlive us
MAX_HANGING = 16
#: limits of a read: a training maps thousands of libraries and arenas, and a compiler has thousands of arguments
MAX_BYTES: Mapping[OwnedFile, int] = {"cmdline": 256 << 10, "maps": 16 << 20, "smaps_rollup": 64 << 10}


class Hangs(SourceError):
    """The process, or another one of its user, keeps readers waiting."""


class OwnedFiles:
    """Reads them, each with a deadline, for one thread.

    While a process keeps a reader waiting, no other process of its user is read: a user with a thousand of them costs
    one thread, and another user's programs are still told by their titles.
    """

    def __init__(self, host: Host, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Prepare to read on ``host``; files in a folder (a recorded machine) are read at once."""
        self.host, self._patience_seconds = host, patience_seconds
        self._hanging: dict[Identity, Future[str]] = {}
        self._complained: set[frozenset[int]] = set()

    def text(self, pid: int, name: OwnedFile) -> str:
        """Return the text of the file.

        Raises:
            NoData: the process has ended.
            Hangs: it did not answer in time, or another one of its user still does not.
            SourceError: the file is hidden from us.
        """
        path = f"/proc/{pid}/{name}"
        if self.host.root:
            return self.host.head(path, MAX_BYTES[name])
        who = identity(self.host, pid)
        if who is None:
            raise NoData("there is no {path}", path=path)
        self._hanging = {one: read for one, read in self._hanging.items() if not read.done()}
        if len(self._hanging) >= MAX_HANGING or any(one.uids == who.uids for one in self._hanging):
            raise Hangs("{path} is not read: a process of its user keeps readers waiting", path=path)
        read = Future[str]()
        threading.Thread(target=self._read, args=(path, MAX_BYTES[name], read), name="owned-file", daemon=True).start()
        try:
            return read.result(self._patience_seconds)
        except Late as late:
            self._hanging[who] = read
            if who.uids not in self._complained and len(self._complained) < MAX_HANGING:  # not a line per process
                self._complained.add(who.uids)
                users = ", ".join(map(str, sorted(who.uids)))
                log.warning("process %d (%s) of user %s keeps readers of its memory map waiting", pid, who.name, users)
            raise Hangs("{path} does not answer", path=path) from late

    def optional(self, pid: int, name: OwnedFile) -> str:
        """Return the text of the file, nothing where it cannot be had."""
        try:
            return self.text(pid, name)
        except (NoData, SourceError):
            return ""

    def _read(self, path: str, max_bytes: int, read: Future[str]) -> None:
        try:
            read.set_result(self.host.head(path, max_bytes))
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            read.set_exception(error)
