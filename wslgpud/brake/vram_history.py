"""VRAM of each process at earlier samples, so that the job that fills a GPU is found like one that fills RAM."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from wslgpud.brake.culprit import NOISE_RATIO, Job, NotPaused, growing_job, narrowed
from wslgpud.brake.fairness import BEGINS_RATIO
from wslgpud.brake.growth_history import MAX_SECONDS, MIN_SECONDS, window_seconds
from wslgpud.brake.process_tree import ProcessTree, ScannedProcess
from wslgpud.model import Forecast, GpuProcess, GpuSample

#: time between two kept samples, and their number
EVERY_SECONDS = 1.0
MAX_SAMPLES = int(MAX_SECONDS / EVERY_SECONDS) + 2


class _Held(NamedTuple):
    """A GPU at time ``t`` (monotonic): its headroom, and VRAM by pid as its driver and as programs report it.

    ``measured`` is whether Windows tells it, which may begin and end at any time.
    """

    t: float
    left_bytes: int
    by_driver: Mapping[int, int]
    by_programs: Mapping[int, int]
    measured: bool

    def by_pid(self, believed: Collection[int]) -> Mapping[int, int]:
        """Return the VRAM of each process in bytes; what a program reports itself only for these pids."""
        self_reported = {pid: size for pid, size in self.by_programs.items() if pid in believed}
        return {**self_reported, **self.by_driver}


class VramHistory:
    """The last minute of each GPU, as far as its driver or the programs themselves report VRAM by process."""

    def __init__(self) -> None:
        self._kept: dict[str, deque[_Held]] = {}
        self._now: dict[str, _Held] = {}
        #: by GPU, when half of it was left (see ``fairness``)
        self._began: dict[str, _Held] = {}

    def add(self, t: float, gpus: Iterable[GpuSample], now: Mapping[str, Forecast]) -> None:
        """Record a sample; GPUs without a forecast are forgotten."""
        by_resource = {f"gpu{gpu.index}": gpu for gpu in gpus if f"gpu{gpu.index}" in now}
        self._now = {
            name: _Held(
                t, now[name].headroom_bytes, _vram(gpu.processes), _vram(gpu.told), gpu.demoted_bytes is not None
            )
            for name, gpu in by_resource.items()
        }
        self._kept = {name: self._kept.get(name, deque(maxlen=MAX_SAMPLES)) for name in self._now}
        self._began = {name: self._began.get(name, held) for name, held in self._now.items()}
        for name, held in self._now.items():
            if held.left_bytes > BEGINS_RATIO * now[name].capacity_bytes:
                self._began[name] = held
            samples = self._kept[name]
            if samples and samples[-1].measured != held.measured:  # what was not known was not nothing
                samples.clear()
                self._began[name] = held
            if not samples or t - samples[-1].t >= EVERY_SECONDS:
                samples.append(held)

    def clear(self, resource: str) -> None:
        """Forget all but a GPU's current sample."""
        if resource in self._kept:
            self._kept[resource].clear()
            self._kept[resource].append(self._now[resource])

    def growing_job(
        self, forecast: Forecast, processes: Collection[ScannedProcess], users: Collection[int], ours: Collection[int]
    ) -> Job | NotPaused | None:
        """Return the job that fills a GPU, or why no job is paused; None if there is no earlier sample.

        Growth is measured over the forecast's window, and over the shortest time in which headroom fell by more than
        noise. In that, a program that took its share earlier has stopped growing, and one that allocates in blocks
        seconds apart (a caching allocator) has not.
        """
        now, kept = self._now.get(forecast.resource), self._kept.get(forecast.resource, ())
        samples = [one for one in reversed(kept) if now is not None and one.t < now.t]
        if now is None or not samples:
            return None
        window, noise = window_seconds(forecast), NOISE_RATIO * forecast.capacity_bytes
        before = next((one for one in samples if now.t - one.t >= window), samples[-1])
        lost = (one for one in samples if now.t - one.t >= MIN_SECONDS and one.left_bytes - now.left_bytes >= noise)
        recent = next(lost, samples[-1])

        # Otherwise another user's program that claims to grow could keep any job from being found.
        believed = {one.pid for one in processes if one.uid in users}
        size = now.by_pid(believed)

        def since(then: _Held) -> tuple[ProcessTree, Job | NotPaused]:
            earlier = then.by_pid(believed)
            held = (one._replace(memory_bytes=size.get(one.pid, 0)) for one in processes)
            tree = ProcessTree(held, {one.key: earlier.get(one.pid, 0) for one in processes}, ours)
            choice = growing_job(tree, users, then.left_bytes - now.left_bytes)
            return tree, choice._replace(growth_seconds=now.t - then.t) if isinstance(choice, Job) else choice

        (_, over_all), (tree, lately) = since(before), since(recent)
        still = sum(map(tree.growth_bytes, over_all.members)) if isinstance(over_all, Job) else 0
        choice = narrowed(over_all, lately, still)
        if not isinstance(choice, Job):
            return choice
        if self._outside_bytes(forecast, now, believed) > self._taken_bytes(forecast, size, choice):
            return "outside"
        return choice

    def _outside_bytes(self, forecast: Forecast, now: _Held, believed: Collection[int]) -> int:
        """Return how much of a GPU has gone to nobody whose jobs may be paused since half of it was left."""
        began = self._began[forecast.resource]
        held, held_now = (sum(one.by_pid(believed).get(pid, 0) for pid in believed) for one in (began, now))
        beyond = max(0, int(BEGINS_RATIO * forecast.capacity_bytes) - began.left_bytes - held)
        return beyond + began.left_bytes - now.left_bytes - (held_now - held)

    def _taken_bytes(self, forecast: Forecast, size: Mapping[int, int], job: Job) -> int:
        earlier = self._began[forecast.resource].by_pid([process.pid for process in job.members])
        return sum(size.get(process.pid, 0) - earlier.get(process.pid, 0) for process in job.members)


def _vram(processes: Iterable[GpuProcess]) -> dict[int, int]:
    """Return the VRAM of each process that has a pid here, not in another container or VM."""
    return {process.pid: process.used_bytes for process in processes if process.pid and process.used_bytes is not None}
