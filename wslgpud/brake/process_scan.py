"""A scan of all processes: two small files and the executable's name for each, about 30 us per process.

A rescan reads only new processes: memory is running out while the brake looks for children to stop.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from wslgpud.brake.process_tree import ScannedProcess
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources import parse_uint
from wslgpud.sources.processes import memory_cgroup

#: not RssFile: pages of mapped files are reclaimed under pressure
_OWN: Final = ("RssAnon", "VmSwap")
#: appended by the kernel if the executable was replaced since the process started
_REPLACED: Final = " (deleted)"
#: folders of editors' remote servers, which run terminals and whose executable is an ordinary ``node``
_EDITOR_SERVER = re.compile(r"/\.(?:vscode|cursor|windsurf|vscodium|positron)-server(?:-[a-z]+)?/")
_STOPPED: Final = "Tt"


class ProcessListing(NamedTuple):
    """The user-space processes, and the pids of all, kernel threads included."""

    processes: tuple[ScannedProcess, ...]
    pids: frozenset[int]


def scan(host: Host, *, cgroups: bool = False) -> ProcessListing:
    """Read all processes; with ``cgroups`` also their cgroups."""
    pids = _pids(host)
    return ProcessListing(_read(host, pids, cgroups=cgroups), frozenset(pids))


def rescan(host: Host, before: ProcessListing, again: Collection[int]) -> ProcessListing:
    """Return a scan with new processes added and those of ``again`` read anew.

    A pid reused within these milliseconds would be missed, but the kernel cycles through all others first.
    """
    pids = _pids(host)
    read = _read(host, [pid for pid in pids if pid in again or pid not in before.pids], cgroups=False)
    unchanged = (process for process in before.processes if process.pid not in again)
    return ProcessListing((*unchanged, *read), before.pids.union(pids))


def _pids(host: Host) -> list[int]:
    return [int(name) for name in host.names("/proc") if name.isdecimal()]


def _read(host: Host, pids: Iterable[int], *, cgroups: bool) -> tuple[ScannedProcess, ...]:
    return tuple(process for pid in pids if (process := _process(host, pid, cgroups=cgroups)) is not None)


def _process(host: Host, pid: int, *, cgroups: bool) -> ScannedProcess | None:
    """Return one process; None if it has exited, is hidden, or has no address space (a kernel thread).

    Formats: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html, proc_pid_status.5.html
    """
    try:
        head, _, rest = host.read(f"/proc/{pid}/stat").rpartition(")")
        words = rest.split()
        if len(words) < 22 or words[20] == "0":
            return None
        status = host.read(f"/proc/{pid}/status")
    except (NoData, SourceError):
        return None
    parent, start = parse_uint(words[1]), parse_uint(words[19])
    users = {*_field(status, "Uid")}
    if parent is None or start is None:
        return None
    return ScannedProcess(
        pid,
        start,
        parent,
        parse_uint(users.pop()) if len(users) == 1 else None,
        head.partition("(")[2],
        sum(_bytes(status, name) for name in _OWN),
        _program(host.link(f"/proc/{pid}/exe") or ""),
        memory_cgroup(host.read_optional(f"/proc/{pid}/cgroup")) if cgroups else "",
        words[0] in _STOPPED,
        _bytes(status, "RssShmem"),
        words[4] != "0",
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


def cgroup_of(pid: int, host: Host) -> str:
    """Return the path of a process's v2 cgroup; empty if it has none."""
    lines = host.read_optional(f"/proc/{pid}/cgroup").splitlines()
    return next((line[3:] for line in lines if line.startswith("0::/")), "")
