"""A broad family of made-up machines: every scenario of the risk engine's promise, of many sizes and paces.

Each draw, by (scenario, seed), takes a machine (4 to 512 GB of RAM with swap or none, cards of 6 to 141 GB, a
limited group), a sampling interval of 0.1 to 10 s with jitter and lost samples, a time scale (from half full
to the end 15 s to 10 h; ``FAST`` ones less), the noise of a desktop, PSI or not, and per-process VRAM or not.
No threshold of the engine was fitted to single seeds: ``python -m tests.bench.bench_wide`` tells by scenario.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from wslgpud.model import (
    CgroupState,
    GpuProcess,
    GpuSample,
    Observation,
    ProcessSample,
    PsiState,
    RamState,
    SwapState,
    VmState,
)

GB = 10**9
RAM_GB = (4, 8, 12, 16, 32, 64, 128, 256, 512)
VRAM_GB = (6, 8, 12, 16, 24, 48, 80, 141)
INTERVALS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
MIN_SAMPLES, MAX_SAMPLES = 12, 5000
"""Within a growth; and in all."""
OTHER_END = 0.998


@dataclass
class Path:
    """Used share over time, drawn piece by piece; ``start`` is where a fatal growth begins."""

    points: list[tuple[float, float]]
    start: float = 0.0
    end: float | None = None
    tolerated: bool = False

    @property
    def t(self) -> float:
        return self.points[-1][0]

    @property
    def used(self) -> float:
        return self.points[-1][1]

    def to(self, seconds: float, used: float) -> Path:
        self.points.append((self.t + max(seconds, 1e-6), used))
        return self

    def rough(self, rng: random.Random, seconds: float, used: float, pieces: int = 24) -> Path:
        """Grow by pieces of uneven speed, as programs do."""
        speeds = [rng.gammavariate(3.0, 1.0) for _ in range(pieces)]
        first, total = self.used, sum(speeds)
        for i in range(pieces):
            self.to(seconds / pieces, first + (used - first) * sum(speeds[: i + 1]) / total)
        return self

    def grows_to_the_end(self) -> Path:
        self.start = self.t
        return self

    def at(self, t: float) -> float:
        i = bisect_right(self.points, (t, 2.0)) - 1
        if i < 0:
            return self.points[0][1]
        if i + 1 >= len(self.points):
            return self.used
        (t0, u0), (t1, u1) = self.points[i], self.points[i + 1]
        return u0 + (u1 - u0) * (t - t0) / (t1 - t0)


@dataclass
class Drawn:
    """One machine with what happens on it."""

    name: str
    seed: int
    resource: str
    path: Path
    pace: float
    interval: float
    psi: bool
    told: bool
    """Whether the driver tells of VRAM per process."""
    capacity: float
    swap_share: float
    noise: float
    pressure: float
    lost: float
    gaps: list[tuple[float, float, bool]] = field(default_factory=list)
    cards: int = 1
    group_kind: str = "process"

    @property
    def event(self) -> float | None:
        if self.path.end is None:
            return None
        before = (0.0, 0.0)
        for t, used in self.path.points:
            if used >= self.path.end:
                return before[0] + (t - before[0]) * (self.path.end - before[1]) / (used - before[1])
            before = (t, used)
        return None

    @property
    def onset(self) -> float:
        half = next((t for t, used in self.path.points if t > self.path.start and used >= 0.5), 0.0)
        before = [(t, u) for t, u in self.path.points if t < half]
        if before and before[-1][1] < 0.5:
            (t0, u0), u1 = before[-1], self.path.at(half)
            half = t0 + (half - t0) * (0.5 - u0) / max(1e-9, u1 - u0)
        return max(self.path.start, half)

    def truth(self) -> dict[str, object]:
        event = self.event
        told = [] if event is None else [{"t": event, "resource": self.resource, "kind": "oom"}]
        return {
            "name": f"{self.name}-{self.seed}",
            "tolerated": self.path.tolerated,
            "events": told,
            "onset": self.onset,
            "verdict": "safe" if event is None else "oom",
        }

    def observations(self) -> Iterator[Observation]:
        rng = random.Random(self.seed)
        event = self.event
        end = self.path.t if event is None else event
        t, drift, stalls, full, blip = 0.0, 0.0, 0.0, 0.0, (0.0, 0.0)
        gaps, slept = list(self.gaps), False
        while t < end:
            keep = 0.5 ** (self.interval / 20.0)
            drift = keep * drift + rng.gauss(0.0, self.noise * (1 - keep * keep) ** 0.5)
            if rng.random() < self.interval / 240.0:
                blip = (t + rng.uniform(1, 6), rng.uniform(0, 3) * self.noise)
            used = self.path.at(t)
            share = used + (drift + (blip[1] if t < blip[0] else 0.0)) * min(1.0, 6 * (1 - used))
            share = min(OTHER_END, max(0.0, share))
            tight = max(0.0, share - 0.95 * (1 - self.swap_share)) if self.resource == "ram" else 0.0
            stalled = self.interval * min(0.9, self.pressure * min(1.0, 20 * tight)) * rng.uniform(0.5, 1.5)
            full += stalled * 1e6
            stalls += 250 * stalled
            if rng.random() >= self.lost:
                yield self._observe(t, share, int(full), int(stalls), slept)
                slept = False
            t += self.interval * rng.uniform(0.95, 1.08)
            if gaps and t >= gaps[0][0]:
                _, seconds, slept = gaps.pop(0)
                t += seconds

    def _observe(self, t: float, share: float, full: int, stalls: int, slept: bool) -> Observation:
        used = int(share * self.capacity)
        vm = VmState(10 * stalls, 0, stalls, 30 * stalls)
        psi = {"memory": PsiState(full * 2, full)} if self.psi else {}
        calm = RamState(int(32 * GB), int(20 * GB))
        if self.resource.startswith("gpu"):
            mine = int(self.resource[3:])
            total = int(self.capacity)
            gpus = tuple(
                GpuSample(
                    i,
                    f"GPU-{i}",
                    "card",
                    total,
                    used if i == mine else total // 5,
                    total - used if i == mine else total - total // 5,
                    processes=(GpuProcess(900 + i, "python3", used if self.told else None),),
                )
                for i in range(self.cards)
            )
            return Observation(t, calm, vm=vm, psi=psi, gpus=gpus, gap_expected=slept)
        if self.resource != "ram":
            group = CgroupState(self.resource[7:], int(self.capacity), used, inactive_file=0)
            return Observation(t, calm, vm=vm, psi=psi, cgroups=(group,), gap_expected=slept)
        swap_total = int(self.swap_share * self.capacity)
        total = int(self.capacity) - swap_total
        in_swap = min(swap_total, max(0, used - int(0.97 * total)))
        resident = min(total, used - in_swap)
        ram = RamState(total, total - resident, shmem=int(0.8 * resident))
        count = {"process": 1, "group": 6, "tmpfs": 0}[self.group_kind]
        procs = tuple(
            ProcessSample(4000 + i, 1, "python", int(0.9 * resident / count), in_swap // count) for i in range(count)
        )
        return Observation(t, ram, SwapState(swap_total, swap_total - in_swap), vm, psi, (), procs, gap_expected=slept)


Scenario = Callable[[random.Random, float, float], Path]
"""Draws a path from a pace (seconds from half full to the end) and the share at which it ends."""


def _base(rng: random.Random, low: float = 0.05, high: float = 0.4) -> Path:
    used = rng.uniform(low, high)
    return Path([(0.0, used), (rng.uniform(10, 60), used)])


def leak(rng, pace, end):
    path = _base(rng, high=0.6).grows_to_the_end()
    path.end = end
    return path.rough(rng, pace * 2 * (1 - path.used), 1.0)


def leak_in_a_straight_line(rng, pace, end):
    path = _base(rng).grows_to_the_end()
    path.end = end
    return path.to(pace * 2 * (1 - path.used), 1.0)


def leak_after_hours(rng, pace, end):
    path = _base(rng, 0.5, 0.88)
    path.to(rng.uniform(2, 20) * pace, path.used).grows_to_the_end()
    path.end = end
    return path.rough(rng, pace * 2 * (1 - path.used), 1.0)


def leak_under_a_saw(rng, pace, end):
    path = _base(rng, 0.05, 0.3).grows_to_the_end()
    height, teeth = rng.uniform(0.05, 0.25), rng.randint(8, 40)
    path.end = end
    floor, rise, period = path.used, (1.0 - path.used - height) / teeth, 2 * pace / teeth
    for _ in range(teeth + 8):
        path.to(0.85 * period, min(1.0, floor + height * rng.uniform(0.85, 1.0)))
        floor += rise
        path.to(0.15 * period, min(1.0, floor))
    return path


def stairs(rng, pace, end):
    path = _base(rng, 0.1, 0.35).grows_to_the_end()
    count, ratio = rng.randint(6, 14), rng.uniform(1.0, 1.35)
    path.end = end
    sizes = [ratio**i for i in range(count)]
    scale = (1.02 - path.used) / sum(sizes)
    dwell = 2 * pace / count
    for size in sizes:
        path.to(dwell * rng.uniform(0.75, 1.0), path.used)
        path.to(dwell * rng.uniform(0.02, 0.2), min(1.0, path.used + scale * size))
    return path


def build_too_many(rng, pace, end):
    """Compilers that each grow to their size and end; a wave of large ones comes in the middle."""
    return _compilers(rng, pace, end, fatal=True)


def _compilers(rng, pace, end, *, fatal):
    base = rng.uniform(0.08, 0.25)
    path = Path([(0.0, base), (20.0, base)])
    jobs = rng.randint(4, 24)
    each = ((1.15 if fatal else rng.uniform(0.5, 0.72)) - base) / jobs
    life = pace * 2
    dt, t = life / 40, 20.0
    ages = [-rng.uniform(0, 0.5) * life for _ in range(jobs)]
    sizes = [each * rng.uniform(0.1, 0.4) for _ in range(jobs)]
    lives = [life * rng.uniform(0.2, 0.6) for _ in range(jobs)]
    for step in range(160):
        large = step > 60
        t += dt
        for i in range(jobs):
            ages[i] += dt
            if ages[i] > lives[i]:
                ages[i] = 0.0
                lives[i] = life * rng.uniform(0.7, 1.2)
                sizes[i] = each * (rng.uniform(0.8, 1.1) if large else rng.uniform(0.1, 0.4))
        used = base + sum(
            size * min(1.0, max(0.0, age / whole)) for size, age, whole in zip(sizes, ages, lives, strict=True)
        )
        path.points.append((t, min(1.0, used)))
    top = max(used for _, used in path.points)
    if fatal:
        path.end, path.start = end, 20.0 + dt * 60
        path.to(life * 0.3, 1.0)
    path.tolerated = not fatal and top >= 0.78
    return path


def tmpfs(rng, pace, end):
    """Files of one size, one after the other, with pauses."""
    path = _base(rng).grows_to_the_end()
    files = rng.randint(15, 60)
    path.end = end
    step, each = 2 * pace * (1 - path.used) / files, (1.02 - path.used) / files
    for _ in range(files + 2):
        path.to(step * rng.uniform(0.2, 0.8), min(1.0, path.used + each))
        path.to(step * rng.uniform(0.1, 0.6), path.used)
    return path


def workers(rng, pace, end):
    """Many small ones that start at odd times."""
    path = _base(rng, 0.05, 0.2).grows_to_the_end()
    count = rng.randint(12, 60)
    path.end = end
    for _ in range(count + 3):
        path.to(2 * pace / count * rng.expovariate(1.0), path.used)
        path.to(
            pace / count * 0.3, min(1.0, path.used + (1.02 - path.used) / 6 if count < 8 else path.used + 0.85 / count)
        )
    return path.to(pace / count, 1.0)


def accelerating(rng, pace, end):
    path = _base(rng, 0.1, 0.35).grows_to_the_end()
    base, power, t = path.used, rng.uniform(1.3, 2.2), path.t
    path.end = end
    for i in range(1, 41):
        path.points.append((t + 2 * pace * i / 40, base + (1.0 - base) * (i / 40) ** power))
    return path


def leak_after_good_runs(rng, pace, end):
    """The same job ends well a few times; then one does not."""
    path, top = _base(rng, 0.05, 0.2), rng.uniform(0.45, 0.7)
    low = path.used
    for _ in range(rng.randint(1, 3)):
        path.rough(rng, pace, top * rng.uniform(0.95, 1.0)).to(0.3 * pace, top).to(2, low).to(0.5 * pace, low)
    path.grows_to_the_end()
    path.end = end
    return path.rough(rng, pace * 2 * (1 - low), 1.0)


def second_program(rng, pace, end):
    """One holds its share; a second one comes and grows into the rest."""
    path = _base(rng, 0.05, 0.1)
    path.to(1.0, rng.uniform(0.4, 0.7)).to(rng.uniform(30, 200), path.points[-1][1]).grows_to_the_end()
    path.end = end
    return path.rough(rng, pace * 2 * (1 - path.used), 1.0)


def leak_with_pauses(rng, pace, end):
    """Grows by day, rests by night."""
    path = _base(rng, 0.1, 0.3).grows_to_the_end()
    path.end = end
    for _ in range(30):
        if path.used >= 1.0:
            break
        path.rough(rng, 0.2 * pace, min(1.0, path.used + rng.uniform(0.06, 0.14)), 6)
        path.to(0.1 * pace * rng.uniform(0.2, 1.5), path.used)
    return path


FATAL: tuple[Scenario, ...] = (
    leak,
    leak_in_a_straight_line,
    leak_after_hours,
    leak_under_a_saw,
    stairs,
    build_too_many,
    tmpfs,
    workers,
    accelerating,
    leak_after_good_runs,
    second_program,
    leak_with_pauses,
)


def _stops(path: Path, top: float) -> Path:
    path.tolerated = top >= 0.78
    return path


def rise_that_stops(rng, pace, end):
    """A data set or model that is loaded in a straight line, and then no more."""
    path, top = _base(rng), rng.uniform(0.45, 0.93)
    path.to(pace * 2 * (top - path.used), top)
    return _stops(path.to(max(120.0, 3 * pace), top), top)


def rough_rise_that_stops(rng, pace, end):
    path, top = _base(rng), rng.uniform(0.45, 0.93)
    path.rough(rng, pace * 2 * (top - path.used), top)
    return _stops(path.to(max(120.0, 3 * pace), top), top)


def warming_cache(rng, pace, end):
    """Fast first, ever slower, then flat."""
    path, top = _base(rng, 0.05, 0.3), rng.uniform(0.5, 0.93)
    base, t = path.used, path.t
    for i in range(1, 61):
        path.points.append((t + pace * i / 12, top - (top - base) * 2.718 ** (-i / 9)))
    return _stops(path.to(pace, top), top)


def preallocation(rng, pace, end):
    path, top = _base(rng, 0.03, 0.12), rng.uniform(0.72, 0.95)
    if rng.random() < 0.4:  # the weights first
        path.rough(rng, rng.uniform(3, 40), rng.uniform(0.2, 0.5), 12).to(rng.uniform(2, 20), path.points[-1][1])
    path.to(rng.uniform(0.1, 0.6), top)
    return path.to(max(300.0, 2 * pace), top)


def saw(rng, pace, end):
    path = _base(rng, 0.1, 0.4)
    low, top = path.used, rng.uniform(0.5, 0.76)
    for _ in range(rng.randint(6, 14)):
        path.rough(rng, pace * rng.uniform(0.6, 1.2), top * rng.uniform(0.92, 1.0), 6)
        path.to(0.05 * pace, low * rng.uniform(0.9, 1.1))
    return path


def checkpoints(rng, pace, end):
    """A plateau, and now and then a copy of the weights for seconds."""
    path, level = _base(rng, 0.03, 0.12), rng.uniform(0.45, 0.7)
    path.to(rng.uniform(0.3, 8.0), level)
    height = rng.uniform(0.08, 0.2)
    for _ in range(rng.randint(4, 10)):
        path.to(rng.uniform(0.5, 1.5) * max(20.0, pace), level)
        path.to(0.4, level + height).to(rng.uniform(0.5, 4.0), level + height).to(0.4, level)
    return path


def plateau_near_the_limit(rng, pace, end):
    path, level = _base(rng, 0.03, 0.1), rng.uniform(0.88, 0.95)
    path.to(0.5, level)
    for _ in range(60):
        path.to(max(5.0, pace / 20) * rng.uniform(0.3, 2.0), level + rng.uniform(-0.006, 0.006))
    return path


def page_cache(rng, pace, end):
    """What is available hardly moves, however much is read."""
    path, level = _base(rng, 0.1, 0.6), rng.uniform(0.1, 0.6)
    for _ in range(60):
        path.to(max(5.0, pace / 20), level + rng.uniform(-0.03, 0.03))
    return path


def reclaim_and_sleep(rng, pace, end):
    """Half an hour idle: WSL gives back its caches and swaps out; then work comes back."""
    path = _base(rng, 0.4, 0.7)
    level = path.used
    for _ in range(rng.randint(2, 6)):
        path.to(pace, level).to(rng.uniform(5, 60), level - rng.uniform(0.0, 0.15))
        path.to(pace, path.used).to(rng.uniform(2, 20), level + rng.uniform(-0.02, 0.02))
    return path


def build_that_fits(rng, pace, end):
    return _compilers(rng, pace, end, fatal=False)


def suspended(rng, pace, end):
    path = _base(rng, 0.3, 0.6)
    path.to(600, path.used).to(1, path.used + rng.uniform(-0.1, 0.15))
    return path.to(900, path.used)


def desktop(rng, pace, end):
    path = _base(rng, 0.3, 0.55)
    for _ in range(200):
        used = path.used + rng.gauss(0, 0.015) - 0.05 * (path.used - 0.5) + 0.08 * (rng.random() < 0.03)
        path.to(rng.uniform(5, 60), min(0.76, max(0.15, used)))
    return path


def few_steps(rng, pace, end):
    """Ranks or workers that start one by one, and all fit."""
    path, top = _base(rng, 0.05, 0.2), rng.uniform(0.45, 0.76)
    count = rng.randint(3, 9)
    step = (top - path.used) / count
    for _ in range(count):
        path.to(2 * pace / count * rng.uniform(0.6, 1.2), path.used).to(rng.uniform(0.3, 3), path.used + step)
    return path.to(max(200.0, pace), path.used)


def notebook(rng, pace, end):
    path, levels = _base(rng, 0.08, 0.12), (0.1, 0.3, 0.5, 0.6, 0.7, 0.74)
    for _ in range(25):
        path.to(rng.uniform(10, 200), path.used).to(rng.choice([0.4, 1, 5, 20, 60]), rng.choice(levels))
    return path


def files_come_and_go(rng, pace, end):
    path, top = _base(rng, 0.1, 0.3), rng.uniform(0.35, 0.74)
    low = path.used
    for _ in range(rng.randint(2, 6)):
        path.rough(rng, pace, top, 20).to(0.1 * pace, top).to(1.0, low).to(0.2 * pace, low)
    return path


HARMLESS: tuple[Scenario, ...] = (
    rise_that_stops,
    rough_rise_that_stops,
    warming_cache,
    preallocation,
    saw,
    checkpoints,
    plateau_near_the_limit,
    page_cache,
    reclaim_and_sleep,
    build_that_fits,
    suspended,
    desktop,
    few_steps,
    notebook,
    files_come_and_go,
)

CARDS_ONLY = {preallocation, checkpoints}
RAM_ONLY = {page_cache, reclaim_and_sleep, build_too_many, build_that_fits, tmpfs, desktop, files_come_and_go}


def draw(scenario: Scenario, seed: int, *, paces: tuple[float, float] = (15.0, 36000.0)) -> Drawn:
    """Draw a machine for a scenario; ``paces`` bounds the seconds from half full to the end."""
    name = scenario.__name__
    rng = random.Random(f"{name}-{seed}")
    resource = rng.choice(["ram", "ram", "gpu0", "gpu0", "gpu1", "cgroup:/job"])
    if scenario in CARDS_ONLY:
        resource = "gpu0"
    if scenario in RAM_ONLY:
        resource = "ram"
    card = resource.startswith("gpu")
    capacity = rng.choice(VRAM_GB if card else RAM_GB) * GB
    pace = paces[0] * (paces[1] / paces[0]) ** rng.random()
    end = rng.uniform(0.95, 0.995) if card else rng.uniform(0.985, 0.997)
    path = scenario(rng, pace, end)
    fit = [i for i in INTERVALS if i <= pace / MIN_SAMPLES and i >= path.t / MAX_SAMPLES]
    interval = rng.choice(fit) if fit else max(path.t / MAX_SAMPLES, min(0.5, pace / MIN_SAMPLES))
    noise = min(0.006, rng.choice([0.005, 0.03, 0.15]) * GB / capacity)
    drawn = Drawn(
        name,
        seed,
        resource,
        path,
        pace,
        interval,
        psi=rng.random() < 0.5,
        told=rng.random() < 0.5,
        capacity=capacity,
        swap_share=rng.choice([0.0, 0.0, 0.2, 0.25, 0.33]) if resource == "ram" else 0.0,
        noise=noise,
        pressure=rng.choice([0.0, 0.2, 0.8]) if path.end is not None else rng.choice([0.0, 0.05]),
        lost=rng.choice([0.0, 0.0, 0.02, 0.1]),
        cards=2 if resource == "gpu1" else 1,
        group_kind="group"
        if scenario in (workers, build_too_many)
        else "tmpfs"
        if scenario in (tmpfs, files_come_and_go)
        else "process",
    )
    if scenario is suspended or rng.random() < 0.1:
        drawn.gaps.append((rng.uniform(0.2, 0.7) * (drawn.event or path.t), rng.uniform(0.1, 0.4) * pace, True))
        if drawn.event is not None and drawn.gaps[0][0] + drawn.gaps[0][1] > drawn.onset:
            drawn.gaps.clear()  # the machine sleeps through no growth: its programs sleep as well
    return drawn
