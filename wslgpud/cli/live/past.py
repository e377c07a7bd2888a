"""Where the live view's history comes from: a daemon's API, a database, or what it has seen itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from wslgpud.catalogue import catalogue
from wslgpud.cli.common import Fault
from wslgpud.cli.live.trail import Key, Trail, busy_share
from wslgpud.cli.series import WORDS, find, unit_of
from wslgpud.client import Daemon, Unanswered
from wslgpud.curves import Curve, curve, rates
from wslgpud.serve.api_series import MOST_SERIES
from wslgpud.steps import step_for
from wslgpud.store import Bucket, Reader, SeriesRef, StoreError
from wslgpud.words import t

if TYPE_CHECKING:
    from wslgpud.cli.live.looks import Look

#: of the API's points of all series of an answer, a picture needs a few for each column
MOST_POINTS = 1200
#: sparklines begin with so much of what was before the first look, in steps that leave no column blank
SEED_SECONDS = 600.0
SEED_POINTS = 300


class NoPastError(Exception):
    """There is no history to show; the text says why."""


class Drawn(NamedTuple):
    """Curves of a time, and how long each of their steps is."""

    curves: Sequence[Curve]
    step_seconds: float


class Past(Protocol):
    """Something that remembers; every method may take a while."""

    where: str

    def words(self) -> Sequence[str]:
        """Return what can be asked for, what is looked at most often first.

        Raises:
            NoPastError: nothing can be asked just now.
        """

    def drawn(self, word: str, start: float, end: float, points: int) -> Drawn:
        """Return the curves of a word between two moments, in about so many points.

        Raises:
            NoPastError: it cannot be read just now.
        """

    def close(self) -> None:
        """Give back what it holds."""


class ReaderPast:
    """Reads the database beside the daemon, as ``wslgpud history`` does."""

    def __init__(self, database: str) -> None:
        """Open it.

        Raises:
            NoPastError: there is none, or it cannot be read.
        """
        try:
            self._reader = Reader(database)
        except StoreError as error:
            raise NoPastError(str(error)) from error
        place = self._reader.path
        self.where = t("from {path}", path=str(place)) if place else t("from the database")

    def words(self) -> Sequence[str]:
        """See ``Past.words``."""
        try:
            known = {ref.metric for ref in self._reader.kinds()}
        except StoreError as error:
            raise NoPastError(str(error)) from error
        return [word for word, metrics in WORDS.items() if known.intersection(metrics)]

    def drawn(self, word: str, start: float, end: float, points: int) -> Drawn:
        """See ``Past.drawn``."""
        step = step_for(end - start, points)
        try:
            found = find(self._reader, [word])
            curves = [
                curve(self._reader, ref, (start, end), step, unit_of(ref.metric), rate=kind == "counter")
                for ref, kind in list(found.items())[:MOST_SERIES]
            ]
        except (StoreError, Fault) as error:
            raise NoPastError(str(error)) from error
        return Drawn([one for one in curves if one.points], step)

    def close(self) -> None:
        """See ``Past.close``."""
        self._reader.close()


class ApiPast:
    """Asks a daemon's API, also one of another machine."""

    def __init__(self, daemon: Daemon) -> None:
        """Nothing is asked yet."""
        self._daemon = daemon
        self.where = t("from {url}", url=daemon.url)
        self._known: list[Mapping[str, Any]] = []

    def words(self) -> Sequence[str]:
        """See ``Past.words``."""
        self._known = self._ask("/api/v1/series")["series"]
        metrics = {one["metric"] for one in self._known}
        return [word for word in WORDS if metrics & _samples(word)]

    def drawn(self, word: str, start: float, end: float, points: int) -> Drawn:
        """See ``Past.drawn``."""
        names = [one["name"] for one in self._known if one["metric"] in _samples(word)][:MOST_SERIES]
        if not names:
            return Drawn([], 1.0)
        points = max(10, min(points, MOST_POINTS))
        answer = self._ask("/api/v1/range", series=names, start=start, end=end, points=points)
        curves = [_curve_of(one) for one in answer["series"]]
        return Drawn([one for one in curves if one.points], float(answer["step"] or 1))

    def close(self) -> None:
        """See ``Past.close``."""

    def _ask(self, path: str, **query: Any) -> dict[str, Any]:
        try:
            return self._daemon.ask(path, **query)
        except Unanswered as error:
            raise NoPastError(str(error)) from error


def _samples(word: str) -> set[str]:
    """Return the names of a word's metrics as Prometheus and the API have them."""
    return {catalogue()[metric].sample for metric in WORDS[word]}


