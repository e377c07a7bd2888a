"""Lists processes and their memory without reading all of them at every scan.

Of thousands of processes, nearly all sleep for hours. New ones are read at every scan for a minute, listed ones always,
the others in turn; and all at once when programs hold more memory than those read explain: then one of the others has
grown.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from wslgpud.host import Host, NoData, SourceError
from wslgpud.security.redaction import named
from wslgpud.sources import parse_uint

#: a new process is read at every scan for this long, as it may exec or load a framework; later at least this often
_NEW_SECONDS = 60.0
#: unexplained growth beyond which all processes are read
_UNEXPLAINED_BYTES = 8 << 20

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

#: pid, start in ticks, name
ProcessKey = tuple[int, int, str]


class ProcessStat(NamedTuple):
    """One process as /proc/<pid>/stat has it; a virtual size of 0 is a kernel thread or a zombie."""

    pid: int
    start_ticks: int
    name: str
    virtual_bytes: int
    rss_bytes: int
    cpu_seconds: float | None = None
    faults_total: int | None = None
    major_faults_total: int | None = None

    @property
    def key(self) -> ProcessKey:
        """Return what stays the same while the process runs the same program."""
        return self.pid, self.start_ticks, self.name


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
    number, start, virtual, pages = map(parse_uint, (pid, *words[19:22]))
    if number is None or start is None or virtual is None or pages is None:
        return None
    faults, major, user, system = map(parse_uint, (words[7], words[9], *words[11:13]))
    cpu = None if user is None or system is None else (user + system) / _TICKS_PER_SECOND
    return ProcessStat(number, start, named(name), virtual, pages * _PAGE_BYTES, cpu, faults, major)


def programs_bytes(meminfo: Mapping[str, str]) -> int | None:
    """Return the memory of all programs together, in RAM and swap, from /proc/meminfo; None where unknown.

    Mapped files count once here, but in each process that maps them.
    """
    names = ("AnonPages", "Mapped", "SwapTotal", "SwapFree")
    anon, mapped, swap, swap_free = (parse_uint(meminfo.get(name)) for name in names)
    if anon is None or mapped is None:
        return None
    return (anon + mapped + (swap or 0) - (swap_free or 0)) * 1024


class ProcessScan:
    """Keeps each process as last seen."""

    def __init__(self, host: Host, period_seconds: float) -> None:
        """Prepare for a scan every ``period_seconds``."""
        self._host, self._period = host, period_seconds
        self._rows: dict[int, ProcessStat] = {}
        #: read since the last update
        self._fresh: set[int] = set()
        #: pid -> until when it is new
        self._new: dict[int, float] = {}
        self._waiting: deque[int] = deque()
        self._held: int | None = None
        self._unexplained = 0

    def update(self, listed: Collection[int], meminfo: Mapping[str, str]) -> None:
        """Read the processes that may have changed, and all ``listed`` ones."""
        now = self._host.clock.mono()
        self._fresh.clear()
        pids = {int(name): None for name in self._host.names("/proc") if name.isdecimal()}
        new = [pid for pid in pids if pid not in self._rows]
        ended = [pid for pid in self._rows if pid not in pids]
        self._new = {pid: until for pid, until in self._new.items() if until > now and pid in pids}
        # One that hides its stat (hidepid=1) is listed and never known.
        known = filter(self._rows.__contains__, (*listed, *self._new))
        looked = dict.fromkeys((*ended, *known, *self._turn()))
        explained = sum(map(self._growth, looked))
        for pid in new:
            self._look(pid)
            self._new[pid] = now + _NEW_SECONDS
        before, self._held = self._held, programs_bytes(meminfo)
        if before is not None and self._held is not None:
            self._unexplained = max(0, self._unexplained + self._held - before - explained)
        if self._held is None or self._unexplained >= _UNEXPLAINED_BYTES:
            for pid in self._rows.keys() - self._fresh:
                self._look(pid)
            self._unexplained = 0

    def running(self) -> list[ProcessStat]:
        """Return the processes that have memory of their own, each as last seen."""
        return [row for row in self._rows.values() if row.virtual_bytes]

    def fresh(self, row: ProcessStat) -> ProcessStat | None:
        """Return a process as it is now; None where it has ended."""
        now = self._rows.get(row.pid) if row.pid in self._fresh else self._look(row.pid)
        return now if now is not None and now.key == row.key else None

    def _look(self, pid: int) -> ProcessStat | None:
        try:
            row = parse_stat(self._host.read(f"/proc/{pid}/stat"))
        except (NoData, SourceError):  # ended meanwhile, or hidden from us (hidepid)
            row = None
        before = self._rows.get(pid)
        if row is None:
            self._rows.pop(pid, None)
            return None
        if before is not None and row.key != before.key:
            self._new[pid] = self._host.clock.mono() + _NEW_SECONDS
        self._rows[pid] = row
        self._fresh.add(pid)
        return row

    def _growth(self, pid: int) -> int:
        """Read a known process and return its growth."""
        before, row = self._rows[pid], self._look(pid)
        return (row.rss_bytes if row is not None else 0) - before.rss_bytes

    def _turn(self) -> list[int]:
        """Return the processes whose turn it is."""
        if not self._waiting:
            self._waiting.extend(self._rows)
        share = -(-len(self._rows) * self._period // _NEW_SECONDS)
        turn = [self._waiting.popleft() for _ in range(min(len(self._waiting), int(share)))]
        return [pid for pid in turn if pid in self._rows]
