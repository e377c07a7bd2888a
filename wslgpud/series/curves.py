"""Series over time for display: found by keyword or pattern, in steps, counters as rates, several cards combined."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from wslgpud.store import Bucket, Reader, SeriesRef
from wslgpud.words import Message, MessageError, say

#: suffix of a counter drawn as its increase per second
RATE = ":rate"
#: two values of a counter this many usual intervals apart have a gap between them, without data
GAP = 3.0

#: series drawn, or answered, at a time
MAX_SERIES = 20
#: steps aligned to the clock; those from 60 and 3600 s are read from the rollups by minute and hour
STEPS_SECONDS = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800),
)

#: keywords for the most used series; each stands for metrics of the catalogue
WORDS: Mapping[str, tuple[str, ...]] = {
    "ram": ("memory_available_bytes",),
    "swap": ("swap_free_bytes",),
    "vram": ("gpu_memory_used_bytes",),
    "gpu": ("gpu_utilization_ratio",),
    "temperature": ("gpu_temperature_celsius",),
    "power": ("gpu_power_watts",),
    "clock": ("gpu_clock_hertz",),
    "cpu": ("cpu_seconds",),
    "load": ("load1",),
    "pressure": ("pressure_stalled_ratio",),
    "headroom": ("headroom_bytes",),
    "programs": ("program_resident_bytes",),
    "disk": ("disk_read_bytes", "disk_written_bytes"),
    "network": ("network_receive_bytes", "network_transmit_bytes"),
}

Across = Callable[[Sequence[float]], float]
ACROSS: Mapping[str, Across] = {"sum": sum, "mean": lambda values: sum(values) / len(values), "max": max, "min": min}


@dataclass(frozen=True)
class Curve:
    """A line in a plot: (time, minimum, mean, maximum) of each step with values."""

    ref: SeriesRef
    unit: str
    rate: bool
    points: Sequence[tuple[float, float, float, float]]


def name_of(sample: str, labels: Iterable[tuple[str, str]]) -> str:
    """Return a series in Prometheus' notation: ``wslgpud_memory_free_bytes``, ``wslgpud_gpu_up{gpu="0"}``."""
    inside = ",".join(f'{name}="{escaped(value)}"' for name, value in labels)
    return f"{sample}{{{inside}}}" if inside else sample


def escaped(value: str) -> str:
    """Return text escaped for Prometheus' text formats."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class NoSeriesError(MessageError):
    """None of the series asked for is recorded; the message names similar ones."""


def find(
    reader: Reader, asked: Sequence[str], host: str = "", warn: Callable[[Message], None] = lambda _message: None
) -> dict[SeriesRef, str]:
    """Return the series matching keywords and patterns (by default all), with their metrics' kinds.

    ``warn`` is told of keywords without series on this machine (``vram`` without a card).

    Raises:
        NoSeriesError: there are only such, or one is neither a keyword nor matches a series.
    """
    kinds = reader.kinds(host=host)
    if not kinds:
        raise NoSeriesError(say("no history of a machine called {host}", host=host) if host else say("no history yet"))
    series_kinds: dict[SeriesRef, str] = {}
    absent: list[str] = []
    for text in asked or ("*",):
        name, brace, labels = text.partition("{")
        patterns = [word + brace + labels for word in WORDS.get(name, (name,))]
        refs = {ref: kind for pattern in patterns for ref, kind in reader.kinds(pattern, host).items()}
        if not refs and name not in WORDS:
            raise NoSeriesError(_unknown(text, sorted({*WORDS, *(ref.metric for ref in kinds)})))
        if not refs:
            absent.append(f"{text} ({', '.join(WORDS[name])})")
        series_kinds.update((ref, refs[ref]) for ref in sorted(refs))
    message = say("nothing is recorded here of {names}", names=tuple(absent))
    if not series_kinds:
        raise NoSeriesError(message)
    if absent:
        warn(message)
    return series_kinds


def _unknown(text: str, known: Sequence[str]) -> Message:
    bare = text.partition("{")[0].removeprefix("wslgpud_")
    near = [metric for metric in known if bare.strip("*") in metric][:3]
    near = near or difflib.get_close_matches(bare, known, 3, 0.5)
    meant = {"names": tuple(near)} if near else {}
    return say("no series {text}; [did you mean {names}? ]'wslgpud history' lists them all", text=repr(text), **meant)


def curve(  # noqa: PLR0913 - a query
    reader: Reader, ref: SeriesRef, span: tuple[float, float], step: float, unit: str, *, rate: bool
) -> Curve:
    """Read one series in steps; ``rate`` gives a counter's increase per second."""
    buckets = reader.summaries(ref, *span, step)
    if rate:
        points = [(wall, value, value, value) for wall, value in rates(buckets, step, span[1])]
        return Curve(ref._replace(metric=ref.metric + RATE), unit, rate, points)
    return Curve(ref, unit, rate, [(b.wall, float(b.low), b.mean, float(b.high)) for b in buckets])


