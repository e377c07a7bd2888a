"""A look at all processes: two small files of each, some 30 us."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from wslgpud.brake.jobs import Program
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources import whole
from wslgpud.sources.processes import memory_cgroup

_USERS, _HELD = re.compile(r"^Uid:(.*)", re.MULTILINE), re.compile(r"^Vm(?:RSS|Swap):\s+(\d+) kB", re.MULTILINE)
#: of a path that ends so the file has been replaced since the program began
_REPLACED: Final = " (deleted)"
_STOPPED: Final = "Tt"
#: of a cgroup and those below it: more are not looked at, and then nobody can tell who is in it
_MOST_GROUPS: Final = 200


def programs(host: Host, *, groups: bool = False) -> Iterator[Program]:
    """Yield the processes that have memory of their own; with ``groups`` also say in which cgroups they are."""
    for name in host.names("/proc"):
        if name.isdecimal() and (found := _program(host, name, groups=groups)) is not None:
            yield found


def _program(host: Host, pid: str, *, groups: bool) -> Program | None:
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
    held = sum(whole(size) or 0 for size in _HELD.findall(status)) * 1024
    users = {*found[1].split()} if (found := _USERS.search(status)) else set()
    if parent is None or start is None:
        return None
    path = (host.link(f"/proc/{pid}/exe") or "").rpartition("/")[2].removesuffix(_REPLACED)
    return Program(
        int(pid),
        start,
        parent,
        whole(users.pop()) if len(users) == 1 else None,
        head.partition("(")[2],
        held,
        path,
        memory_cgroup(host.read_optional(f"/proc/{pid}/cgroup")) if groups else "",
        words[0] in _STOPPED,
    )


def group_of(pid: int, host: Host) -> str:
    """Return the cgroup (version 2) of a process; empty where it has none."""
    lines = host.read_optional(f"/proc/{pid}/cgroup").splitlines()
    return next((line[3:] for line in lines if line.startswith("0::/")), "")


def members_of(folder: str) -> set[int] | None:
    """Return the pids of all in a cgroup and below it; None where that cannot be told."""
    found: set[int] = set()
    waiting = [folder]
    for looked, path in enumerate(waiting):
        if looked >= _MOST_GROUPS:
            return None
        try:
            text = Path(f"{path}/cgroup.procs").read_text(encoding="ascii")
            found.update(int(line) for line in text.split())
            with os.scandir(path) as entries:
                waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (OSError, ValueError):
            return None
    return found
