"""Cgroups with a memory limit: containers, systemd units, and WSL's own limit on everything of the user.

A limit kills as surely as a full machine does, and /proc/meminfo shows nothing of it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from itertools import zip_longest
from typing import ClassVar, NamedTuple

from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.metrics import CGROUP_NAMES, Kind, MetricSpec, Unit
from wslgpud.model import Reading, Sample
from wslgpud.sources import Source
from wslgpud.sources.text import table, whole
from wslgpud.words import say

_RESCAN_SECONDS = 30.0
_MOST_CGROUPS = 20
_MOST_FOLDERS = 1000
#: Limits on all that we can see are never left out: a container's own (its root), and that of WSL on
#: everything of the user (https://github.com/microsoft/WSL/pull/40519).
_ALWAYS = frozenset({"/", "/wsl-user"})


def _spec(name: str, text: str, kind: Kind = "gauge") -> MetricSpec:
    unit: Unit = "bytes" if name.endswith("bytes") else ""
    return MetricSpec(name, kind, unit, text, ("cgroup",), names=(CGROUP_NAMES,))


LIMIT = _spec(
    "cgroup_memory_limit_bytes", "Memory this cgroup may use; beyond it, something in it is killed."
)
CURRENT = _spec("cgroup_memory_current_bytes", "Memory it uses, its page cache included.")
INACTIVE_FILE = _spec(
    "cgroup_memory_inactive_file_bytes", "Of that, page cache that can be dropped; not in the way of growth."
)
ACTIVE_FILE = _spec(
    "cgroup_memory_active_file_bytes",
    "Of that, page cache in recent use; dropped later, at the price of reading it again.",
)
SLAB_RECLAIMABLE = _spec(
    "cgroup_memory_slab_reclaimable_bytes", "Of that, kernel caches that can be dropped."
)
SWAP_LIMIT = _spec("cgroup_swap_limit_bytes", "Swap it may use.")
SWAP_CURRENT = _spec("cgroup_swap_current_bytes", "Swap it uses.")
LIMIT_HITS = _spec(
    "cgroup_memory_limit_hits",
    "Times it ran into its limit and had to reclaim; a steady rate precedes the kill.",
    "counter",
)
OOM_KILLS = _spec("cgroup_oom_kills", "Processes killed because of its limit.", "counter")


class Tree(NamedTuple):
    """Where a cgroup hierarchy with a memory controller is mounted, and its version."""

    root: str
    version: int


#: our own unit limits us; to forecast our own end would only puzzle people. Of a name like that in somebody's
#: realm the owner is the only one who misses anything.
_OURS = "/wslgpud.service"


class Limited(NamedTuple):
    """A cgroup that has a limit; sizes in bytes."""

    path: str
    limit: int
    current: int
    swap_limit: int | None


class CgroupSource(Source):
    """Every cgroup with a finite limit, v1 and v2, the twenty with the least room."""

    name: ClassVar[str] = "cgroups"
    # memory.stat makes the kernel sum up counters of all processors; RAM must not wait for that.
    lane: ClassVar[str] = "cgroups"
    # A group's own headroom quickens the pace, which is of no use to it unless it is then read.
    fast: ClassVar[bool] = True
    metrics: ClassVar[tuple[MetricSpec, ...]] = (
        LIMIT, CURRENT, INACTIVE_FILE, ACTIVE_FILE, SLAB_RECLAIMABLE, SWAP_LIMIT, SWAP_CURRENT, LIMIT_HITS,
        OOM_KILLS,
    )  # fmt: skip

    def __init__(self, host: Host, config: Config) -> None:
        """Know no cgroup yet."""
        super().__init__(host, config)
        self._tree: Tree | None = None
        self._known: list[Limited] = []
        self._scanned: float | None = None

    def read(self) -> Sample:
        """Return the present state of the cgroups known to have a limit.

        Raises:
            NoData: there is no memory controller, or no cgroup has a limit.
            SourceError: the mounts cannot be read.
        """
        now = self.host.clock.mono()
        if self._scanned is None or now - self._scanned >= _RESCAN_SECONDS:
            self._tree = find_tree(self.host)
            self._known = scan(self.host, self._tree)
            self._scanned = now
        if self._tree is None or not self._known:
            raise NoData(say("no cgroup has a memory limit"))
        tree = self._tree
        return Sample(tuple(r for cgroup in self._known for r in state(self.host, tree, cgroup)))


def find_tree(host: Host) -> Tree:
    """Return the hierarchy that has the memory controller; hybrid systems mount both and use v1's.

    Raises:
        NoData: there is none.
        SourceError: the mounts cannot be read.
    """
    second: Tree | None = None
    for line in host.read("/proc/self/mounts").splitlines():
        words = line.split(" ")
        if len(words) < 4:
            continue
        if words[2] == "cgroup" and "memory" in words[3].split(","):
            return Tree(words[1], 1)
        if words[2] == "cgroup2" and second is None:
            second = Tree(words[1], 2)
    if second is None:
        raise NoData(say("no cgroup hierarchy with a memory controller is mounted"))
    return second


def scan(host: Host, tree: Tree) -> list[Limited]:
    """Return the cgroups with a limit that can bite, at most twenty, least room first; of up to a thousand.

    Who has been given a part of the tree makes cgroups there as they like. So each part is a realm, known by
    the first folder on the way that is not root's: realms take turns at being looked through and at a place
    in the list, root's own goes first in the latter, and nobody's cgroups displace another's.
    """
    try:
        memory = whole(table(host.read("/proc/meminfo")).get("MemTotal"))
    except (NoData, SourceError):
        memory = None
    found: dict[str, list[Limited]] = {}
    waiting = {"": deque([""])}
    looked = 0
    while waiting and looked < _MOST_FOLDERS:
        for realm in list(waiting):
            path = waiting[realm].popleft()
            looked += 1
            limited, below = _look(host, tree, path)
            # A limit above what the machine has (docker run -m 512g) is none.
            if limited is not None and (memory is None or limited.limit < memory * 1024):
                found.setdefault(realm, []).append(limited)
            for child in below:
                waiting.setdefault(realm or _realm(host, tree, child), deque()).append(child)
            if not waiting[realm]:
                del waiting[realm]
    return _chosen(found)


def _look(host: Host, tree: Tree, path: str) -> tuple[Limited | None, list[str]]:
    """Return a cgroup if it has a limit, and the paths of those below it that may have one."""
    if path.endswith(_OURS):
        return None, []
    limited = None
    try:
        limited = _limited(host, tree, path)
    except (NoData, SourceError):
        if path and tree.version == 2:
            return None, []  # v2 hands controllers down: where there is none, there is none below
    try:
        return limited, [f"{path}/{name}" for name in host.folders(tree.root + path, _MOST_FOLDERS)]
    except (NoData, SourceError):
        return limited, []


def _realm(host: Host, tree: Tree, path: str) -> str:
    try:
        return path if host.owner(tree.root + path) else ""
    except NoData:
        return ""


def _chosen(found: Mapping[str, list[Limited]]) -> list[Limited]:
    """Return root's cgroups, then of each other realm in turn the one with the least room left, up to twenty.

    A quarter of the places is kept for the other realms where root's own are many.
    """
    for realm in found.values():
        realm.sort(key=lambda cgroup: (cgroup.path not in _ALWAYS, cgroup.limit - cgroup.current))
    own = found.get("", [])
    turns = zip_longest(*(realm for name, realm in sorted(found.items()) if name))
    others = [cgroup for turn in turns for cgroup in turn if cgroup is not None]
    places = max(_MOST_CGROUPS - len(others), _MOST_CGROUPS - _MOST_CGROUPS // 4)
    kept = own[:places]
    return kept + others[: _MOST_CGROUPS - len(kept)]


def _limited(host: Host, tree: Tree, path: str) -> Limited | None:
    """Return the cgroup if it has a limit; NoData when it has no memory controller."""
    folder = tree.root + path
    if tree.version == 2:
        limit = whole(host.read(f"{folder}/memory.max").strip())
        if not limit:
            return None
        swap = _number(host, f"{folder}/memory.swap.max")
        current = _number(host, f"{folder}/memory.current")
    else:
        # v1 writes "unlimited" as 2^63 less a page, which is longer than ``whole`` believes.
        limit = whole(host.read(f"{folder}/memory.limit_in_bytes").strip())
        if not limit:
            return None
        both = _number(host, f"{folder}/memory.memsw.limit_in_bytes")
        swap = None if both is None else max(both - limit, 0)
        current = _number(host, f"{folder}/memory.usage_in_bytes")
    return None if current is None else Limited(path or "/", limit, current, swap)


def state(host: Host, tree: Tree, cgroup: Limited) -> list[Reading]:
    """Return what one cgroup uses now; nothing when it has ended since the scan."""
    folder = tree.root + cgroup.path.rstrip("/")
    reader = _state_v2 if tree.version == 2 else _state_v1
    try:
        found = [(LIMIT, cgroup.limit), (SWAP_LIMIT, cgroup.swap_limit), *reader(host, folder)]
    except (NoData, SourceError):  # the latter when it ends under our hands: ENODEV
        return []
    # Folders may have any name, and one that is not UTF-8 would stop the database; /proc is read likewise.
    name = os.fsencode(cgroup.path).decode("utf-8", "replace")
    return [Reading(spec, value, (name,)) for spec, value in found if value is not None]


def _state_v2(host: Host, folder: str) -> list[tuple[MetricSpec, int | None]]:
    current = whole(host.read(f"{folder}/memory.current").strip())
    detail = table(host.read(f"{folder}/memory.stat"))
    events = table(host.read(f"{folder}/memory.events"))
    return [
        (CURRENT, current),
        (INACTIVE_FILE, whole(detail.get("inactive_file"))),
        (ACTIVE_FILE, whole(detail.get("active_file"))),
        (SLAB_RECLAIMABLE, whole(detail.get("slab_reclaimable"))),
        (SWAP_CURRENT, _number(host, f"{folder}/memory.swap.current")),
        (LIMIT_HITS, whole(events.get("max"))),
        (OOM_KILLS, whole(events.get("oom_kill"))),
    ]


def _state_v1(host: Host, folder: str) -> list[tuple[MetricSpec, int | None]]:
    current = whole(host.read(f"{folder}/memory.usage_in_bytes").strip())
    detail = table(host.read(f"{folder}/memory.stat"))
    both = _number(host, f"{folder}/memory.memsw.usage_in_bytes")
    return [
        (CURRENT, current),
        (INACTIVE_FILE, whole(detail.get("total_inactive_file"))),
        (ACTIVE_FILE, whole(detail.get("total_active_file"))),
        # Two reads, some time apart: the difference can come out a little below zero.
        (SWAP_CURRENT, None if both is None or current is None else max(both - current, 0)),
        (LIMIT_HITS, _number(host, f"{folder}/memory.failcnt")),
        (OOM_KILLS, whole(table(host.read(f"{folder}/memory.oom_control")).get("oom_kill"))),
    ]


def _number(host: Host, path: str) -> int | None:
    """Return the number in a file that not every kernel has."""
    try:
        return whole(host.read(path).strip())
    except NoData:
        return None
