"""Cgroups with a memory limit: containers, systemd units, and WSL's own limit on all user processes.

A limit kills as surely as a full machine does, and /proc/meminfo does not show it.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import NamedTuple

from wslgpud.host import Host, NoData, SourceError
from wslgpud.metrics import CGROUP_NAMES, counter, gauge
from wslgpud.model import Reading, Sample
from wslgpud.sources import Source, parse_uint, readings, table
from wslgpud.words import say

#: A limit set on a cgroup that had none is found within this time; new cgroups as soon as their number changes, and a
#: changed limit at once.
_RESCAN_SECONDS = 30.0
#: The limit of a new cgroup is set right after its creation.
_SETTLE_SECONDS = 2.0
#: share of one core that scans may take, however often cgroups are created
_SCAN_SHARE = 0.005
_MAX_CGROUPS = 20
_MAX_FOLDERS = 1000
#: Limits on everything visible are never omitted: a container's own (its root), and WSL's on all user processes
#: (https://github.com/microsoft/WSL/pull/40519).
_ALWAYS = frozenset({"/", "/wsl-user"})
#: A forecast for our own unit's limit would only confuse. A user who picks this name hides only their own cgroup.
_OURS = "/wslgpud.service"

METRICS = tuple(
    (gauge if name.endswith("bytes") else counter)(name, text, "cgroup", names=(CGROUP_NAMES,))
    for name, text in (
        ("cgroup_memory_limit_bytes", "Memory that this cgroup may use; beyond it, a process in it is killed."),
        ("cgroup_memory_current_bytes", "Memory it uses, including its page cache."),
        ("cgroup_memory_inactive_file_bytes", "Of that, page cache that can be dropped; no obstacle to growth."),
        (
            "cgroup_memory_active_file_bytes",
            "Of that, page cache in recent use; dropped last, at the cost of reading it again.",
        ),
        ("cgroup_memory_slab_reclaimable_bytes", "Of that, kernel caches that can be dropped."),
        ("cgroup_swap_limit_bytes", "Swap it may use."),
        ("cgroup_swap_current_bytes", "Swap it uses."),
        ("cgroup_memory_limit_hits", "Times it hit its limit and had to reclaim; a steady rate precedes the kill."),
        ("cgroup_oom_kills", "Processes killed because of its limit."),
    )
)
LIMIT, CURRENT, INACTIVE_FILE, ACTIVE_FILE, SLAB_RECLAIMABLE, SWAP_LIMIT, SWAP_CURRENT, LIMIT_HITS, OOM_KILLS = METRICS


class CgroupTree(NamedTuple):
    """Mount point of a cgroup hierarchy with a memory controller, and its version."""

    root: str
    version: int


class _Files(NamedTuple):
    """Names of a cgroup's files, and the prefix of the lines in ``memory.stat``, in one cgroup version."""

    limit: str
    current: str
    swap_limit: str
    swap_current: str
    events: str
    stat_prefix: str


_FILES = {
    1: _Files(
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "memory.memsw.limit_in_bytes",  # includes RAM, as does the next
        "memory.memsw.usage_in_bytes",
        "memory.oom_control",
        "total_",
    ),
    2: _Files("memory.max", "memory.current", "memory.swap.max", "memory.swap.current", "memory.events", ""),
}


class Limited(NamedTuple):
    """A cgroup with a limit; sizes in bytes."""

    path: str
    limit: int
    current: int
    swap_limit: int | None


