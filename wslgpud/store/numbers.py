"""Numbers of series: looked up one by one as they are needed, so that no process holds all of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, func, select, tuple_

from wslgpud.metrics import MOST_SERIES_OF_NAMES
from wslgpud.store import schema
from wslgpud.store.errors import gap
from wslgpud.store.records import SeriesRef
from wslgpud.store.rollup import dumps

#: identities in one statement; SQLite takes 999 values in older versions
_AT_ONCE = 200
_series = schema.series.c

Identity = tuple[str, str, int]


class SeriesKey(NamedTuple):
    """What makes a series; ``labels`` is the JSON object the table keeps."""

    metric: str
    kind: str
    labels: str
    divisor: int

    @property
    def identity(self) -> Identity:
        """What there is one row of, though a metric be declared as another kind some day."""
        return self.metric, self.labels, self.divisor


class Found(NamedTuple):
    """What the database knows of some series of one host."""

    #: number and kind
    rows: Mapping[Identity, tuple[int, str]]
    #: the highest number in use
    newest: int = 0
    #: how many series more a metric may have whose names others choose
    room: Mapping[str, int] = {}
    #: numbers that no series has any more; filled once ``newest`` is about to be the last
    free: Sequence[int] = ()


NOTHING = Found({})


def find(connection: Connection, host: int, keys: Collection[SeriesKey]) -> Found:
    """Look up some series of a host."""
    first, last = schema.series_range(host)
    mine = _series.id.between(first, last)
    newest: int = connection.scalar(select(func.max(_series.id)).where(mine)) or first
    rows: dict[Any, tuple[int, str]] = {}
    identities = sorted({key.identity for key in keys})
    columns = tuple_(_series.metric, _series.labels, _series.divisor)
    for at in range(0, len(identities), _AT_ONCE):
        query = select(_series.id, _series.kind, _series.metric, _series.labels, _series.divisor)
        query = query.where(_series.host == host, columns.in_(identities[at : at + _AT_ONCE]))
        for number, kind, *identity in connection.execute(query):
            # a row that somebody else has put under our name is none of ours
            if first <= number <= last:
                rows[tuple(identity)] = number, kind
    unknown = [key for key in keys if key.identity not in rows]
    room = {}
    for metric in {key.metric for key in unknown}:
        count = select(func.count()).select_from(schema.series).where(_series.host == host, _series.metric == metric)
        room[metric] = max(0, MOST_SERIES_OF_NAMES - (connection.scalar(count) or 0))
    free = _free(connection, first, last, len(unknown)) if newest + len(unknown) > last else ()
    return Found(rows, newest, room, free)


def _free(connection: Connection, first: int, last: int, count: int) -> list[int]:
    free: list[int] = []
    expected = first + 1
    for number in connection.scalars(select(_series.id).where(_series.id.between(expected, last)).order_by(_series.id)):
        free += range(expected, min(number, expected + count - len(free)))
        expected = number + 1
        if len(free) >= count:
            break
    return free


class Number(NamedTuple):
    """One number of a series; it has several if its precision was changed."""

    number: int
    kind: str
    divisor: int


# Made once, as those of ``history`` are.
_named = schema.series.join(schema.host, schema.host.c.id == _series.host)
_OF = (
    select(_series.id, _series.kind, _series.divisor)
    .select_from(_named)
    .where(schema.host.c.name == bindparam("host"))
    .where(_series.metric == bindparam("metric"), _series.labels == bindparam("labels"))
    .order_by(_series.id)
)
_place = func.row_number().over(partition_by=(_series.host, _series.metric), order_by=_series.labels)
_LISTED = select(
    schema.host.c.name, _series.host, _series.metric, _series.kind, _series.labels, _place.label("place")
).select_from(_named)
_REFS = (
    select(_series.id, _series.divisor, _series.metric, _series.labels, schema.host.c.name)
    .select_from(_named)
    .where(_series.id.in_(bindparam("numbers", expanding=True)))
)


def of(connection: Connection, series: SeriesRef) -> list[Number]:
    """Return the numbers of a series, the oldest first; none of one that is not known."""
    words = {"host": series.host, "metric": series.metric, "labels": dumps(dict(series.labels))}
    return [Number(*row) for row in connection.execute(_OF, words)]


def listed(connection: Connection, host: str, most: int) -> Iterator[tuple[SeriesRef, str]]:
    """Yield each series (of one machine if it is named) with its kind, at most so many of a metric."""
    of = (_LISTED.where(schema.host.c.name == host) if host else _LISTED).subquery().c
    query = select(of.name, of.metric, of.kind, of.labels).where(of.place <= most)
    query = query.order_by(of.host, of.metric, of.labels)
    with connection.execute(query.execution_options(stream_results=True, max_row_buffer=500)) as rows:
        for name, metric, kind, labels in rows:
            with gap("labels of a series of %s", metric):
                yield SeriesRef(metric, tuple(json.loads(labels).items()), name), kind


def refs(connection: Connection, wanted: Sequence[int]) -> Iterator[tuple[int, SeriesRef, int]]:
    """Return the series with these numbers, and their divisors."""
    for at in range(0, len(wanted), _AT_ONCE):
        words = {"numbers": wanted[at : at + _AT_ONCE]}
        for number, divisor, metric, labels, host in connection.execute(_REFS, words):
            with gap("labels of series %d", number):
                yield number, SeriesRef(metric, tuple(json.loads(labels).items()), host), divisor