def _curve_of(series: Mapping[str, Any]) -> Curve:
    """Return a series of an answer as a curve; a counter as its increase a second."""
    spec = next(spec for spec in catalogue() if spec.sample == series["metric"])
    ref = SeriesRef(spec.name, tuple(series["labels"].items()))
    times, values = series["time"], series["value"]
    if series["kind"] == "counter":
        buckets = [Bucket(t, 1, v, v, v, v) for t, v in zip(times, values, strict=True)]
        points = [(wall, value, value, value) for wall, value in rates(buckets)]
        return Curve(ref._replace(metric=f"{ref.metric}:rate"), spec.unit, True, points)
    lows, highs = series.get("min", values), series.get("max", values)
    return Curve(ref, spec.unit, False, list(zip(times, lows, values, highs, strict=True)))


def before(past: Past, look: Look) -> list[tuple[Key, list[tuple[float, float]]]]:
    """Return what is remembered of the minutes before a look, as ``Trail`` would have seen it.

    Raises:
        NoPastError: it cannot be read just now.
    """
    if isinstance(past, TrailPast):
        return []
    now = datetime.fromisoformat(look.document["at"]).timestamp()
    known = past.words()

    def curves(word: str) -> Iterator[tuple[Mapping[str, str], list[tuple[float, float]]]]:
        if word not in known:
            return
        found = past.drawn(word, now - SEED_SECONDS, now, SEED_POINTS).curves
        if len({one.ref.host for one in found}) > 1:
            return  # many machines write into this database, and which is ours it does not say
        for one in found:
            yield dict(one.ref.labels), [(look.mono + w - now, v) for w, _, v, _ in one.points if w < now]

    capacities = {f["resource"]: f["capacity_bytes"] for f in look.document["forecasts"]}
    found = [
        (Key("used", labels["resource"]), [(mono, 1 - left / capacity) for mono, left in points])
        for labels, points in curves("headroom")
        if (capacity := capacities.get(labels["resource"]))
    ]
    found += [(Key("busy", labels["gpu"]), points) for labels, points in curves("gpu")]
    spent: dict[float, dict[str, float]] = {}
    for labels, points in curves("cpu"):
        for mono, share in points:
            spent.setdefault(mono, {})[labels["mode"]] = share
    cpu = [(mono, busy) for mono, modes in spent.items() if (busy := busy_share(modes)) is not None]
    return [*found, (Key("cpu"), cpu)]


#: what the view has seen itself, by word: curves of ``Trail``, whether shares or bytes a second
_SEEN: Mapping[str, tuple[tuple[str, ...], str]] = {
    "used": (("used",), "ratio"), "gpu": (("busy",), "ratio"), "cpu": (("cpu",), "ratio"),
    "pressure": (("waiting",), "ratio"), "disk": (("disk read", "disk write"), "bytes_per_second"),
    "network": (("received", "sent"), "bytes_per_second"),
    "swap": (("swap in", "swap out"), "bytes_per_second"),
}  # fmt: skip


class TrailPast:
    """What the view has seen since it began: all there is where no daemon keeps a history."""

    def __init__(self, trail: Trail) -> None:
        """Look at what ``trail`` holds; it goes on to grow."""
        self._trail = trail
        self.where = t("no daemon keeps a history here: only what this view has seen")

    def words(self) -> Sequence[str]:
        """See ``Past.words``."""
        seen = {key.what for key in self._trail.known()}
        return [word for word, (what, _) in _SEEN.items() if seen.intersection(what)]

    def drawn(self, word: str, start: float, end: float, points: int) -> Drawn:
        """See ``Past.drawn``."""
        what, unit = _SEEN[word]
        shift = time.time() - time.monotonic()
        keys = [key for key in self._trail.known() if key.what in what]
        curves = []
        for key in keys:
            seen = [(mono + shift, value) for mono, value in self._trail.points(key)]
            inside = [(wall, v, v, v) for wall, v in seen if start <= wall <= end]
            if inside:
                curves.append(Curve(_named(key), unit, rate=False, points=inside))
        return Drawn(curves, max(_usual_step(curves), (end - start) / points))

    def close(self) -> None:
        """See ``Past.close``."""


def _named(key: Key) -> SeriesRef:
    return SeriesRef(key.what, (("of", key.which),) if key.which else ())


def _usual_step(curves: Sequence[Curve]) -> float:
    steps = sorted(b[0] - a[0] for one in curves for a, b in pairwise(one.points))
    return steps[len(steps) // 2] if steps else 1.0


def past_of(database: str, trail: Trail) -> Past:
    """Return the history in a database, else what ``trail`` has seen."""
    if "://" in database or Path(database).exists():
        try:
            return ReaderPast(database)
        except NoPastError:
            pass  # another user's, or damaged: 'wslgpud history' says which; here looking goes on
    return TrailPast(trail)
