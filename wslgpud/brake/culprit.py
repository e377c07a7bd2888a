"""Selects the job to pause: the smallest subtree of the process tree that accounts for the growth. Pure.

A job is a process and its descendants. The search descends from the top while a single child's subtree accounts for
nearly all of the growth. So a leak is found in its own process, and a build with many short-lived compilers in the
process that starts them. If the search ends at a program that is never paused, such as a shell, the job is the group of
its children with the same name.

It is paused only for what it has taken itself. Somebody whose jobs may not be paused can fill memory that no process is
charged for (a memfd, files in RAM, pipes, socket buffers, objects of the kernel) until next to nothing is left, and
hold it. Whatever job then grows last, however little and however innocently, accounts for all that was lost lately. So
it must have taken at least as much as has gone out of the brake's reach since the shortage began.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from wslgpud.brake.policy import resource_kind
from wslgpud.brake.process_tree import ProcessKey, ProcessTree, ScannedProcess
from wslgpud.model import Forecast, GpuProcess, GpuSample, Level
from wslgpud.risk.settings import RiskSettings

#: share of the lost headroom that processes must account for; otherwise it went elsewhere, for example into tmpfs
FOUND_SHARE: Final = 0.5
#: share of all processes' growth that one job must account for; below it no job is paused
JOB_SHARE: Final = 0.7
#: a worker belongs to the group if it grew by at least this share of the group's average growth; and a job that grew
#: earlier is still growing if it grew lately by at least this share of the growth of the job that grows now
GROWING_RATIO: Final = 0.1
#: processes of one job: neither a training nor a build has more
MAX_MEMBERS: Final = 1024
#: depth limit of the search
_DEEPEST: Final = 200
#: time between two scans: while memory is shrinking, and once half of it is used; and between two samples of a card
GROWING_SECONDS, HALF_FULL_SECONDS, CARD_SECONDS = 2.0, 15.0, 1.0
#: scans kept; longest and shortest window over which growth is measured
MAX_SCANS, MAX_SECONDS, MIN_SECONDS = 62, 60.0, 3.0
#: losses below this share of the resource are noise
NOISE_RATIO = RiskSettings().noise
#: share of a resource that is left when a shortage begins
BEGINS_RATIO = 0.5

#: why no job is paused; the ``reason`` of ``brake_spared``
NotPaused = Literal["nobody", "several", "protected", "user", "crowd", "unsure", "outside"]


class Job(NamedTuple):
    """The processes to pause, parents before children, and the tops of their subtrees (``roots``).

    ``growth_seconds`` is the time in which they grew by ``growth_bytes``; 0 if unknown.
    """

    members: tuple[ScannedProcess, ...]
    growth_bytes: int
    roots: tuple[ScannedProcess, ...]
    growth_seconds: float = 0.0


def filling_job(
    held: ResourceUse, users: Collection[int], ours: Collection[int], among: Collection[int] | None = None
) -> Job | NotPaused:
    """Return the job that fills a resource, or why no job is paused; ``ours`` are the pids of the daemon itself."""
    now = held.forecast

    def since(then: Baseline) -> Job | NotPaused:
        lost = then.left_bytes[now.resource] - now.headroom_bytes
        choice = growing_job(ProcessTree(held.processes, then.own_bytes, ours), users, lost, among)
        if choice == "nobody":
            # Only if private memory does not explain the loss: shared memory counts for every process that maps it.
            choice = growing_job(with_shared(then), users, lost, among)
        return choice._replace(growth_seconds=held.t - then.t) if isinstance(choice, Job) else choice

    def with_shared(then: Baseline) -> ProcessTree:
        return ProcessTree((one.with_shared() for one in held.processes), then.with_shared_bytes, ours)

    choice = since(held.before)
    if held.recent is not held.before:
        still = sum(map(with_shared(held.recent).growth_bytes, choice.members)) if isinstance(choice, Job) else 0
        choice = narrowed(choice, since(held.recent), still)
    if isinstance(choice, Job) and held.began is not None and not is_fair(choice, held, held.began, users):
        return "outside"
    return choice


def is_fair(job: Job, held: ResourceUse, began: ShortageStart, users: Collection[int]) -> bool:
    """Return whether a job has taken at least as much as has gone to nobody whose jobs may be paused.

    Of a daemon that starts in the middle of a shortage, all that is out of reach beyond half of the resource counts.
    """
    members = {process.key for process in job.members}

    def held_bytes(processes: Iterable[ScannedProcess], among: Collection[ProcessKey] | None = None) -> int:
        # Every process of a job maps the job's shared memory.
        own, shared = 0, defaultdict[tuple[int, str], int](int)
        for one in processes:
            if one.uid is not None and one.uid in users and (among is None or one.key in among):
                own += one.memory_bytes
                shared[one.uid, one.cgroup] = max(shared[one.uid, one.cgroup], one.shared_bytes)
        return own + sum(shared.values())

    before = held_bytes(began.processes)
    beyond = max(0, int(BEGINS_RATIO * held.forecast.capacity_bytes) - began.left_bytes - before)
    lost = began.left_bytes - held.forecast.headroom_bytes
    taken = held_bytes(held.processes, members) - held_bytes(began.processes, members)
    return taken >= beyond + lost - (held_bytes(held.processes) - before)


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

    @functools.cache
    def grown(process: ScannedProcess) -> int:
        return sum(growth.get(one.pid, 0) for one in tree.subtree(process))

    def enough(ones: Iterable[ScannedProcess]) -> bool:
        return sum(map(grown, ones)) >= max(JOB_SHARE * total_growth, FOUND_SHARE * lost_bytes)

    here: ScannedProcess | None = None
    children: Sequence[ScannedProcess] = [
        process for process in tree.by_pid.values() if process.parent not in tree.by_pid
    ]
    for _ in range(_DEEPEST):
        best = max(children, key=grown, default=None)
        if best is None or not enough([best]):
            break
        here, children = best, tree.children.get(best.pid, ())
    if here is None:
        return "several"
    # Not its children, if it grew itself.
    passable = not tree.may_be_paused(here, users) and growth.get(here.pid, 0) < JOB_SHARE * total_growth
    tops = _workers(children, grown) if passable else [here]
    chosen = [process for process in tops if tree.may_be_paused(process, users)]
    if not enough(tops):
        return "several"
    if not enough(chosen):
        return _why_not(next(process for process in tops if process not in chosen), users)
    return _job(tree, chosen, users, growth)


def _workers(children: Iterable[ScannedProcess], grown: Callable[[ScannedProcess], int]) -> Sequence[ScannedProcess]:
    """Return those of one program that grew most together; one that does not grow is no worker of theirs."""
    by_program: defaultdict[tuple[str, str], list[ScannedProcess]] = defaultdict(list)
    for child in children:
        by_program[child.name, child.program].append(child)
    group = max(by_program.values(), key=lambda ones: sum(map(grown, ones)), default=[])
    min_growth = GROWING_RATIO * sum(map(grown, group)) / max(1, len(group))
    return [process for process in group if grown(process) >= min_growth]


def narrowed(overall: Job | NotPaused, lately: Job | NotPaused, overall_lately_bytes: int) -> Job | NotPaused:
    """Return the job to pause, given the job found over the whole window and the one found over its last seconds.

    If only a part of a job still grows, only that part is paused. If the job of the whole window has stopped growing
    (``overall_lately_bytes`` is its growth in the last seconds), the one that grows now is chosen: a program that has
    finished loading a large model is not responsible for a leak beside it. If several jobs grew, or none accounts for
    all that was lost, the one that still grows is chosen.
    """
    if not isinstance(lately, Job):
        return overall
    if isinstance(overall, Job):
        part = {process.pid for process in lately.members} <= {process.pid for process in overall.members}
        stopped = overall_lately_bytes < GROWING_RATIO * lately.growth_bytes
        return lately if part or stopped else overall
    return lately if overall in ("several", "nobody") else overall


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


def _job(
    tree: ProcessTree, roots: Sequence[ScannedProcess], users: Collection[int], growth: Mapping[int, int]
) -> Job | NotPaused:
    members = tree.members(roots, users)
    if len(members) > MAX_MEMBERS:
        return "crowd"
    if not members:  # all were already stopped by a user, so it cannot be the one that grows
        return "nobody"
    return Job(members, sum(growth.get(process.pid, 0) for process in members), tuple(roots))


class Baseline(NamedTuple):
    """An earlier moment: headroom of each resource, memory of each process without and with shared memory."""

    t: float
    left_bytes: Mapping[str, int]
    own_bytes: Mapping[ProcessKey, int]
    with_shared_bytes: Mapping[ProcessKey, int]


class ShortageStart(NamedTuple):
    """The beginning of a shortage, when half was left or at the last look before: what was left, who held how much."""

    left_bytes: int
    processes: Collection[ScannedProcess]


class ResourceUse(NamedTuple):
    """A resource now, what processes hold of it, and the moments to compare with; times are monotonic.

    ``before`` is the last one from before the forecast's window, else the oldest; ``recent`` the last one since which
    headroom fell by more than noise, if that is later. Since then a program that took its share earlier has stopped
    growing, and one that allocates in blocks seconds apart (a caching allocator) has not.
    """

    t: float
    forecast: Forecast
    processes: Collection[ScannedProcess]
    before: Baseline
    recent: Baseline
    began: ShortageStart | None = None


def compared(t: float, forecast: Forecast, moments: Sequence[tuple[float, int]]) -> tuple[int, int] | None:
    """Return which moments (time, headroom; oldest first) are ``before`` and ``recent``; None: there are none yet."""
    earlier = [(number, t - then, left) for number, (then, left) in enumerate(moments) if then < t][::-1]
    if not earlier:
        return None
    window = min(MAX_SECONDS, max(MIN_SECONDS, forecast.window_seconds or MIN_SECONDS))
    enough = forecast.headroom_bytes + NOISE_RATIO * forecast.capacity_bytes
    before = next((number for number, age, _ in earlier if age >= window), earlier[-1][0])
    recent = next((number for number, age, left in earlier if age >= MIN_SECONDS and left >= enough), before)
    return before, max(before, recent)


class GrowthHistory:
    """The most recent scans, for RAM and cgroups; ``users`` are those whose jobs may be paused."""

    def __init__(self, users: Collection[int]) -> None:
        self._users = users
        self._scans: deque[Baseline] = deque(maxlen=MAX_SCANS)
        self._last_t = -math.inf
        #: where a shortage of RAM begins
        self._began: ShortageStart | None = None

    def is_due(self, t: float, now: Mapping[str, Forecast]) -> bool:
        """Return whether it is time for a scan."""
        watched = [f for name, f in now.items() if resource_kind(name) != "gpu" and f.capacity_bytes > 0]
        growing = any(f.level >= Level.INFO for f in watched)
        half_full = any(f.headroom_bytes < f.capacity_bytes / 2 for f in watched)
        seconds = GROWING_SECONDS if growing else HALF_FULL_SECONDS
        return (growing or half_full) and (not self._scans or t - self._scans[-1].t >= seconds)

    def add(self, t: float, processes: Collection[ScannedProcess], now: Mapping[str, Forecast]) -> None:
        """Record a scan. Without one for a minute, all was calm: the next shortage begins after that."""
        ram, stale = now.get("ram"), t - self._last_t > MAX_SECONDS
        if ram is not None and (self._began is None or stale or is_roomy(ram)):
            self._began = ShortageStart(ram.headroom_bytes, [one for one in processes if one.uid in self._users])
        own_bytes = {one.key: one.memory_bytes for one in processes}
        with_shared_bytes = {one.key: one.memory_bytes + one.shared_bytes for one in processes}
        left_bytes = {name: forecast.headroom_bytes for name, forecast in now.items()}
        self._scans.append(Baseline(t, left_bytes, own_bytes, with_shared_bytes))
        self._last_t = t

    def clear(self) -> None:
        self._scans.clear()

    def measured(self, t: float, forecast: Forecast, processes: Collection[ScannedProcess]) -> ResourceUse | None:
        """Return what has grown in RAM or a cgroup, given a scan; None if there is no earlier one."""
        resource = forecast.resource
        known = [one for one in self._scans if resource in one.left_bytes]
        moments = compared(t, forecast, [(one.t, one.left_bytes[resource]) for one in known])
        if moments is None:
            return None
        before, recent = (known[number] for number in moments)
        return ResourceUse(t, forecast, processes, before, recent, self._began if resource == "ram" else None)


class _CardSample(NamedTuple):
    """A GPU at time ``t`` (monotonic): its headroom, and VRAM by pid as its driver and as programs report it.

    ``by_windows`` is whether Windows reports it, which may begin and end at any time.
    """

    t: float
    left_bytes: int
    by_driver: Mapping[int, int]
    by_programs: Mapping[int, int]
    by_windows: bool


class CardHistory:
    """The last minute of a GPU, as far as its driver or the programs themselves report VRAM by process."""

    def __init__(self, users: Collection[int]) -> None:
        self._users = users
        self._samples: deque[_CardSample] = deque(maxlen=MAX_SCANS)
        self._began: _CardSample | None = None

    def add(self, t: float, gpu: GpuSample, forecast: Forecast) -> None:
        """Record a sample; one in each second is kept."""
        by_driver, by_programs = _vram(gpu.processes), _vram(gpu.self_reported)
        self._now = _CardSample(t, forecast.headroom_bytes, by_driver, by_programs, gpu.demoted_bytes is not None)
        if self._samples and self._samples[-1].by_windows != self._now.by_windows:
            self._samples.clear()  # what was not known was not nothing
            self._began = None
        if self._began is None or is_roomy(forecast):
            self._began = self._now
        if not self._samples or t - self._samples[-1].t >= CARD_SECONDS:
            self._samples.append(self._now)

    def clear(self) -> None:
        """Forget all but the current sample."""
        self._samples.clear()
        self._samples.append(self._now)

    def measured(self, t: float, forecast: Forecast, processes: Collection[ScannedProcess]) -> ResourceUse | None:
        """Return what has grown on the GPU, given the processes; None if there is no earlier sample."""
        moments = compared(t, forecast, [(one.t, one.left_bytes) for one in self._samples])
        if moments is None or self._began is None:
            return None

        def held(then: _CardSample) -> list[ScannedProcess]:
            # Otherwise another user's program that claims to grow could keep any job from being found.
            reported = {one.pid: then.by_programs.get(one.pid, 0) for one in processes if one.uid in self._users}
            sizes = {**reported, **then.by_driver}
            return [one._replace(memory_bytes=sizes.get(one.pid, 0), shared_bytes=0) for one in processes]

        def baseline(then: _CardSample) -> Baseline:
            sizes = {one.key: one.memory_bytes for one in held(then)}
            return Baseline(then.t, {forecast.resource: then.left_bytes}, sizes, sizes)

        before, recent = (self._samples[number] for number in moments)
        began = ShortageStart(self._began.left_bytes, held(self._began))
        now, then = held(self._now), baseline(before)
        return ResourceUse(t, forecast, now, then, then if recent is before else baseline(recent), began)


def is_roomy(forecast: Forecast) -> bool:
    """Return whether so much is left that no shortage has begun."""
    return forecast.headroom_bytes > BEGINS_RATIO * forecast.capacity_bytes


def _vram(processes: Iterable[GpuProcess]) -> dict[int, int]:
    """Return the VRAM of each process that has a pid here, not in another container or VM."""
    return {process.pid: process.used_bytes for process in processes if process.pid and process.used_bytes is not None}
