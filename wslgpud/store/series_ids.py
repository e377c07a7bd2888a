"""Ids of series: looked up when they are first written, so that no process holds all of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, func, select, update

from wslgpud.metrics import MAX_SERIES_OF_NAMES, OTHER, MetricSpec
from wslgpud.store import schema

#: a series no longer read is dropped after one to two times this
TURN_SECONDS = 3600.0
_series = schema.series.c


class SeriesKey(NamedTuple):
    """The key of a series; ``labels`` is the JSON object in the table."""

    metric: str
    kind: str
    labels: str
    divisor: int


def find_or_add(connection: Connection, host: int, key: SeriesKey, wall: float, *, limited: bool = False) -> int | None:
    """Return the id of a series, a new one if the database has none.

    ``limited``: None instead of a new one where its metric has ``MAX_SERIES_OF_NAMES``.
    """
    first, last = schema.series_range(host)
    of_metric, of_host = (_series.host == host, _series.metric == key.metric), _series.id.between(first, last)
    # a row that another program has put under our name is not ours
    same = *of_metric, of_host, _series.labels == key.labels, _series.divisor == key.divisor
    known: int | None = connection.scalar(select(_series.id).where(*same))
    now = {"kind": key.kind, "seen_ms": round(wall * 1000)}
    if known is not None:  # the kind of a metric may have changed
        connection.execute(update(schema.series).where(_series.id == known).values(now))
        return known
    if limited and (connection.scalar(select(func.count()).where(*of_metric)) or 0) >= MAX_SERIES_OF_NAMES:
        return None
    number = (connection.scalar(select(func.max(_series.id)).where(of_host)) or first) + 1
    schema.insert_new(connection, schema.series, [{"id": number, "host": host, **key._asdict(), **now}])
    return number


@dataclass(slots=True)
class Series:
    """A series in use. Queued samples refer to it by ``name``, which is empty for one that is not stored."""

    name: str
    key: SeriesKey
    spec: MetricSpec
    labels: tuple[str, ...]
    #: id in the open database; None until it is looked up
    number: int | None = None

    @property
    def limited(self) -> bool:
        return any(names.chosen(self.spec, self.labels) is not None for names in self.spec.names)


class SeriesInUse:
    """Series from their first reading until an hour or two after the last one."""

    def __init__(self) -> None:
        #: metric and label values -> series
        self.known: dict[tuple[str, tuple[str, ...]], Series] = {}
        self._before = self.known
        self._turned_mono = 0.0
        self._learned = 0

    def learn(self, spec: MetricSpec, labels: tuple[str, ...]) -> Series:
        """Return the entry of a series not seen since the last turn."""
        series = self._before.get((spec.name, labels))
        if series is None:
            own = schema.dumps(dict(zip(spec.labels, labels, strict=False)))
            self._learned += 1
            key = SeriesKey(spec.name, spec.kind, own, 10**spec.decimals)
            series = Series(str(self._learned), key, spec, labels)
        self.known[spec.name, labels] = series
        return series

    def turn(self, now_mono: float) -> None:
        """Drop the series that were not read for one to two hours; no queued sample may refer to one."""
        if now_mono - self._turned_mono >= TURN_SECONDS:
            self._turned_mono, self._before, self.known = now_mono, self.known, {}

    def every(self) -> Collection[Series]:
        return {s.name: s for s in (*self._before.values(), *self.known.values()) if s.name}.values()

    def replace(self, series: Series) -> None:
        """Map a series without an id of its own to that of all others, or to none."""
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
