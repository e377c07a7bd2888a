"""History as a live view asks for it, by keyword: from a database, or from a daemon's API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wslgpud.client import DaemonClient
from wslgpud.metrics import Catalogue
from wslgpud.security.shapes import MalformedError, Shape, number, record, rows, table, text
from wslgpud.series.curves import MAX_SERIES, Curve, curve, rates, step_for
from wslgpud.series.find import WORDS, find
from wslgpud.store import Bucket, Reader, SeriesRef
from wslgpud.words import t

#: limit of points per answer: a plot needs a few per column
MAX_POINTS = 1200
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
    close: Callable[[], None] = lambda: None
    #: whether it has more than the view itself
    earlier: bool = True


def database_past(database: Path, catalogue: Catalogue) -> Past:
    """Read the database, as ``wslgpud history`` does."""
    reader = Reader(str(database))

    def words() -> Sequence[str]:
        known = {ref.metric for ref in reader.kinds()}
        return [word for word, metrics in WORDS.items() if known.intersection(metrics)]

    def drawn(word: str, start: float, end: float, points: int) -> Drawn:
        step, series = step_for(end - start, points), list(find(reader, [word]).items())[:MAX_SERIES]
        curves = [
            curve(reader, ref, (start, end), step, _unit(catalogue, ref.metric), rate=kind == "counter")
            for ref, kind in series
        ]
        return Drawn([one for one in curves if one.points], step)

    return Past(t("from {path}", path=str(database)), words, drawn, reader.close)


def api_past(daemon: DaemonClient, catalogue: Catalogue) -> Past:
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
        return [word for word in WORDS if metrics & _samples(catalogue, word)]

    def drawn(word: str, start: float, end: float, points: int) -> Drawn:
        samples = _samples(catalogue, word)
        names = [one["name"] for one in known if one["metric"] in samples][:MAX_SERIES]
        if not names:
            return Drawn([], 1.0)
        points = max(10, min(points, MAX_POINTS))
        document = answer("/api/v1/range", _RANGE, series=names, start=start, end=end, points=points)
        try:
            step = float(document["step"] or 0)
            curves = [_curve_of(catalogue, one, step, end) for one in document["series"] if one["metric"] in samples]
        except (ValueError, ZeroDivisionError) as error:  # columns of different lengths, or a duplicate time
            raise daemon.stranger(error) from error
        return Drawn([one for one in curves if one.points], step or 1.0)

    return Past(t("from {url}", url=daemon.url), words, drawn)


def _samples(catalogue: Catalogue, word: str) -> set[str]:
    """Return Prometheus' names of a keyword's metrics, as in the API."""
    return {catalogue[metric].exposed_name for metric in WORDS[word]}


def _curve_of(catalogue: Catalogue, series: Mapping[str, Any], step: float, until_wall: float) -> Curve:
    """Return a series of an answer as a curve; a counter as its increase per second."""
    spec = next(spec for spec in catalogue if spec.exposed_name == series["metric"])
    ref = SeriesRef(spec.name, tuple(series["labels"].items()))
    times, values = series["time"], series["value"]
    if series["kind"] == "counter":
        buckets = [Bucket(t, 1, v, v, v, v) for t, v in zip(times, values, strict=True)]
        points = [(wall, value, value, value) for wall, value in rates(buckets, step, until_wall)]
        return Curve(ref._replace(metric=f"{ref.metric}:rate"), spec.unit, True, points)
    lows, highs = series.get("min", values), series.get("max", values)
    return Curve(ref, spec.unit, False, list(zip(times, lows, values, highs, strict=True)))


def _unit(catalogue: Catalogue, metric: str) -> str:
    spec = catalogue.find(metric)
    return "" if spec is None else spec.unit