class CgroupSource(Source):
    """Cgroups (v1 and v2) with a finite limit: the twenty with the least room."""

    name = "cgroups"
    # For memory.stat the kernel sums up counters of all processors; RAM must not wait for that.
    lane = "cgroups"
    # A cgroup's headroom shortens the interval, which helps only if cgroups are then read as well.
    fast = True
    metrics = METRICS

    def _prepare(self) -> None:
        self._tree: CgroupTree | None = None
        self._paths: list[str] = []
        self._population = ""
        self._due = self._not_before = float("-inf")

    def read(self) -> Sample:
        """Return the state of the cgroups found to have a limit; NoData where there is none."""
        now = self.host.clock.mono()
        population = "" if self._tree is None else _population(self.host, self._tree)
        changed = population != self._population
        if (changed or now >= self._due) and now >= self._not_before:
            tree = self._tree = find_tree(self.host)
            self._paths = [cgroup.path for cgroup in scan(self.host, tree)]
            self._population = population
            self._due = now + (_SETTLE_SECONDS if changed else _RESCAN_SECONDS)
            ended = self.host.clock.mono()
            self._not_before = min(ended + (ended - now) / _SCAN_SHARE, now + _RESCAN_SECONDS)
        if self._tree is None or not self._paths:
            raise NoData(say("no cgroup has a memory limit"))
        tree = self._tree
        return Sample(tuple(r for path in self._paths for r in state(self.host, tree, path)))


def _population(host: Host, tree: CgroupTree) -> str:
    """Return a value that changes with the number of cgroups, by reading one small file."""
    if tree.version == 2:
        found = table(host.read_optional(f"{tree.root}/cgroup.stat"))
        return f"{found.get('nr_descendants')} {found.get('nr_dying_descendants')}"
    lines = host.read_optional("/proc/cgroups").splitlines()
    return next((line for line in lines if line.startswith("memory\t")), "")


def find_tree(host: Host) -> CgroupTree:
    """Return the hierarchy that has the memory controller; hybrid systems mount both and use v1's."""
    found: dict[int, str] = {}
    for line in host.read("/proc/self/mounts").splitlines():
        _, point, kind, options, *_ = (*line.split(" "), "", "", "")
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            found.setdefault(int(kind == "cgroup2") + 1, point)
    if not found:
        raise NoData(say("no cgroup hierarchy with a memory controller is mounted"))
    return CgroupTree(found[min(found)], min(found))


def reclaim_file(host: Host) -> str:
    """Return the root cgroup's file that has memory reclaimed (v2, Linux 5.19 and newer); empty where there is none."""
    with suppress(NoData, SourceError):
        if "memory.reclaim" in host.names(root := find_tree(host).root):
            return f"{root}/memory.reclaim"
    return ""


def scan(host: Host, tree: CgroupTree) -> list[Limited]:
    """Return the cgroups with a limit that can bite, at most twenty, least room first; of up to a thousand.

    A user with a delegated subtree can create cgroups there at will: so users, whom the first folder on the path that
    is not root's tells, have equal shares of the folders that are looked at, and of the list's slots. A desktop alone
    has more than a hundred folders.
    """
    memory = parse_uint(table(host.read_optional("/proc/meminfo")).get("MemTotal"))
    found: dict[int, list[Limited]] = {}
    looked, waiting = Counter[int](), {0: deque([""])}
    while waiting and looked.total() < _MAX_FOLDERS:
        user = min(waiting, key=lambda user: looked[user])
        path = waiting[user].popleft()
        if not waiting[user]:
            del waiting[user]
        looked[user] += 1
        if path.endswith(_OURS):
            continue
        limited = None
        try:
            limited = _limited(host, tree, path)
        except (NoData, SourceError):
            if path and tree.version == 2:
                continue  # v2 passes controllers down: none here means none below
        # A limit above the machine's memory (docker run -m 512g) has no effect.
        if limited is not None and (memory is None or limited.limit < memory * 1024):
            found.setdefault(user, []).append(limited)
        with suppress(NoData, SourceError):
            for child in [f"{path}/{name}" for name in host.folders(tree.root + path, _MAX_FOLDERS)]:
                waiting.setdefault(user or host.owner(tree.root + child), deque()).append(child)
    return _chosen(found)


