"""How much memory is left, of the machine or a cgroup with a limit, and how much a tree of processes holds."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from wslgpud.advise.guard.plan import Process, is_compiler
from wslgpud.host import Host, NoData
from wslgpud.sources.text import table, whole
from wslgpud.words import say

_NO_LIMIT = 1 << 60  # version 1 writes a huge number where there is none
#: less than that, many times over, is nothing beside a build or a training
_WORTH_BYTES = 16 << 20
#: The kernel walks over every page to tell what is shared, some 10 ms for each GB: that is not to take more
#: than a hundredth of a processor.
_REST = 100


def most_bytes(host: Host) -> int | None:
    """Return how much the machine has of RAM and swap together: no program can have held more."""
    levels = table(host.read_optional("/proc/meminfo"))
    ram, swap = (whole(levels.get(name)) for name in ("MemTotal", "SwapTotal"))
    return None if ram is None else (ram + (swap or 0)) << 10


class MemoryLeft(NamedTuple):
    """Bytes available without swapping, of how many, free swap, and OOM kills so far."""

    available_bytes: int
    total_bytes: int
    oom_kills: int = 0
    swap_bytes: int = 0


def memory_left(host: Host) -> MemoryLeft:
    """Return the memory left for us under the tightest limit that applies to us.

    Raises:
        NoData: the machine shows no /proc/meminfo.
        SourceError: it cannot be read.
    """
    levels = table(host.read("/proc/meminfo"))
    total, available = (whole(levels.get(n)) for n in ("MemTotal", "MemAvailable"))
    if total is None or available is None:
        raise NoData(say("/proc/meminfo does not tell how much memory is available"))
    kills = whole(table(host.read_optional("/proc/vmstat")).get("oom_kill")) or 0
    # Of swap only the machine's own counts: how much of it a group may use is its own affair.
    machine = MemoryLeft(available << 10, total << 10, kills, (whole(levels.get("SwapFree")) or 0) << 10)
    groups = (_limit(host, folder) for folder in _groups(host))
    return min((machine, *filter(None, groups)), key=lambda r: r.available_bytes)


def _groups(host: Host) -> Iterator[str]:
    """Yield the folders of the memory cgroups we are in, innermost first."""
    for line in host.read_optional("/proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            base = "/sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            base = "/sys/fs/cgroup/memory"
        else:
            continue
        # The machine's own root has no limit; what a container sees as the root is its group.
        yield from (f"{base}{p}".rstrip("/") for p in (PurePosixPath(path), *PurePosixPath(path).parents))


def _limit(host: Host, folder: str) -> MemoryLeft | None:
    first = host.exists(f"{folder}/memory.limit_in_bytes")  # version 1
    names = ("limit_in_bytes", "usage_in_bytes") if first else ("max", "current")
    limit, used = (whole(host.read_optional(f"{folder}/memory.{name}").strip()) for name in names)
    if limit is None or used is None or limit >= _NO_LIMIT:
        return None
    stat = table(host.read_optional(f"{folder}/memory.stat"))
    # Page cache goes first when the limit is reached; version 1 counts that of groups below apart.
    prefix = "total_" if "total_inactive_file" in stat else ""
    cache = sum(whole(stat.get(f"{prefix}{name}")) or 0 for name in ("inactive_file", "active_file"))
    events = table(host.read_optional(f"{folder}/memory.{'oom_control' if first else 'events'}"))
    return MemoryLeft(max(0, limit - used + cache), limit, whole(events.get("oom_kill")) or 0)


class TreeMemory:
    """Adds up a tree of processes.

    Two things would be counted many times over. Workers that a program has forked (those of a DataLoader;
    make's load a program of their own) have its pages without a copy, and shared memory (``/dev/shm``) is
    mapped by all who hand tensors to each other. Of such processes the kernel is asked for shares (PSS).
    Files on a tmpfs that nobody has mapped are not counted: they stay when the processes end.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ask_at = float("-inf")

    def now_bytes(self, processes: Sequence[Process]) -> int | None:
        """Return the bytes that these processes hold together; None: not known exactly this time.

        More than the machine has is a sum that counts something twice.
        """
        sharing = self._sharing(processes)
        held = sum(p.bytes + p.shared_bytes for p in processes if p.key not in sharing)
        if sharing:
            if self._host.clock.mono() < self._ask_at:
                return None
            began = time.thread_time()  # waiting for a busy processor costs nobody anything
            held += sum(map(self._share, sharing.values()))
            self._ask_at = self._host.clock.mono() + _REST * (time.thread_time() - began)
        most = most_bytes(self._host)
        return None if most is not None and held > most else held

    def _sharing(self, processes: Sequence[Process]) -> dict[tuple[int, int], Process]:
        """Return the processes that may share pages: several with shared memory, several that run one program."""
        families: dict[str | None, list[Process]] = defaultdict(list)
        for process in processes:
            if process.shared_bytes >= _WORTH_BYTES:
                families["shared memory"].append(process)
            if process.bytes >= _WORTH_BYTES and not is_compiler(process.name):
                families[self._host.link(f"/proc/{process.pid}/exe")].append(process)
        return {p.key: p for family in families.values() if len(family) > 1 for p in family}

    def _share(self, process: Process) -> int:
        """Return a process's share of what it has without files, in bytes; all of it where it is not told.

        The parts of Pss are there since Linux 5.4: https://docs.kernel.org/filesystems/proc.html
        """
        parts = table(self._host.read_optional(f"/proc/{process.pid}/smaps_rollup"))
        kilobytes = [whole(parts.get(name)) for name in ("Pss_Anon", "Pss_Shmem", "SwapPss")]
        if None in kilobytes:  # ended meanwhile, or another user's
            return process.bytes + process.shared_bytes
        return sum(k or 0 for k in kilobytes) << 10
