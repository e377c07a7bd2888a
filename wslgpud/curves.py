"""Series over time as people look at them: in steps, counters as rates, several cards as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from wslgpud.store import Bucket, Reader, SeriesRef

#: a distance of so many usual ones between two values of a counter is a gap, over which nothing is known
GAP = 3.0

Across = Callable[[Sequence[float]], float]
ACROSS: Mapping[str, Across] = {
    "sum": sum, "mean": lambda values: sum(values) / len(values), "max": max, "min": min
}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """One line of a picture: (time, least, mean, greatest) of each step that has values."""

    ref: SeriesRef
    unit: str
    rate: bool
    points: Sequence[tuple[float, float, float, float]]


def curve(  # noqa: PLR0913 - what a reader is asked for
    reader: Reader, ref: SeriesRef, span: tuple[float, float], step: float, unit: str, *, rate: bool
) -> Curve:
    """Read one series in steps; ``rate`` gives a counter's increase a second."""
    buckets = reader.summaries(ref, *span, step)
    if rate:
        points = [(wall, value, value, value) for wall, value in rates(buckets)]
        return Curve(ref._replace(metric=f"{ref.metric}:rate"), unit, rate, points)
    return Curve(ref, unit, rate, [(b.wall, float(b.low), b.mean, float(b.high)) for b in buckets])


def rates(buckets: Sequence[Bucket]) -> Iterator[tuple[float, float]]:
    """Yield (time, increase a second) between neighbours; a counter that has begun anew did so from 0."""
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
