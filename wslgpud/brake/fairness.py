"""Whether it is fair to pause a job: memory taken by nobody in the brake's reach counts against pausing anybody. Pure.

Somebody whose jobs the brake may not pause can fill memory that no process is charged for (a memfd, files in RAM,
pipes, socket buffers, objects of the kernel) until next to nothing is left, and hold it. Whatever job then grows last,
however little and however innocently, accounts for all that was lost lately, and would be paused for as long as the
other holds on. So a job is paused only if it has taken at least as much as has gone out of reach since the shortage
began: since half of the memory was left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, NamedTuple

from wslgpud.brake.process_tree import ProcessKey, ProcessTree, ScannedProcess

#: share of a resource that is left when a shortage begins
BEGINS_RATIO: Final = 0.5
#: who took memory out of reach: programs of other users; files in RAM; the kernel's objects (slab); or no known one:
#: pipes, socket buffers, drivers
Taker = Literal["users", "files", "slab", "kernel"]


class Pools(NamedTuple):
    """Memory, in bytes, that is charged to no process: files in RAM (also mapped ones), and unreclaimable slab.

    ``job_files`` are those files in RAM that the users' cgroups are charged for.
    """

    files: int = 0
    slab: int = 0
    job_files: Mapping[str, int] = {}


class ShortageStart(NamedTuple):
    """RAM when its shortage began, at ``t`` (monotonic).

    ``own_bytes`` and ``shared_bytes`` are those of each process, ``held_bytes`` what the users' jobs held together.
    ``beyond_bytes`` is what was out of reach by then beyond half of the memory: nobody saw it go.
    """

    t: float
    left_bytes: int
    own_bytes: Mapping[ProcessKey, int]
    shared_bytes: Mapping[ProcessKey, int]
    held_bytes: int
    beyond_bytes: int
    pools: Pools


def held_bytes(processes: Iterable[ScannedProcess], users: Collection[int], pools: Pools) -> int:
    """Return the memory that these users' jobs hold together.

    Every process of a job maps the job's shared memory: of each user's processes the one that maps most counts, or the
    files that the users' cgroups are charged for, if that is more.
    """
    own, shared = 0, defaultdict[int, int](int)
    for process in processes:
        if process.uid is not None and process.uid in users:
            own += process.memory_bytes
            shared[process.uid] = max(shared[process.uid], process.shared_bytes)
    return own + max(sum(shared.values()), sum(pools.job_files.values()))


def begun(
    t: float, sizes: tuple[int, int], processes: Collection[ScannedProcess], users: Collection[int], pools: Pools
) -> ShortageStart:
    """Return the state that a shortage is measured from; ``sizes`` are what is left and the capacity, in bytes."""
    left_bytes, capacity_bytes = sizes
    held = held_bytes(processes, users, pools)
    beyond = max(0, int(BEGINS_RATIO * capacity_bytes) - left_bytes - held)
    own = {process.key: process.memory_bytes for process in processes}
    shared = {process.key: process.shared_bytes for process in processes}
    return ShortageStart(t, left_bytes, own, shared, held, beyond, pools)


def outside_bytes(
    since: ShortageStart, lost_bytes: int, processes: Iterable[ScannedProcess], users: Collection[int], pools: Pools
) -> int:
    """Return how much of ``lost_bytes`` of headroom since then went to nobody whose jobs may be paused."""
    taken = held_bytes(processes, users, pools) - since.held_bytes
    return max(0, since.beyond_bytes + lost_bytes - taken)


def taken_bytes(
    since: ShortageStart, tree: ProcessTree, members: Collection[ScannedProcess], files_of: str, pools: Pools
) -> int:
    """Return what a job has taken since then; ``tree`` has the growth of each process's own memory since then.

    ``files_of`` is the job's cgroup where it fills files in RAM, else empty.
    """
    mapped = max((process.shared_bytes - since.shared_bytes.get(process.key, 0) for process in members), default=0)
    files = pools.job_files.get(files_of, 0) - since.pools.job_files.get(files_of, 0)
    return sum(map(tree.growth_bytes, members)) + max(0, mapped, files)


def taker(
    since: ShortageStart, outside: int, processes: Iterable[ScannedProcess], users: Collection[int], pools: Pools
) -> Taker:
    """Return who took most of what went out of reach."""
    others = (process for process in processes if process.uid not in users)
    grown: dict[Taker, int] = {
        "users": sum(max(0, process.memory_bytes - since.own_bytes.get(process.key, 0)) for process in others),
        "files": pools.files - since.pools.files,
        "slab": pools.slab - since.pools.slab,
    }
    largest = max(grown, key=lambda name: grown[name])
    return largest if grown[largest] >= outside / 2 else "kernel"
