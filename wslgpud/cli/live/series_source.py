"""Sources of the live view's history: a daemon's API, a database, or its own samples."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median_high
from typing import Any, NamedTuple

from wslgpud.app.catalogue import catalogue
from wslgpud.cli.live_sample import CurveKey, LiveSample, RecentSeries, busy_share
from wslgpud.cli.series import WORDS, find, unit_of
from wslgpud.client import DaemonClient
from wslgpud.security.shapes import MalformedError, Shape, number, record, rows, table, text
from wslgpud.series.curves import Curve, curve, rates, step_for
from wslgpud.serve.api_history import MAX_SERIES
from wslgpud.store import Bucket, Reader, SeriesRef, StoreError
from wslgpud.words import t

#: limit of points per answer: a plot needs a few per column
MAX_POINTS = 1200
#: history loaded for sparklines, in steps that leave no column blank
SEED_SECONDS = 600.0
SEED_POINTS = 300

#: the answer of a daemon, which may be another machine's
_NUMBERS = rows(number)
_KNOWN = record({"series": rows(record(dict.fromkeys(("name", "metric"), text)))})
_SERIES = record(
    {"metric": text, "kind": text, "labels": table(text, text), "time": _NUMBERS, "value": _NUMBERS},
    {"min": _NUMBERS, "max": _NUMBERS},
)
_RANGE = record({"step": number, "series": rows(_SERIES)})

#: series recorded by the view itself, by word: curves of ``RecentSeries``, whether shares or bytes per second
_SEEN: Mapping[str, tuple[tuple[str, ...], str]] = {
    "used": (("used",), "ratio"),
    "gpu": (("busy",), "ratio"),
    "cpu": (("cpu",), "ratio"),
    "pressure": (("waiting",), "ratio"),
    "disk": (("disk read", "disk write"), "bytes_per_second"),
    "network": (("received", "sent"), "bytes_per_second"),
    "swap": (("swap in", "swap out"), "bytes_per_second"),
}


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
    close: Callable[[], None] = lambda: None
    #: whether it has more than the view itself
    earlier: bool = True


def database_past(database: Path) -> Past:
    """Read the database, as ``wslgpud history`` does."""
    reader = Reader(str(database))

    def words() -> Sequence[str]:
        known = {ref.metric for ref in reader.kinds()}
        return [word for word, metrics in WORDS.items() if known.intersection(metrics)]

    def drawn(word: str, start: float, end: float, points: int) -> Drawn:
        step, series = step_for(end - start, points), list(find(reader, [word]).items())[:MAX_SERIES]
        curves = [
            curve(reader, ref, (start, end), step, unit_of(ref.metric), rate=kind == "counter") for ref, kind in series
        ]
        return Drawn([one for one in curves if one.points], step)

    return Past(t("from {path}", path=str(database)), words, drawn, reader.close)


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


def trail_past(trail: RecentSeries) -> Past:
    """Return the view's own samples since its start: all there is without a daemon."""

    def words() -> Sequence[str]:
        seen = {key.what for key in trail.known()}
        return [word for word, (what, _) in _SEEN.items() if seen.intersection(what)]

    def drawn(word: str, start: float, end: float, points: int) -> Drawn:
        (what, unit), shift, curves = _SEEN[word], time.time() - time.monotonic(), []
        for key in (key for key in trail.known() if key.what in what):
            seen = ((mono + shift, value) for mono, value in trail.points(key))
            if inside := [(wall, v, v, v) for wall, v in seen if start <= wall <= end]:
                ref = SeriesRef(key.what, (("of", key.which),) if key.which else ())
                curves.append(Curve(ref, unit, rate=False, points=inside))
        steps = [b[0] - a[0] for curve in curves for a, b in pairwise(curve.points)]
        return Drawn(curves, max(median_high(steps or [0.0]), (end - start) / points))

    return Past(t("no daemon keeps a history here: only samples of this view"), words, drawn, earlier=False)


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


def before(past: Past, look: LiveSample) -> list[tuple[CurveKey, list[tuple[float, float]]]]:
    """Return the history of the minutes before a sample, as ``RecentSeries`` would have recorded it."""
    if not past.earlier:
        return []
    now, known = datetime.fromisoformat(look.document["at"]).timestamp(), past.words()

    def curves(word: str) -> Iterator[tuple[Mapping[str, str], list[tuple[float, float]]]]:
        if word not in known:
            return
        drawn = past.drawn(word, now - SEED_SECONDS, now, SEED_POINTS).curves
        if len({curve.ref.host for curve in drawn}) > 1:
            return  # a database of many machines does not say which is ours
        for drawn_curve in drawn:
            points = [(look.mono + w - now, v) for w, _, v, _ in drawn_curve.points if w < now]
            yield dict(drawn_curve.ref.labels), points

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


def past_of(database: Path | None, trail: RecentSeries) -> Past:
    """Return the history in a database, else ``trail``."""
    if database is not None:
        with contextlib.suppress(StoreError):  # gone, another user's, or damaged: 'wslgpud history' reports which
            return database_past(database)
    return trail_past(trail)
