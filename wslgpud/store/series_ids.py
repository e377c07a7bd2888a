"""Ids of series: looked up on demand, so that no process holds all of them.

The daemon holds those of series in use (``SeriesInUse``); queued rows refer to them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, func, select, tuple_, update

from wslgpud.metrics import MAX_SERIES_OF_NAMES, OTHER, MetricSpec
from wslgpud.store import schema

#: a series no longer read is dropped after one to two times this
TURN_SECONDS = 3600.0
_series = schema.series.c
_RENEW = update(schema.series).where(_series.id == bindparam("number"))
_RENEW = _RENEW.values(kind=bindparam("now"), seen_ms=bindparam("ms"))

Identity = tuple[str, str, int]


class SeriesKey(NamedTuple):
    """The key of a series; ``labels`` is the JSON object in the table."""

    metric: str
    kind: str
    labels: str
    divisor: int

    @property
    def identity(self) -> Identity:
        """The identity of a row, independent of the metric's kind, which may change."""
        return self.metric, self.labels, self.divisor


class KnownSeries(NamedTuple):
    """The database's knowledge of some series of a host."""

    numbers: Mapping[Identity, int]
    #: the highest number in use
    newest: int
    #: how many more series a metric with user-chosen names may have
    room: Mapping[str, int]


def find(connection: Connection, host: int, keys: Collection[SeriesKey]) -> KnownSeries:
    first, last = schema.series_range(host)
    newest: int = connection.scalar(select(func.max(_series.id)).where(_series.id.between(first, last))) or first
    numbers: dict[Any, int] = {}
    identities = sorted({key.identity for key in keys})
    columns = tuple_(_series.metric, _series.labels, _series.divisor)
    for at in range(0, len(identities), schema.MAX_IDENTITIES):
        query = select(_series.id, _series.metric, _series.labels, _series.divisor)
        query = query.where(_series.host == host, columns.in_(identities[at : at + schema.MAX_IDENTITIES]))
        for number, *identity in connection.execute(query):
            # a row that another program has put under our name is not ours
            if first <= number <= last:
                numbers[tuple(identity)] = number
    room = {}
    for metric in {key.metric for key in keys if key.identity not in numbers}:
        count = select(func.count()).select_from(schema.series).where(_series.host == host, _series.metric == metric)
        room[metric] = MAX_SERIES_OF_NAMES - connection.execute(count).scalar_one()
    return KnownSeries(numbers, newest, room)


def save(connection: Connection, host: int, series: Sequence[tuple[int, SeriesKey]], wall: float) -> None:
    """Write the rows of series that are being read, new ones or not: the kind of a metric may have changed."""
    now = {"host": host, "seen_ms": round(wall * 1000)}
    schema.insert_new(connection, schema.series, [{"id": number, **now, **key._asdict()} for number, key in series])
    renewed = [{"number": number, "now": key.kind, "ms": now["seen_ms"]} for number, key in series]
    if renewed:
        connection.execute(_RENEW, renewed)


@dataclass(slots=True)
class Series:
    """A series in use. Queued rows refer to it by ``name``, which is empty for one that is not stored."""

    name: str
    key: SeriesKey
    spec: MetricSpec
    labels: tuple[str, ...]
    #: id in the open database; None until it is looked up
    number: int | None = None
    #: id in the database that was open before
    before: int | None = None


#: metric and label values -> series
_Generation = dict[tuple[str, tuple[str, ...]], Series]


class SeriesInUse:
    """Series from their first reading until an hour or two after the last one.

    Queued rows refer to them, so ``turn`` is called only while the queue is empty.
    """

    def __init__(self) -> None:
        self.known: _Generation = {}
        self._before: _Generation = {}
        self._turned_mono = 0.0
        self._learned = self._host_id = self._newest = 0
        #: series whose rows are to be written
        self.unsaved: list[tuple[int, SeriesKey]] = []

    def learn(self, spec: MetricSpec, labels: tuple[str, ...]) -> Series:
        """Return the entry of a series not seen since the last turn."""
        series = self._before.get((spec.name, labels))
        if series is None:
            own = schema.dumps(dict(zip(spec.labels, labels, strict=False)))
            key = SeriesKey(spec.name, spec.kind, own, 10**spec.decimals)
            self._learned += 1
            series = Series(str(self._learned), key, spec, labels)
        self.known[spec.name, labels] = series
        return series

    def turn(self, now_mono: float) -> None:
        """Drop the series that were not read for one to two hours."""
        if now_mono - self._turned_mono >= TURN_SECONDS and not self.unnumbered() and not self.unsaved:
            self._turned_mono, self._before, self.known = now_mono, self.known, {}

    def unnumbered(self) -> list[Series]:
        return [series for series in self._all() if series.number is None and series.name]

    def numbers(self) -> dict[str, int]:
        return {series.name: series.number for series in self._all() if series.number is not None}

    def number(self, keys: Collection[SeriesKey], known: KnownSeries) -> int:
        """Assign numbers to new series, up to ``room`` per metric with user-chosen names; return how many got none."""
        _, last = schema.series_range(self._host_id)
        self._newest = max(self._newest, known.newest)
        waiting = [series for series in self.unnumbered() if series.key in keys]
        # first those that have one: a new number must be unused, even if a damaged file lost rows
        for series in waiting:
            number = known.numbers.get(series.key.identity)
            if number is None and series.before is not None and known.newest < series.before <= last:
                number = series.before
            if number is not None:
                self._keep(series, number)
        room, rejected = dict(known.room), 0
        for series in waiting:
            if series.number is None and (series.before is not None or _is_room(series, room)):
                self._keep(series, self._newest + 1)
            elif series.number is None:
                rejected += 1
                self._replace(series)
        return rejected

    def adopt(self, host_id: int) -> None:
        """Have all numbers looked up in a newly opened database."""
        self._host_id, self._newest = host_id, 0
        self.unsaved.clear()
        for series in self._all():
            series.before, series.number = series.number or series.before, None

    def _all(self) -> Collection[Series]:
        return {series.name: series for series in (*self._before.values(), *self.known.values())}.values()

    def _keep(self, series: Series, number: int) -> None:
        series.number = number
        self._newest = max(self._newest, number)
        self.unsaved.append((number, series.key))

    def _replace(self, series: Series) -> None:
        """Map a series without its own number to that of all others, or to none."""
        spec, chosen = series.spec, {names.label for names in series.spec.names}
        other = tuple(
            OTHER if label in chosen else value for label, value in zip(spec.labels, series.labels, strict=False)
        )
        if other == series.labels or not all(names.summed for names in spec.names):
            series.name = ""
            return
        instead = self.known.get((spec.name, other)) or self.learn(spec, other)
        for generation in (self._before, self.known):
            if (spec.name, series.labels) in generation:
                generation[spec.name, series.labels] = instead


def _is_room(series: Series, room: dict[str, int]) -> bool:
    if not any(names.chosen(series.spec, series.labels) is not None for names in series.spec.names):
        return True
    room[series.key.metric] = room.get(series.key.metric, 0) - 1
    return room[series.key.metric] >= 0
