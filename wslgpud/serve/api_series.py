"""Series as the API names and shows them: names, steps, columns. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from wslgpud.metrics import PREFIX, MetricSpec
from wslgpud.model import Number
from wslgpud.series.curves import name_of, step_for
from wslgpud.serve.http import Problem
from wslgpud.store import Bucket, SeriesRef

#: points of one series, and of all series of an answer; a screen has fewer columns
MOST_POINTS = 4000
MOST_POINTS_IN_ALL = 40_000
MOST_SERIES = 20
#: samples (minutes) that one point may be made of on average: a coarser step must be one of minutes (hours)
MOST_PIECES_PER_POINT = 60
#: every sample as it was taken (up to ten a second) is given for no longer than this
RAW_SECONDS = 300.0


_TIER_SECONDS = {"samples": 1.0, "minutes": 60.0, "hours": math.inf}


def full_name(ref: SeriesRef, catalogue: Mapping[str, MetricSpec]) -> str:
    """Return the name of a series; that of a metric of another version lacks the suffix."""
    spec = catalogue.get(ref.metric)
    return name_of(spec.exposed_name if spec else PREFIX + ref.metric, ref.labels)


def described(ref: SeriesRef, catalogue: Mapping[str, MetricSpec]) -> dict[str, Any]:
    """Return what the API says of a series; a metric of another version has neither unit nor help."""
    spec = catalogue.get(ref.metric)
    facts: dict[str, Any] = {
        "name": full_name(ref, catalogue),
        "metric": spec.exposed_name if spec else PREFIX + ref.metric,
        "labels": dict(ref.labels),
        "kind": spec.kind if spec else "unknown",
    }
    if spec:
        facts |= {"unit": spec.unit, "help": spec.help}
    return facts


def tier_of(step: int) -> str:
    """Return from what a step is made: samples, minutes or hours."""
    return "hours" if step and step % 3600 == 0 else "minutes" if step and step % 60 == 0 else "samples"


def check_size(span_seconds: float, step: int, series: int) -> None:
    """Refuse a longer answer than anybody can look at, and one that takes far more reading than it shows.

    A step of 2,591,999 s cannot be made of hours or minutes: a few points of it would take every sample.

    Raises:
        Problem: says what would be short enough.
    """
    if step == 0 and span_seconds > RAW_SECONDS:
        raise Problem(400, f"step=0 (every sample) is given for at most {RAW_SECONDS:g} s")
    points = span_seconds / step if step else RAW_SECONDS * 10
    most, tier = min(MOST_POINTS, MOST_POINTS_IN_ALL // max(1, series)), tier_of(step)
    wrong = ""
    if points > most:
        wrong = f"{points:.0f} points each of {series} series are too many: at most {MOST_POINTS} of one and "
        wrong += f"{MOST_POINTS_IN_ALL} of all"
    elif span_seconds > most * MOST_PIECES_PER_POINT * _TIER_SECONDS[tier]:
        wrong = f"steps of {step} s are made of {tier}, too many in so long a time"
    if wrong:
        fitting = step_for(span_seconds, most)
        raise Problem(400, f"{wrong}; leave step out, or ask for {fitting} s or a shorter time")


def columns(summaries: Sequence[Bucket], *, counter: bool) -> dict[str, list[Number]]:
    """Return summaries as columns: of a counter what it was last, else the mean with least and greatest."""
    time = [round(s.wall, 3) for s in summaries]
    if counter:
        return {"time": time, "value": [s.last for s in summaries]}
    return {
        "time": time,
        "value": [short(s.mean) for s in summaries],
        "min": [s.low for s in summaries],
        "max": [s.high for s in summaries],
    }


def short(value: Number) -> Number:
    """Return a mean without digits that mean nothing: 7 of them, and none behind the point of a large one."""
    if isinstance(value, int) or value.is_integer():
        return int(value) if abs(value) < 1e15 else value
    if abs(value) >= 1e6:
        return round(value)
    digits = 6 - math.floor(math.log10(abs(value)))
    return round(value, min(digits, 12))
