"""History in the live view, by keyword, from a daemon's API; and as its samples, for sparklines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from wslgpud.advise.live_sample import CurveKey, LiveSample, busy_share
from wslgpud.app.catalogue import catalogue
from wslgpud.client import DaemonClient
from wslgpud.security.shapes import MalformedError, Shape, number, record, rows, table, text
from wslgpud.series.curves import MAX_SERIES, WORDS, Curve, rates
from wslgpud.store import Bucket, SeriesRef
from wslgpud.words import t

#: limit of points per answer: a plot needs a few per column
MAX_POINTS = 1200
#: history loaded for sparklines, in steps that leave no column blank
SEED_SECONDS, SEED_POINTS = 600.0, 300
#: the answer of a daemon, which may be another machine's
_NUMBERS = rows(number)
_KNOWN = record({"series": rows(record(dict.fromkeys(("name", "metric"), text)))})
_SERIES = record(
    {"metric": text, "kind": text, "labels": table(text, text), "time": _NUMBERS, "value": _NUMBERS},
    {"min": _NUMBERS, "max": _NUMBERS},
)
_RANGE = record({"step": number, "series": rows(_SERIES)})


class Drawn(NamedTuple):
    """Curves over a time, and the length of their steps."""

    curves: Sequence[Curve]
    step_seconds: float


class Past(NamedTuple):
    """A source of history; each query may take a while, and raises ``MessageError`` on failure.

    ``words()`` returns the available keywords, the most used first; ``drawn(word, start, end, points)`` the curves of
    one between two moments, in about so many points.
    """

    where: str
    words: Callable[[], Sequence[str]]
    drawn: Callable[[str, float, float, int], Drawn]


def api_past(daemon: DaemonClient) -> Past:
    """Query a daemon's API, also another machine's."""
    known: list[Mapping[str, Any]] = []

    def answer(path: str, shape: Shape, **query: Any) -> dict[str, Any]:
        document = daemon.ask(path, **query)
        if not shape(document):
            raise daemon.stranger(MalformedError(f"{path} has not the form that it must have"))
        return document

    def words() -> Sequence[str]:
        known[:] = answer("/api/v1/series", _KNOWN)["series"]
        metrics = {one["metric"] for one in known}
        return [word for word in WORDS if metrics & _samples(word)]

    def drawn(word: str, start: float, end: float, points: int) -> Drawn:
        samples = _samples(word)
        names = [one["name"] for one in known if one["metric"] in samples][:MAX_SERIES]
        if not names:
            return Drawn([], 1.0)
        points = max(10, min(points, MAX_POINTS))
        document = answer("/api/v1/range", _RANGE, series=names, start=start, end=end, points=points)
        try:
            step = float(document["step"] or 0)
            curves = [_curve_of(one, step, end) for one in document["series"] if one["metric"] in samples]
        except (ValueError, ZeroDivisionError) as error:  # columns of different lengths, or a duplicate time
            raise daemon.stranger(error) from error
        return Drawn([one for one in curves if one.points], step or 1.0)

    return Past(t("from {url}", url=daemon.url), words, drawn)


def _samples(word: str) -> set[str]:
    """Return Prometheus' names of a keyword's metrics, as in the API."""
    return {catalogue()[metric].exposed_name for metric in WORDS[word]}


def _curve_of(series: Mapping[str, Any], step: float, until_wall: float) -> Curve:
    """Return a series of an answer as a curve; a counter as its increase per second."""
    spec = next(spec for spec in catalogue() if spec.exposed_name == series["metric"])
    ref = SeriesRef(spec.name, tuple(series["labels"].items()))
    times, values = series["time"], series["value"]
    if series["kind"] == "counter":
        buckets = [Bucket(t, 1, v, v, v, v) for t, v in zip(times, values, strict=True)]
        points = [(wall, value, value, value) for wall, value in rates(buckets, step, until_wall)]
        return Curve(ref._replace(metric=f"{ref.metric}:rate"), spec.unit, True, points)
    lows, highs = series.get("min", values), series.get("max", values)
    return Curve(ref, spec.unit, False, list(zip(times, lows, values, highs, strict=True)))


def before(past: Past | None, look: LiveSample) -> list[tuple[CurveKey, list[tuple[float, float]]]]:
    """Return the history of the minutes before a sample, as ``RecentSeries`` would have recorded it."""
    if past is None:
        return []
    now, known = datetime.fromisoformat(look.document["at"]).timestamp(), past.words()

    def curves(word: str) -> Iterator[tuple[Mapping[str, str], list[tuple[float, float]]]]:
        if word in known:
            for curve in past.drawn(word, now - SEED_SECONDS, now, SEED_POINTS).curves:
                yield dict(curve.ref.labels), [(look.mono + w - now, v) for w, _, v, _ in curve.points if w < now]

    capacities = {f["resource"]: f["capacity_bytes"] for f in look.document["forecasts"]}
    seeds = [
        (CurveKey("used", labels["resource"]), [(mono, 1 - left / capacity) for mono, left in points])
        for labels, points in curves("headroom")
        if (capacity := capacities.get(labels["resource"]))
    ]
    seeds += [(CurveKey("busy", labels["gpu"]), points) for labels, points in curves("gpu")]
    spent: dict[float, dict[str, float]] = {}
    for labels, points in curves("cpu"):
        for mono, share in points:
            spent.setdefault(mono, {})[labels["mode"]] = share
    cpu = [(mono, busy) for mono, modes in spent.items() if (busy := busy_share(modes)) is not None]
    return [*seeds, (CurveKey("cpu"), cpu)]
