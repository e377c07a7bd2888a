"""A scan of all processes: three small files and the executable's name for each, about 40 us per process.

A rescan reads only new processes: memory is running out while the brake looks for children to stop.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from wslgpud.brake.process_tree import ScannedProcess
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources import parse_uint, table
from wslgpud.sources.cgroups import find_tree
from wslgpud.sources.procfs import memory_cgroup, process_stat

#: not RssFile: pages of mapped files are reclaimed under pressure
_OWN: Final = ("RssAnon", "VmSwap")
#: appended by the kernel if the executable was replaced since the process started
_REPLACED: Final = " (deleted)"
#: folders of editors' remote servers, which run terminals and whose executable is an ordinary ``node``
_EDITOR_SERVER = re.compile(r"/\.(?:vscode|cursor|windsurf|vscodium|positron)-server(?:-[a-z]+)?/")


class ProcessListing(NamedTuple):
    """The user-space processes, and the pids of all, kernel threads included."""

    processes: tuple[ScannedProcess, ...]
    pids: frozenset[int]


def scan(host: Host) -> ProcessListing:
    """Read all processes."""
    pids = _pids(host)
    return ProcessListing(_read(host, pids), frozenset(pids))


def rescan(host: Host, before: ProcessListing, again: Collection[int]) -> ProcessListing:
    """Return a scan with new processes added and those of ``again`` read anew.

    A pid reused within these milliseconds would be missed, but the kernel cycles through all others first.
    """
    pids = _pids(host)
    read = _read(host, [pid for pid in pids if pid in again or pid not in before.pids])
    unchanged = (process for process in before.processes if process.pid not in again)
    return ProcessListing((*unchanged, *read), before.pids.union(pids))


def charged(host: Host, processes: Iterable[ScannedProcess], users: Collection[int]) -> tuple[ScannedProcess, ...]:
    """Return the processes with files in RAM (tmpfs, /dev/shm) as shared memory of those who may have written them.

    No process holds them, but the cgroup that wrote them is charged (``shmem`` of memory.stat, see
    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files). Which of its processes wrote them is
    unknown: they count for one that is never paused if there is any, else for the oldest.
    """
    sizes: dict[int, int] = {}
    by_cgroup: defaultdict[str, list[ScannedProcess]] = defaultdict(list)
    for process in (processes := tuple(processes)):
        # Not the root, which has no statistics of its own, nor what a container's view leaves out.
        if process.uid in users and process.cgroup.strip("/") and ".." not in process.cgroup.split("/"):
            by_cgroup[process.cgroup].append(process)
    with contextlib.suppress(NoData, SourceError):  # no cgroups
        root = find_tree(host).root
        for path, inside in by_cgroup.items():
            bearer = min(inside, key=lambda one: (not (one.is_shell or one.is_protected), one.start_ticks))
            statistics = table(host.read_optional(f"{root}{path}/memory.stat"))
            sizes[bearer.pid] = parse_uint(statistics.get("shmem")) or 0
    return tuple(one._replace(shared_bytes=max(one.shared_bytes, sizes.get(one.pid, 0))) for one in processes)


def _pids(host: Host) -> list[int]:
    return [int(name) for name in host.names("/proc") if name.isdecimal()]


def _read(host: Host, pids: Iterable[int]) -> tuple[ScannedProcess, ...]:
    return tuple(process for pid in pids if (process := _process(host, pid)) is not None)


def _process(host: Host, pid: int) -> ScannedProcess | None:
    """Return one process; None if it has exited, is hidden, or has no address space (a kernel thread).

    Format of the other file: https://man7.org/linux/man-pages/man5/proc_pid_status.5.html
    """
    row = process_stat(host, pid)
    if row is None or not row.virtual_bytes or not (status := host.read_optional(f"/proc/{pid}/status")):
        return None
    users = {*_field(status, "Uid")}
    return ScannedProcess(
        pid,
        row.start_ticks,
        row.parent,
        parse_uint(users.pop()) if len(users) == 1 else None,
        row.name,
        sum(_bytes(status, name) for name in _OWN),
        _program(host.link(f"/proc/{pid}/exe") or ""),
        memory_cgroup(host.read_optional(f"/proc/{pid}/cgroup")),
        row.stopped,
        _bytes(status, "RssShmem"),
    )


def _program(path: str) -> str:
    """Return the name of an executable, given its path."""
    if _EDITOR_SERVER.search(path):
        return "code-server"
    return path.rpartition("/")[2].removesuffix(_REPLACED)


def _field(status: str, name: str) -> list[str]:
    """Return the words of a field of /proc/PID/status; empty if missing. A regular expression is ten times slower."""
    _, separator, rest = status.partition(f"\n{name}:")
    return rest.partition("\n")[0].split() if separator else []


def _bytes(status: str, name: str) -> int:
    kib, *_ = (*_field(status, name), "")
    return (parse_uint(kib) or 0) * 1024
