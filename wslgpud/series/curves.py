"""Series over time as people look at them: in steps, counters as rates, several cards as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from wslgpud.store import Bucket, Reader, SeriesRef

#: a distance of so many usual ones between two values of a counter is a gap, over which nothing is known
GAP = 3.0

#: steps that fall on the clock's own divisions; those from 60 and from 3600 on are read from the summaries of
#: minutes and of hours
STEPS_SECONDS = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800),
)

Across = Callable[[Sequence[float]], float]
ACROSS: Mapping[str, Across] = {"sum": sum, "mean": lambda values: sum(values) / len(values), "max": max, "min": min}


@dataclass(frozen=True)
class Curve:
    """One line of a picture: (time, least, mean, greatest) of each step that has values."""

    ref: SeriesRef
    unit: str
    rate: bool
    points: Sequence[tuple[float, float, float, float]]


def name_of(sample: str, labels: Iterable[tuple[str, str]]) -> str:
    """Write a series as Prometheus does: ``wslgpud_memory_free_bytes``, ``wslgpud_gpu_up{gpu="0"}``."""
    inside = ",".join(f'{name}="{escaped(value)}"' for name, value in labels)
    return f"{sample}{{{inside}}}" if inside else sample


def escaped(value: str) -> str:
    """Return text as the text formats of Prometheus hold it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def curve(  # noqa: PLR0913 - a query
    reader: Reader, ref: SeriesRef, span: tuple[float, float], step: float, unit: str, *, rate: bool
) -> Curve:
    """Read one series in steps; ``rate`` gives a counter's increase a second."""
    buckets = reader.summaries(ref, *span, step)
    if rate:
        points = [(wall, value, value, value) for wall, value in rates(buckets)]
        return Curve(ref._replace(metric=f"{ref.metric}:rate"), unit, rate, points)
    return Curve(ref, unit, rate, [(b.wall, float(b.low), b.mean, float(b.high)) for b in buckets])


def rates(buckets: Sequence[Bucket]) -> Iterator[tuple[float, float]]:
    """Yield (time, increase a second) between neighbours; a counter that was reset began at 0."""
    pairs = list(pairwise(buckets))
    usual = median(b.wall - a.wall for a, b in pairs) if pairs else 0.0
    for before, now in pairs:
        seconds = now.wall - before.wall
        if seconds <= GAP * usual:
            yield now.wall, (now.last - before.last if now.last >= before.last else now.last) / seconds


def joined(curves: Sequence[Curve], how: str) -> Curve:
    """Return one curve for all: at each step their sum, mean, max or min, of those known there."""
    known: dict[float, list[float]] = {}
    for one in curves:
        for wall, _, value, _ in one.points:
            known.setdefault(wall, []).append(value)
    values = [(wall, ACROSS[how](known[wall])) for wall in sorted(known)]
    ref = curves[0].ref._replace(labels=((how, f"of {len(curves)}"),))
    return replace(curves[0], ref=ref, points=[(w, v, v, v) for w, v in values])


def step_for(span_seconds: float, points: int) -> int:
    """Return the finest step that gives at most ``points`` points over a span; beyond a week, whole weeks."""
    most, week = max(points, 1), STEPS_SECONDS[-1]
    return next((s for s in STEPS_SECONDS if span_seconds / s <= most), week * math.ceil(span_seconds / week / most))