def rates(buckets: Sequence[Bucket], step: float, until_wall: float) -> Iterator[tuple[float, float]]:
    """Yield (time, increase per second) between neighbours; a reset counter restarted at 0.

    Of a step that is not over at ``until_wall`` the time so far counts, once that is half of it.
    """
    pairs = list(pairwise(buckets))
    usual = median(b.wall - a.wall for a, b in pairs) if pairs else 0.0
    for before, now in pairs:
        seconds, passed = now.wall - before.wall, min(step, until_wall - now.wall)
        if seconds <= GAP * usual and passed >= step / 2:
            grown = now.last - before.last if now.last >= before.last else now.last
            yield now.wall, grown / (seconds - step + passed)


def joined(curves: Sequence[Curve], how: str) -> Curve:
    """Combine curves: at each step the sum, mean, max or min of the known values."""
    known: dict[float, list[float]] = {}
    for curve in curves:
        for wall, _, value, _ in curve.points:
            known.setdefault(wall, []).append(value)
    values = [(wall, ACROSS[how](known[wall])) for wall in sorted(known)]
    ref = curves[0].ref._replace(labels=((how, f"of {len(curves)}"),))
    return replace(curves[0], ref=ref, points=[(w, v, v, v) for w, v in values])


def step_for(span_seconds: float, points: int) -> int:
    """Return the finest step that gives at most ``points`` points over a span; beyond a week, whole weeks."""
    limit, week = max(points, 1), STEPS_SECONDS[-1]
    return next((s for s in STEPS_SECONDS if span_seconds / s <= limit), week * math.ceil(span_seconds / week / limit))


def of_use(  # noqa: PLR0913 - a query
    forecast: Mapping[str, Any],
    seen: Sequence[tuple[float, float]],
    now: float,
    past_seconds: float,
    columns: int,
    *,
    ahead: bool,
) -> tuple[list[Curve], float, float, float]:
    """Return how a memory was used and, with ``ahead``, the range of its forecast until it is full.

    With them come start, end and step. ``seen`` holds (time, used share); as much of it counts as lies ahead, or
    ``past_seconds`` if that is more. A young history begins late.
    """
    total, span, foreseen = float(forecast["capacity_bytes"]), 0.0, list[tuple[float, float, float, float]]()
    if ahead:
        eta, used = forecast["eta_seconds"], total - forecast["headroom_bytes"]
        ends = sorted(eta.get(which, eta["middle"]) for which in ("early", "middle", "late"))
        span = max(ends[-1], 1.0)
    past = [(wall, share * total) for wall, share in seen if wall >= now - max(span, past_seconds)]
    start = min([now - max(span / 4, 1.0), *(wall for wall, _ in past)])
    # At least the time between two samples, else there are only loose dots.
    step = max((now + span - start) / (2 * columns), (now - start) / (len(past) or 1))
    if ahead:
        past.append((now, used))
        foreseen = [
            (now + step * n, *(min(total, used + (total - used) * step * n / max(end, step)) for end in reversed(ends)))
            for n in range(1, int(span / step) + 1)
        ]
    curves = [Curve(SeriesRef("used"), "bytes", rate=False, points=[(wall, v, v, v) for wall, v in past])]
    curves += [Curve(SeriesRef("ahead"), "bytes", rate=False, points=foreseen)] * ahead
    return curves, start, now + span, step
