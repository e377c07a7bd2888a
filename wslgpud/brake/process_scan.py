"""A scan of all processes: two small files of each and the name of its program, some 30 us.

A second one, for what has come since, reads next to nothing: the signal to stop is waited for by memory that runs out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from wslgpud.brake.process_tree import ScannedProcess
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources import whole
from wslgpud.sources.processes import memory_cgroup

#: not RssFile, the pages of mapped files: they are given back when memory is short
_OWN: Final = ("RssAnon", "VmSwap")
#: of a path that ends so the file has been replaced since the program began
_REPLACED: Final = " (deleted)"
#: where editors keep the server that runs terminals for them, as an ordinary ``node``
_EDITOR_SERVER = re.compile(r"/\.(?:vscode|cursor|windsurf|vscodium|positron)-server(?:-[a-z]+)?/")
_STOPPED: Final = "Tt"


class ProcessListing(NamedTuple):
    """The processes that have memory of their own, and the pids of all that there were, kernel threads included."""

    processes: tuple[ScannedProcess, ...]
    pids: frozenset[int]


def scan(host: Host, *, cgroups: bool = False) -> ProcessListing:
    """Read all processes; with ``cgroups`` also in which cgroups they are."""
    pids = _pids(host)
    return ProcessListing(_read(host, pids, cgroups=cgroups), frozenset(pids))


def rescan(host: Host, before: ProcessListing, again: Collection[int]) -> ProcessListing:
    """Return a scan with those added that have come since, and with those of ``again`` as they are now.

    A pid that was used again in these milliseconds would be missed: the kernel gives all others away before.
    """
    pids = _pids(host)
    read = _read(host, [pid for pid in pids if pid in again or pid not in before.pids], cgroups=False)
    kept = (one for one in before.processes if one.pid not in again)
    return ProcessListing((*kept, *read), before.pids.union(pids))


def _pids(host: Host) -> list[int]:
    return [int(name) for name in host.names("/proc") if name.isdecimal()]


def _read(host: Host, pids: Iterable[int], *, cgroups: bool) -> tuple[ScannedProcess, ...]:
    return tuple(found for pid in pids if (found := _process(host, pid, cgroups=cgroups)) is not None)


def _process(host: Host, pid: int, *, cgroups: bool) -> ScannedProcess | None:
    """Return one process, None where it has ended meanwhile, is hidden, or has no memory of its own.

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
    parent, start = whole(words[1]), whole(words[19])
    users = {*_field(status, "Uid")}
    if parent is None or start is None:
        return None
    return ScannedProcess(
        pid,
        start,
        parent,
        whole(users.pop()) if len(users) == 1 else None,
        head.partition("(")[2],
        sum(_bytes(status, name) for name in _OWN),
        _program(host.link(f"/proc/{pid}/exe") or ""),
        memory_cgroup(host.read_optional(f"/proc/{pid}/cgroup")) if cgroups else "",
        words[0] in _STOPPED,
        _bytes(status, "RssShmem"),
        words[4] != "0",
    )


def _program(path: str) -> str:
    """Return the name of the file that a process runs, by its path."""
    if _EDITOR_SERVER.search(path):
        return "code-server"
    return path.rpartition("/")[2].removesuffix(_REPLACED)


def _field(status: str, name: str) -> list[str]:
    """Return the words of a line of a status; none where it has no such line. A pattern takes ten times as long."""
    _, found, rest = status.partition(f"\n{name}:")
    return rest.partition("\n")[0].split() if found else []


def _bytes(status: str, name: str) -> int:
    kib, *_ = (*_field(status, name), "")
    return (whole(kib) or 0) * 1024


def cgroup_of(pid: int, host: Host) -> str:
    """Return the cgroup (version 2) of a process; empty where it has none."""
    lines = host.read_optional(f"/proc/{pid}/cgroup").splitlines()
    return next((line[3:] for line in lines if line.startswith("0::/")), "")
