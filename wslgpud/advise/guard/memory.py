"""How much memory is left: of the machine, and of the cgroup we are in where it has a limit."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import NamedTuple

from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources.text import table, whole
from wslgpud.words import say

_NO_LIMIT = 1 << 60  # version 1 writes a huge number where there is none


def most_bytes(host: Host) -> int | None:
    """Return how much the machine has of RAM and swap together: no program can have held more."""
    levels = table(_text(host, "/proc/meminfo"))
    ram, swap = (whole(levels.get(name)) for name in ("MemTotal", "SwapTotal"))
    return None if ram is None else (ram + (swap or 0)) << 10


class Room(NamedTuple):
    """Bytes that can be taken without swapping, and of how many; kills for want of it so far."""

    available_bytes: int
    total_bytes: int
    oom_kills: int = 0
    swap_bytes: int = 0


def room(host: Host) -> Room:
    """Return what is left for us, by the tightest of the limits that hold for us.

    Raises:
        NoData: the machine shows no /proc/meminfo.
        SourceError: it cannot be read.
    """
    levels = table(host.read("/proc/meminfo"))
    total, available = (whole(levels.get(n)) for n in ("MemTotal", "MemAvailable"))
    if total is None or available is None:
        raise NoData(say("/proc/meminfo does not tell how much memory is available"))
    kills = whole(table(_text(host, "/proc/vmstat")).get("oom_kill")) or 0
    # Of swap only the machine's own counts: how much of it a group may use is its own affair.
    machine = Room(available << 10, total << 10, kills, (whole(levels.get("SwapFree")) or 0) << 10)
    boxes = [b for b in (_limit(host, folder) for folder in groups(host)) if b is not None]
    return min((machine, *boxes), key=lambda r: r.available_bytes)


def groups(host: Host) -> list[str]:
    """Return the folders of the memory cgroups we are in, innermost first."""
    found: list[str] = []
    for line in _text(host, "/proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            bases = ["/sys/fs/cgroup"]
        elif "memory" in controllers.split(","):
            bases = ["/sys/fs/cgroup/memory"]
        else:
            continue
        # The machine's own root has no limit; what a container sees as the root is its group.
        inner = [str(p).rstrip("/") for p in (PurePosixPath(path), *PurePosixPath(path).parents)]
        found += [f"{base}{p}" for base in bases for p in inner]
    return found


def _limit(host: Host, folder: str) -> Room | None:
    names = ("memory.max", "memory.current") if host.exists(f"{folder}/memory.max") else (
        "memory.limit_in_bytes", "memory.usage_in_bytes"
    )  # fmt: skip
    limit, used = (whole(_text(host, f"{folder}/{name}").strip()) for name in names)
    if limit is None or used is None or limit >= _NO_LIMIT:
        return None
    stat = table(_text(host, f"{folder}/memory.stat"))
    # Page cache goes first when the limit is reached.
    cache = sum(whole(stat.get(n)) or 0 for n in _cache_names(stat))
    events = table(_text(host, f"{folder}/memory.events") or _text(host, f"{folder}/memory.oom_control"))
    return Room(max(0, limit - used + cache), limit, whole(events.get("oom_kill")) or 0)


def _cache_names(stat: dict[str, str]) -> tuple[str, ...]:
    if "total_inactive_file" in stat:
        return "total_inactive_file", "total_active_file"
    return "inactive_file", "active_file"


def _text(host: Host, path: str) -> str:
    try:
        return host.read(path)
    except (NoData, SourceError):
        return ""
