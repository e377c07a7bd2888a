"""What processes held at earlier moments, so that growth is known at once when a job has to be paused."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from wslgpud.brake.policy import resource_kind
from wslgpud.brake.process_tree import ProcessKey, ScannedProcess
from wslgpud.model import Forecast, GpuProcess, GpuSample, Level
from wslgpud.risk.settings import RiskSettings

#: time between two scans: while memory is shrinking, and once half of it is used; and between two samples of a card
GROWING_SECONDS, HALF_FULL_SECONDS, CARD_SECONDS = 2.0, 15.0, 1.0
#: scans kept; longest and shortest window over which growth is measured
MAX_SCANS, MAX_SECONDS, MIN_SECONDS = 62, 60.0, 3.0
#: losses below this share of the resource are noise
NOISE_RATIO = RiskSettings().noise
#: share of a resource that is left when a shortage begins
BEGINS_RATIO = 0.5


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
        by_driver, by_programs = _vram(gpu.processes), _vram(gpu.told)
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
            told = {one.pid: then.by_programs.get(one.pid, 0) for one in processes if one.uid in self._users}
            sizes = {**told, **then.by_driver}
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