def _chosen(found: Mapping[int, list[Limited]]) -> list[Limited]:
    """Return root's cgroups, then in turn the one with the least room of each other user, up to twenty.

    A quarter of the slots is reserved for other users where root has many.
    """
    for cgroups in found.values():
        cgroups.sort(key=lambda cgroup: (cgroup.path not in _ALWAYS, cgroup.limit - cgroup.current))
    own = found.get(0, [])
    turns = zip_longest(*(cgroups for user, cgroups in sorted(found.items()) if user))
    others = [cgroup for turn in turns for cgroup in turn if cgroup is not None]
    places = max(_MAX_CGROUPS - len(others), _MAX_CGROUPS - _MAX_CGROUPS // 4)
    kept = own[:places]
    return kept + others[: _MAX_CGROUPS - len(kept)]


def _limited(host: Host, tree: CgroupTree, path: str) -> Limited | None:
    """Return the cgroup if it has a limit; NoData where it has no memory controller."""
    folder, files = tree.root + path, _FILES[tree.version]
    # v1 writes "unlimited" as 2^63 minus a page, longer than ``parse_uint`` accepts.
    limit = parse_uint(host.read(f"{folder}/{files.limit}").strip())
    if not limit:
        return None
    swap = _number(host, f"{folder}/{files.swap_limit}")
    if swap is not None and tree.version == 1:
        swap = max(swap - limit, 0)
    current = _number(host, f"{folder}/{files.current}")
    return None if current is None else Limited(path or "/", limit, current, swap)


def around_us(host: Host, tree: CgroupTree) -> Iterator[Limited]:
    """Yield the cgroups with a limit that this process is in, innermost first.

    The machine's root cgroup has none; the root that a container sees is its own cgroup.
    """
    for line in host.read_optional("/proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" if tree.version == 2 else "memory" in controllers.split(","):
            for folder in (PurePosixPath(path), *PurePosixPath(path).parents):
                with suppress(NoData, SourceError):
                    if (limited := _limited(host, tree, str(folder).rstrip("/"))) is not None:
                        yield limited


def state(host: Host, tree: CgroupTree, path: str) -> list[Reading]:
    """Return a cgroup's present limit and use; nothing if it, or its limit, has been removed since the scan."""
    below, files = path.rstrip("/"), _FILES[tree.version]
    folder = tree.root + below
    try:
        cgroup = _limited(host, tree, below)
        if cgroup is None:
            return []
        stat = table(host.read(f"{folder}/memory.stat"))
        swap = _number(host, f"{folder}/{files.swap_current}")
        kills = table(host.read(f"{folder}/{files.events}")).get("oom_kill")
        if tree.version == 2:
            # memory.events also counts the hits of the cgroups below, which may have limits of their own.
            hits = parse_uint(table(host.read_optional(f"{folder}/memory.events.local")).get("max"))
        else:
            hits = _number(host, f"{folder}/memory.failcnt")
    except (NoData, SourceError):  # the latter when it is removed meanwhile: ENODEV
        return []
    if swap is not None and tree.version == 1:
        # The two values are read at different times: the difference may be slightly negative.
        swap = max(swap - cgroup.current, 0)
    known = (
        (LIMIT, cgroup.limit),
        (SWAP_LIMIT, cgroup.swap_limit),
        (CURRENT, cgroup.current),
        (INACTIVE_FILE, parse_uint(stat.get(f"{files.stat_prefix}inactive_file"))),
        (ACTIVE_FILE, parse_uint(stat.get(f"{files.stat_prefix}active_file"))),
        (SLAB_RECLAIMABLE, parse_uint(stat.get(f"{files.stat_prefix}slab_reclaimable"))),
        (SWAP_CURRENT, swap),
        (LIMIT_HITS, hits),
        (OOM_KILLS, parse_uint(kills)),
    )
    # Folder names may be any bytes, and invalid UTF-8 would stop the database; /proc is read the same way.
    return readings(known, os.fsencode(path).decode("utf-8", "replace"))


def _number(host: Host, path: str) -> int | None:
    """Return the number in a file; None where the kernel does not have it."""
    try:
        return parse_uint(host.read(path).strip())
    except NoData:
        return None
