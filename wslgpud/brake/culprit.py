"""Selects the job to pause: the smallest subtree of the process tree that accounts for the growth. Pure.

A job is a process and its descendants. The search descends from the top while a single child's subtree accounts for
nearly all of the growth. So a leak is found in its own process, and a build with many short-lived compilers in the
process that starts them. If the search ends at a program that is never paused, such as a shell, the job is the group of
its children with the same name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from wslgpud.brake.process_tree import ProcessTree, ScannedProcess

#: share of the lost headroom that processes must account for; otherwise it went elsewhere, for example into tmpfs
FOUND_SHARE: Final = 0.5
#: The loss of headroom per byte of growth on zram. With pages that compress to two thirds, making room for one takes
#: three out of the free swap, while MemAvailable stays as it is.
ZRAM_LOSS_RATIO: Final = 3.0
#: share of all processes' growth that one job must account for; below it no job is paused
JOB_SHARE: Final = 0.7
#: a worker belongs to the group if it grew by at least this share of the group's average growth; and a job that grew
#: earlier is still growing if it grew lately by at least this share of the growth of the job that grows now
GROWING_RATIO: Final = 0.1
#: losses below this share of the resource are noise
NOISE_RATIO: Final = 0.012
#: processes of one job: neither a training nor a build has more
MAX_MEMBERS: Final = 1024
#: depth limit: a scan is not atomic, so a reused pid can make its parents form a loop
_DEEPEST: Final = 200

#: why no job is paused; the ``reason`` of ``brake_spared``
NotPaused = Literal["nobody", "several", "protected", "user", "crowd", "unsure", "outside"]


class Job(NamedTuple):
    """The processes to pause, parents before children, and the tops of their subtrees (``roots``).

    ``growth_seconds`` is the time in which they grew by ``growth_bytes``; 0 if unknown. ``files_of`` is their cgroup if
    they fill files in RAM.
    """

    members: tuple[ScannedProcess, ...]
    growth_bytes: int
    roots: tuple[ScannedProcess, ...]
    growth_seconds: float = 0.0
    files_of: str = ""


def growing_job(
    tree: ProcessTree, users: Collection[int], lost_bytes: int, among: Collection[int] | None = None
) -> Job | NotPaused:
    """Return the job responsible for ``lost_bytes`` of headroom of RAM or of a cgroup, or why no job is paused.

    It accounts for at least ``JOB_SHARE`` of all processes' growth and ``FOUND_SHARE`` of the loss. ``among`` restricts
    the processes counted to these pids (a cgroup's).
    """
    counted = [process for process in tree.by_pid.values() if among is None or process.pid in among]
    growth = {process.pid: tree.growth_bytes(process) for process in counted}
    total_growth = sum(growth.values())
    if lost_bytes <= 0 or total_growth < FOUND_SHARE * lost_bytes:
        return "nobody"
    sums = _sums(tree, growth)

    def enough(ones: Iterable[ScannedProcess]) -> bool:
        taken = sum(sums[process.pid] for process in ones)
        return taken >= JOB_SHARE * total_growth and taken >= FOUND_SHARE * lost_bytes

    here: ScannedProcess | None = None
    children: Sequence[ScannedProcess] = [
        process for process in tree.by_pid.values() if process.parent not in tree.by_pid
    ]
    for _ in range(_DEEPEST):
        best = max(children, key=lambda process: sums[process.pid], default=None)
        if best is None or not enough([best]):
            break
        here, children = best, tree.children.get(best.pid, ())
    if here is not None and tree.may_be_paused(here, users):
        return _job(tree, [here], users, growth)
    if here is not None and growth.get(here.pid, 0) >= JOB_SHARE * total_growth:
        return _why_not(here, users)
    by_program: defaultdict[tuple[str, str], list[ScannedProcess]] = defaultdict(list)
    for child in children:
        by_program[child.name, child.program].append(child)
    group = max(by_program.values(), key=lambda ones: sum(sums[process.pid] for process in ones), default=[])
    # A process of the same name that does not grow is no worker of this group.
    min_growth = GROWING_RATIO * sum(sums[process.pid] for process in group) / max(1, len(group))
    workers = [process for process in group if sums[process.pid] >= min_growth]
    if here is None or not enough(workers):
        return "several"
    chosen = [process for process in workers if tree.may_be_paused(process, users)]
    if enough(chosen):
        return _job(tree, chosen, users, growth)
    return _why_not(next(process for process in workers if process not in chosen), users)


def loss_to_explain(lost_bytes: int, swaps: str) -> int:
    """Return how much of a loss of RAM and swap the growth of processes has to explain, given ``/proc/swaps``."""
    return int(lost_bytes / ZRAM_LOSS_RATIO) if "/dev/zram" in swaps else lost_bytes


def narrowed(over_all: Job | NotPaused, lately: Job | NotPaused, over_all_lately_bytes: int) -> Job | NotPaused:
    """Return the job to pause, given the job found over the whole window and the one found over its last seconds.

    If only a part of a job still grows, only that part is paused. If the job of the whole window has stopped growing
    (``over_all_lately_bytes`` is its growth in the last seconds), the one that grows now is chosen: a program that has
    finished loading a large model is not responsible for a leak beside it. If several jobs grew, or none accounts for
    all that was lost, the one that still grows is chosen.
    """
    if not isinstance(lately, Job):
        return over_all
    if isinstance(over_all, Job):
        part = {process.pid for process in lately.members} <= {process.pid for process in over_all.members}
        stopped = over_all_lately_bytes < GROWING_RATIO * lately.growth_bytes
        return lately if part or stopped else over_all
    return lately if over_all in ("several", "nobody") else over_all


def _why_not(process: ScannedProcess, users: Collection[int]) -> NotPaused:
    return "protected" if process.uid in users else "user"


def job_of_pid(tree: ProcessTree, users: Collection[int], pid: int) -> Job | NotPaused:
    """Return the job of a process that is likely to fill a GPU, or why it is not paused."""
    root = tree.by_pid.get(pid)
    if root is None:
        return "nobody"
    if not tree.may_be_paused(root, users):
        return _why_not(root, users)
    return _job(tree, [root], users, {pid: 0})


def job_of_cgroup(tree: ProcessTree, users: Collection[int], cgroup: str, growth_bytes: int) -> Job | NotPaused:
    """Return the job of all processes in the cgroup whose files in RAM grew, or why it is not paused.

    Which of them wrote the files is not known, so all must be processes that may be paused: no shell, for instance.
    """
    inside = {process.pid: process for process in tree.by_pid.values() if process.cgroup == cgroup}
    for process in inside.values():
        if not tree.may_be_paused(process, users):
            return _why_not(process, users)
    choice = _job(tree, [process for process in inside.values() if process.parent not in inside], users, {})
    return choice._replace(growth_bytes=growth_bytes) if isinstance(choice, Job) else choice


def _job(
    tree: ProcessTree, roots: Sequence[ScannedProcess], users: Collection[int], growth: Mapping[int, int]
) -> Job | NotPaused:
    members = tree.members(roots, users)
    if len(members) > MAX_MEMBERS:
        return "crowd"
    if not members:  # all were already stopped by a user, so it cannot be the one that grows
        return "nobody"
    return Job(members, sum(growth.get(process.pid, 0) for process in members), tuple(roots))


def _sums(tree: ProcessTree, growth: Mapping[int, int]) -> dict[int, int]:
    """Return for each process the growth of its subtree in bytes."""
    sums = dict.fromkeys(tree.by_pid, 0)
    for first, size in growth.items():
        pid, seen = first, set[int]()
        while pid in tree.by_pid and pid not in seen and len(seen) < _DEEPEST:
            seen.add(pid)
            sums[pid] += size
            pid = tree.by_pid[pid].parent
    return sums
