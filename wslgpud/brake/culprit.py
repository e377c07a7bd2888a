"""Which job is paused: the smallest part of the tree of processes that grows, if it may be paused. Pure.

A job is a process and all below it. The search begins at the top: as long as one child with all below it accounts for
nearly all of the growth, that child is looked at in turn. So a leak is found in its own process, a build of many short
compilers in the one that starts them; and where that is one that is never paused, such as a shell, the job is
its children of one name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from wslgpud.brake.process_tree import ProcessTree, ScannedProcess

#: share of what was lost that programs must have taken: else it went elsewhere, into files in RAM say
FOUND_SHARE: Final = 0.5
#: share of all growth that one part of the tree accounts for, or nobody is paused
JOB_SHARE: Final = 0.7
#: a worker has grown by this share of what those of its name have grown by on average; and a job that grew before
#: still grows if it took this share of what the one that grows now did
GROWING_RATIO: Final = 0.1
#: less than this share of the resource is lost by chance
BREATH_RATIO: Final = 0.012
#: processes of one job; a program that has more of them is not one that trains or builds
MOST_MEMBERS: Final = 1024
#: levels of the tree that are looked down; parents and children of a loop are never looked at twice
_DEEPEST: Final = 200

#: why nobody is paused
NotPaused = Literal["nobody", "several", "protected", "user", "crowd"]


class Job(NamedTuple):
    """What is paused: its processes, parents before their children; ``lead`` has growth most."""

    members: tuple[ScannedProcess, ...]
    lead: ScannedProcess
    growth_bytes: int
    #: the members that no other member has started
    roots: tuple[ScannedProcess, ...]


def growing_job(
    tree: ProcessTree, users: Collection[int], lost_bytes: int, among: Collection[int] | None = None
) -> Job | NotPaused:
    """Return the job that has taken what was lost of RAM or of a limited group, or why nobody is paused.

    It accounts for ``JOB_SHARE`` of what all programs have taken, and for ``FOUND_SHARE`` of what was lost. ``among``
    are the pids that count, those in the group; without it all do.
    """
    counted = [one for one in tree.by_pid.values() if among is None or one.pid in among]
    growth = {one.pid: tree.growth_bytes(one) for one in counted}
    whole = sum(growth.values())
    if lost_bytes <= 0 or whole < FOUND_SHARE * lost_bytes:
        return "nobody"
    sums = _sums(tree, growth)

    def enough(ones: Iterable[ScannedProcess]) -> bool:
        taken = sum(sums[one.pid] for one in ones)
        return taken >= JOB_SHARE * whole and taken >= FOUND_SHARE * lost_bytes

    here: ScannedProcess | None = None
    children: Sequence[ScannedProcess] = [one for one in tree.by_pid.values() if one.parent not in tree.by_pid]
    for _ in range(_DEEPEST):
        best = max(children, key=lambda one: sums[one.pid], default=None)
        if best is None or not enough([best]):
            break
        here, children = best, tree.children.get(best.pid, ())
    if here is not None and tree.may_be_paused(here, users):
        return _job(tree, [here], users, growth)
    if here is not None and growth.get(here.pid, 0) >= JOB_SHARE * whole:
        return _why_not(here, users)
    alike: defaultdict[tuple[str, str], list[ScannedProcess]] = defaultdict(list)
    for child in children:
        alike[child.name, child.program].append(child)
    group = max(alike.values(), key=lambda ones: sum(sums[one.pid] for one in ones), default=[])
    # One of the same name that does not grow is no worker of theirs.
    least = GROWING_RATIO * sum(sums[one.pid] for one in group) / max(1, len(group))
    workers = [one for one in group if sums[one.pid] >= least]
    if here is None or not enough(workers):
        return "several"
    chosen = [one for one in workers if tree.may_be_paused(one, users)]
    return _job(tree, chosen, users, growth) if enough(chosen) else _why_not(workers[0], users)


def narrowed(over_all: Job | NotPaused, lately: Job | NotPaused, over_all_lately_bytes: int = 0) -> Job | NotPaused:
    """Return the job to pause, given which one grew over the whole growth, and which one over its last seconds.

    A job of which only a part still grows is that part. One that has stopped growing, which took
    ``over_all_lately_bytes`` in those seconds, is left alone for the one that took over: a program that has just loaded
    a large model is innocent of the leak beside it. Where several have grown, the one that still does is the job.
    """
    if not isinstance(lately, Job):
        return over_all
    if isinstance(over_all, Job):
        part = {one.pid for one in lately.members} <= {one.pid for one in over_all.members}
        stopped = over_all_lately_bytes < GROWING_RATIO * lately.growth_bytes
        return lately if part or stopped else over_all
    return lately if over_all == "several" else over_all


def _why_not(one: ScannedProcess, users: Collection[int]) -> NotPaused:
    return "protected" if one.uid in users else "user"


def job_of_pid(tree: ProcessTree, users: Collection[int], pid: int) -> Job | NotPaused:
    """Return the job of a process that is known to take the resource, as a card's driver tells."""
    root = tree.by_pid.get(pid)
    if root is None:
        return "nobody"
    if not tree.may_be_paused(root, users):
        return _why_not(root, users)
    return _job(tree, [root], users, {pid: 0})


def _job(
    tree: ProcessTree, roots: Sequence[ScannedProcess], users: Collection[int], growth: Mapping[int, int]
) -> Job | NotPaused:
    members = tree.members(roots, users)
    if len(members) > MOST_MEMBERS:
        return "crowd"
    if not members:  # stopped by somebody else: then it is not the one that grows
        return "nobody"
    lead = max(members, key=lambda one: growth.get(one.pid, 0))
    return Job(members, lead, sum(growth.get(one.pid, 0) for one in members), tuple(roots))


def _sums(tree: ProcessTree, growth: Mapping[int, int]) -> dict[int, int]:
    """Return for each process by how much it and all below it have growth."""
    sums = dict.fromkeys(tree.by_pid, 0)
    for first, size in growth.items():
        pid, seen = first, set[int]()
        while pid in tree.by_pid and pid not in seen and len(seen) < _DEEPEST:
            seen.add(pid)
            sums[pid] += size
            pid = tree.by_pid[pid].parent
    return sums
