"""A scan of all processes: two small files of each and the name of its program, some 30 us."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from wslgpud.brake.process_tree import ScannedProcess
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources import whole
from wslgpud.sources.processes import memory_cgroup

_USERS = re.compile(r"^Uid:(.*)", re.MULTILINE)
#: not RssFile, the pages of mapped files: they are given back when memory is short
_OWN = re.compile(r"^(?:RssAnon|VmSwap):\s+(\d+) kB", re.MULTILINE)
_SHARED = re.compile(r"^RssShmem:\s+(\d+) kB", re.MULTILINE)
#: of a path that ends so the file has been replaced since the program began
_REPLACED: Final = " (deleted)"
#: where editors keep the server that runs terminals for them, as an ordinary ``node``
_EDITOR_SERVER = re.compile(r"/\.(?:vscode|cursor|windsurf|vscodium|positron)-server(?:-[a-z]+)?/")
_STOPPED: Final = "Tt"


def scan(host: Host, *, cgroups: bool = False) -> Iterator[ScannedProcess]:
    """Yield the processes that have memory of their own; with ``cgroups`` also say in which cgroups they are."""
    for name in host.names("/proc"):
        if name.isdecimal() and (found := _process(host, name, cgroups=cgroups)) is not None:
            yield found


def _process(host: Host, pid: str, *, cgroups: bool) -> ScannedProcess | None:
    """Return one process, None where it has ended meanwhile, is hidden, or has no memory of its own.

    Formats: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html, proc_pid_status.5.html
    """
    try:
        head, _, rest = host.read(f"/proc/{pid}/stat").rpartition(")")
        status = host.read(f"/proc/{pid}/status")
    except (NoData, SourceError):
        return None
    words = rest.split()
    if len(words) < 22 or words[20] == "0":
        return None
    parent, start = whole(words[1]), whole(words[19])
    users = {*found[1].split()} if (found := _USERS.search(status)) else set()
    if parent is None or start is None:
        return None
    return ScannedProcess(
        int(pid),
        start,
        parent,
        whole(users.pop()) if len(users) == 1 else None,
        head.partition("(")[2],
        _sum_bytes(_OWN, status),
        _program(host.link(f"/proc/{pid}/exe") or ""),
        memory_cgroup(host.read_optional(f"/proc/{pid}/cgroup")) if cgroups else "",
        words[0] in _STOPPED,
        _sum_bytes(_SHARED, status),
        words[4] != "0",
    )


def _program(path: str) -> str:
    """Return the name of the file that a process runs, by its path."""
    if _EDITOR_SERVER.search(path):
        return "code-server"
    return path.rpartition("/")[2].removesuffix(_REPLACED)


def _sum_bytes(fields: re.Pattern[str], status: str) -> int:
    return sum(whole(kib) or 0 for kib in fields.findall(status)) * 1024


def cgroup_of(pid: int, host: Host) -> str:
    """Return the cgroup (version 2) of a process; empty where it has none."""
    lines = host.read_optional(f"/proc/{pid}/cgroup").splitlines()
    return next((line[3:] for line in lines if line.startswith("0::/")), "")
