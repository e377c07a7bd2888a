"""Synthetic traces: families of memory behaviour, each drawn from a seed, with the truth beside them.

A family draws a path of the used share over time and says how it ends. Two lists at the end keep those
that thresholds were chosen on (``DEVELOPED_ON``) apart from those that came later (``HELD_OUT``).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from wslgpud.model import GpuSample, Observation, ProcessSample, RamState, SwapState

GIB = 1 << 30


@dataclass
class Case:
    """A path of (time, used share, share of it in the culprit) and its outcome."""

    family: str
    seed: int
    resource: str
    interval: float
    path: list[tuple[float, float]]
    tolerated: bool = False
    capacity: int = 40 * GIB
    swap_share: float = 0.2
    noise: float = 0.002
    gaps: list[tuple[float, float]] = field(default_factory=list)

    @property
    def event(self) -> float | None:
        return next((t for t, used in self.path if used >= 0.997), None)

    @property
    def onset(self) -> float | None:
        """When the growth that ends in the event passed half of the memory."""
        event = self.event
        if event is None:
            return None
        below = [t for t, used in self.path if t < event and used < 0.5]
        return below[-1] if below else self.path[0][0]

    def truth(self):
        event = self.event
        return {
            "name": f"{self.family}-{self.seed}",
            "tolerated": self.tolerated,
            "events": [] if event is None else [{"t": event, "resource": self.resource, "kind": "oom"}],
            "onset": self.onset or 0.0,
            "verdict": "safe" if event is None else "oom",
        }

    def observations(self) -> Iterator[Observation]:
        rng = random.Random(self.seed)
        event, drift = self.event, 0.0
        end = self.path[-1][0] if event is None else event
        t, i = 0.0, 0
        gaps = list(self.gaps)
        while t < end:
            while i + 1 < len(self.path) and self.path[i + 1][0] <= t:
                i += 1
            (t0, u0) = self.path[i]
            (t1, u1) = self.path[min(i + 1, len(self.path) - 1)]
            used = u0 if t1 <= t0 else u0 + (u1 - u0) * (t - t0) / (t1 - t0)
            drift = 0.97 * drift + rng.gauss(0.0, self.noise * 0.25)
            share = min(1.0, max(0.0, used + drift * min(1.0, 4 * (1 - used))))
            expected = False
            yield self._observe(t, share, expected)
            t += self.interval * rng.uniform(0.97, 1.03)
            if gaps and t >= gaps[0][0]:
                t += gaps.pop(0)[1]

    def _observe(self, t, share, expected):
        used = int(share * self.capacity)
        if self.resource.startswith("gpu"):
            gpu = GpuSample(0, "GPU-0", "card", self.capacity, used, self.capacity - used)
            return Observation(t=t, gpus=(gpu,), gap_expected=expected)
        swap_total = int(self.swap_share * self.capacity)
        total = self.capacity - swap_total
        floor = int(0.02 * total)
        in_swap = max(0, used - (total - floor))
        in_swap = min(in_swap, swap_total)
        ram = RamState(total, max(0, total - (used - in_swap)))
        proc = ProcessSample(4121, 1, "python", int(0.8 * (used - in_swap)), in_swap)
        return Observation(
            t=t, ram=ram, swap=SwapState(swap_total, swap_total - in_swap), processes=(proc,), gap_expected=expected
        )


def _case(family, rng, seed, resource, path, **more):
    span = path[-1][0]
    interval = more.pop("interval", None) or rng.choice([0.5, 1.0, 2.0] if span < 600 else [1.0, 2.0, 5.0])
    interval = max(interval, span / 4000)
    if resource == "gpu0":
        more.setdefault("capacity", rng.choice([8, 16, 24, 80]) * GIB)
    else:
        more.setdefault("capacity", rng.choice([1, 8, 40, 64, 256]) * GIB)
        more.setdefault("swap_share", rng.choice([0.0, 0.2, 0.25]))
    return Case(family, seed, resource, interval, path, noise=rng.choice([0.0005, 0.002, 0.004]), **more)


def _where(rng):
    return rng.choice(["ram", "gpu0"])


def leak(seed):
    rng = random.Random(seed)
    base, span = rng.uniform(0.05, 0.6), 10 ** rng.uniform(1.7, 4.2)
    start = span * rng.uniform(0.05, 0.4)
    return _case("leak", rng, seed, _where(rng), [(0, base), (start, base), (start + span, 1.0)])


def leak_that_stops(seed):
    rng = random.Random(seed)
    base, span, top = rng.uniform(0.05, 0.4), 10 ** rng.uniform(1.7, 4.0), rng.uniform(0.5, 0.9)
    path = [(0, base), (span * 0.2, base), (span * 1.2, top), (span * 3, top)]
    return _case("leak_that_stops", rng, seed, _where(rng), path, tolerated=top >= 0.77)


def jump_plateau(seed):
    rng = random.Random(seed)
    base, top, t = rng.uniform(0.03, 0.15), rng.uniform(0.6, 0.95), rng.uniform(10, 200)
    path = [(0, base), (t, base), (t + 0.4, top), (t + 10 ** rng.uniform(2, 3.5), top)]
    return _case("jump_plateau", rng, seed, _where(rng), path)


def sawtooth(seed):
    rng = random.Random(seed)
    period, base = 10 ** rng.uniform(0.9, 2.6), rng.uniform(0.05, 0.4)
    top = rng.uniform(base + 0.1, 0.72)
    path, t = [(0.0, base)], period * rng.uniform(0.3, 2)
    path.append((t, base))
    for _ in range(rng.randint(5, 25)):
        p = period * rng.uniform(0.8, 1.2)
        path += [(t + 0.95 * p, top + rng.uniform(-0.04, 0.01)), (t + p, base)]
        t += p
    return _case("sawtooth", rng, seed, _where(rng), path)


def sawtooth_leak(seed):
    rng = random.Random(seed)
    period, base, height = 10 ** rng.uniform(0.9, 2.3), rng.uniform(0.05, 0.3), rng.uniform(0.05, 0.3)
    teeth = rng.randint(6, 40)
    rise = (1.02 - base - height) / teeth
    path, t = [(0.0, base), (period, base)], period
    for i in range(teeth + 6):
        low = base + rise * i
        path += [(t + 0.9 * period, min(1.0, low + height)), (t + period, low + rise)]
        t += period
        if low + height >= 1.0:
            break
    return _case("sawtooth_leak", rng, seed, _where(rng), path)


def stairs_oom(seed):
    rng = random.Random(seed)
    dwell, ratio = 10 ** rng.uniform(0.8, 2.2), rng.uniform(1.0, 2.0)
    used, size = rng.uniform(0.1, 0.4), rng.uniform(0.02, 0.06)
    path, t = [(0.0, used)], dwell * 1.5
    while used < 1.0:
        path.append((t, used))
        used = min(1.0, used + size)
        size *= ratio
        path.append((t + 0.1 * dwell, used))
        t += dwell * rng.uniform(0.85, 1.15)
    return _case("stairs_oom", rng, seed, _where(rng), path)


def desktop(seed):
    rng = random.Random(seed)
    used, t, path = rng.uniform(0.2, 0.6), 0.0, []
    for _ in range(400):
        path.append((t, used))
        used = min(
            0.76, max(0.15, used + rng.gauss(0, 0.012) + (0.1 if rng.random() < 0.02 else 0) - 0.05 * (used - 0.45))
        )
        t += rng.uniform(10, 60)
    return _case("desktop", rng, seed, "ram", path)


def build(seed):
    """Waves of compilers, each up in seconds; some days one wave is too high."""
    rng = random.Random(seed)
    fatal = rng.random() < 0.5
    base, t = rng.uniform(0.08, 0.2), 15.0
    path = [(0.0, base), (t, base)]
    waves = rng.randint(3, 10)
    for i in range(waves):
        span = rng.uniform(8, 40)
        top = 1.0 if fatal and i == waves - 1 else rng.uniform(0.35, 0.7)
        low = rng.uniform(base, 0.3)
        path += [(t + span * 0.6, 0.75 * top), (t + span, top), (t + span + rng.uniform(1, 4), low)]
        t = path[-1][0]
    return _case("build", rng, seed, "ram", path, interval=0.5)


DEVELOPED_ON: list[Callable[[int], Case]] = [
    leak,
    leak_that_stops,
    jump_plateau,
    sawtooth,
    sawtooth_leak,
    stairs_oom,
    desktop,
    build,
]


def gc_heap(seed):
    """A heap with a garbage collector: saws of minutes, each a little different, far up but never over."""
    rng = random.Random(seed)
    low, top, t = rng.uniform(0.2, 0.4), rng.uniform(0.6, 0.74), 60.0
    path = [(0.0, 0.1), (t, low)]
    for _ in range(12):
        for part in (0.4, 0.7, 1.0):
            path.append((t + rng.uniform(100, 300) * part, low + (top - low) * part * rng.uniform(0.9, 1.0)))
            t = max(t, path[-1][0])
        t += 1.0
        path.append((t, low * rng.uniform(0.9, 1.2)))
    path.sort()
    return _case("gc_heap", rng, seed, "ram", path)


def server_start(seed):
    """An inference server: weights ramp up, a pause, then one jump to its configured share."""
    rng = random.Random(seed)
    base, weights, final = rng.uniform(0.03, 0.12), rng.uniform(0.3, 0.65), rng.uniform(0.85, 0.95)
    load, pause, t = rng.uniform(5, 60), rng.uniform(3, 30), rng.uniform(10, 60)
    path = [(0, base), (t, base), (t + load, weights), (t + load + pause, weights)]
    t += load + pause
    path += [(t + 0.5, final), (t + 1500, final)]
    return _case("server_start", rng, seed, "gpu0", path)


def training(seed):
    """Context, weights, gradients, optimizer: a few jumps, then flat with checkpoint spikes now and then."""
    rng = random.Random(seed)
    used, t, path = rng.uniform(0.03, 0.12), rng.uniform(5, 30), []
    path += [(0, used), (t, used)]
    top = rng.uniform(0.5, 0.88)
    parts = [*sorted(rng.uniform(0.1, 1.0) for _ in range(rng.randint(1, 3))), 1.0]
    for part in parts:
        t += rng.uniform(0.3, 5)
        path.append((t, path[-1][1]))
        path.append((t + 0.4, used + (top - used) * part))
    t += 0.4
    for _ in range(rng.randint(2, 8)):
        t += rng.uniform(20, 300)
        path += [(t, top), (t + 0.4, min(0.96, top + 0.12)), (t + 2.4, min(0.96, top + 0.12)), (t + 2.8, top)]
        t += 2.8
    return _case("training", rng, seed, "gpu0", path, interval=0.5)


def late_leak(seed):
    """Hours of steady training near the limit, then a slow leak."""
    rng = random.Random(seed)
    base, quiet, span = rng.uniform(0.6, 0.85), 10 ** rng.uniform(2.5, 4), 10 ** rng.uniform(2, 4)
    return _case("late_leak", rng, seed, _where(rng), [(0, base), (quiet, base), (quiet + span, 1.0)])


def workers(seed):
    """Many workers that start one by one and each grow to their size."""
    rng = random.Random(seed)
    n, gap = rng.randint(10, 40), 10 ** rng.uniform(0, 1.7)
    used, path, t = rng.uniform(0.05, 0.3), [(0.0, 0.1)], 20.0
    each = (1.02 - used) / n
    for _ in range(n + 1):
        path += [(t, min(1.0, used)), (t + 0.4 * gap, min(1.0, used + each * 0.9))]
        used += each
        t += gap * rng.uniform(0.5, 1.5)
    return _case("workers", rng, seed, "ram", path)


def accelerating(seed):
    """A cache whose growth gets faster (a KV cache under rising load, a graph kept alive)."""
    rng = random.Random(seed)
    base, span, power = rng.uniform(0.1, 0.4), 10 ** rng.uniform(1.5, 3.5), rng.uniform(1.3, 2.5)
    path = [(0.0, base)] + [(20 + span * i / 50, base + (1.0 - base) * (i / 50) ** power) for i in range(51)]
    return _case("accelerating", rng, seed, _where(rng), path)


def saturating(seed):
    """A cache that warms up and fills its share: fast first, ever slower, then flat."""
    rng = random.Random(seed)
    base, top, span = rng.uniform(0.05, 0.3), rng.uniform(0.5, 0.92), 10 ** rng.uniform(1.5, 3.5)
    path = [(0.0, base)] + [(20 + span * i / 50, top - (top - base) * 2.718 ** (-i / 8)) for i in range(101)]
    return _case("saturating", rng, seed, _where(rng), path, tolerated=top >= 0.77)


def natural_night(seed):
    """Hours of a server at 80-94 %: a plateau that breathes."""
    rng = random.Random(seed)
    level, t, path = rng.uniform(0.8, 0.94), 0.0, []
    for _ in range(300):
        path.append((t, level + rng.uniform(-0.012, 0.012)))
        t += rng.uniform(20, 120)
    return _case("natural_night", rng, seed, _where(rng), path)


def suspended(seed):
    """A machine that sleeps for a while and wakes with more in use than before."""
    rng = random.Random(seed)
    base = rng.uniform(0.3, 0.6)
    path = [(0.0, base), (600.0, base), (601.0, base + rng.uniform(0, 0.2)), (1500.0, base + rng.uniform(0, 0.2))]
    return _case("suspended", rng, seed, "ram", path, gaps=[(300.0, rng.uniform(30, 1000))])


def repeated_job(seed):
    """The same job again and again, each rising near the limit and ending well; the last one does not."""
    rng = random.Random(seed)
    top, span, t = rng.uniform(0.5, 0.74), 10 ** rng.uniform(1.7, 3), 20.0
    path = [(0.0, 0.1), (t, 0.1)]
    for _ in range(rng.randint(1, 5)):
        path += [(t + span, top), (t + 1.3 * span, top), (t + 1.31 * span, 0.1), (t + 1.6 * span, 0.1)]
        t += 1.6 * span
    path += [(t + span * 0.9 / (top - 0.1), 1.0)]
    return _case("repeated_job", rng, seed, _where(rng), path)


HELD_OUT: list[Callable[[int], Case]] = [
    gc_heap,
    server_start,
    training,
    late_leak,
    workers,
    accelerating,
    saturating,
    natural_night,
    suspended,
    repeated_job,
]


def staggered_start(seed):
    """Ranks or workers that start one after the other, each the same size, and all fit."""
    rng = random.Random(seed)
    count, top, used, t = rng.randint(3, 8), rng.uniform(0.4, 0.76), rng.uniform(0.05, 0.15), 20.0
    step, path = (top - used) / count, [(0.0, used)]
    for _ in range(count):
        path += [(t, used), (t + rng.choice([0.4, 2, 4]), used + step)]
        used += step
        t += rng.uniform(4, 9)
    return _case("staggered_start", rng, seed, _where(rng), [*path, (t, used), (t + 600, used)])


def notebook(seed):
    """Somebody who loads models and data sets of all sizes and drops them again."""
    rng = random.Random(seed)
    used, t, path = 0.1, 20.0, [(0.0, 0.1)]
    for _ in range(30):
        path.append((t, used))
        used = rng.choice([0.1, 0.3, 0.5, 0.6, 0.7, 0.74])
        path.append((t + rng.choice([0.4, 1, 5, 20]), used))
        t += rng.uniform(25, 300)
    return _case("notebook", rng, seed, _where(rng), path)


def nightly_jobs(seed):
    """Jobs that climb to 60-77 % now and then and end."""
    rng = random.Random(seed)
    base, t = rng.uniform(0.3, 0.6), 100.0
    path = [(0.0, base)]
    for _ in range(12):
        high, span = rng.uniform(0.6, 0.77), rng.choice([2, 10, 40, 120])
        path += [(t, base), (t + span, high), (t + span + rng.uniform(1, 60), high * 0.99)]
        t = path[-1][0] + 1
        path.append((t, base))
        t += rng.uniform(200, 1000)
    return _case("nightly_jobs", rng, seed, "ram", path)


def serving(seed):
    """A server whose use follows its load, up and down by a quarter of memory."""
    rng = random.Random(seed)
    period, low, high = rng.uniform(100, 2000), rng.uniform(0.3, 0.5), rng.uniform(0.6, 0.75)
    path = []
    for i in range(400):
        wave = 0.5 + 0.5 * math.sin(2 * math.pi * i / 30)
        path.append((i * period / 30, low + (high - low) * wave + rng.gauss(0, 0.01)))
    return _case("serving", rng, seed, _where(rng), path)


def serving_near_the_limit(seed):
    """The same at 80-93 %, where each wave takes half of what is left."""
    rng = random.Random(seed)
    period, high = rng.uniform(100, 2000), rng.uniform(0.85, 0.93)
    low = high - rng.uniform(0.02, 0.08)
    path = [(0.0, 0.1), (10.0, 0.1), (10.4, low)]
    for i in range(400):
        wave = 0.5 - 0.5 * math.cos(2 * math.pi * i / 30)
        path.append((60 + i * period / 30, low + (high - low) * wave + rng.gauss(0, 0.003)))
    return _case("serving_near_the_limit", rng, seed, _where(rng), path)


# All end well, and all come as close to what does not as one can without being it.
BORDERLINE: list[Callable[[int], Case]] = [staggered_start, notebook, nightly_jobs, serving, serving_near_the_limit]
