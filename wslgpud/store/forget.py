"""Series that nothing is kept of any more go, and of too many names those that were not seen for longest."""

from __future__ import annotations

import time

from sqlalchemy import Connection, Integer, bindparam, delete, func, select, text

from wslgpud.config import StoreSettings
from wslgpud.metrics import MOST_SERIES_OF_NAMES
from wslgpud.store import schema
from wslgpud.store.intake import Intake
from wslgpud.store.rollup import DAY

#: time between two passes over all series
PASS_SECONDS = 6 * 3600.0
#: a slice aims at this; 50 ms is the promise
SLICE_SECONDS = 0.02
#: series read at a time
_AT_ONCE = 200
#: of a metric that has its fill of names so many series are left, so that new ones find room
ROOMY = MOST_SERIES_OF_NAMES * 7 // 8

_series = schema.series.c
# The days that a summary has, the newest first, each sought by the key: an index by series would cost more
# room than the series.
_PARTS = """WITH RECURSIVE parts(part) AS (SELECT max(part) FROM {table} UNION ALL
    SELECT (SELECT max(t.part) FROM {table} t WHERE t.part < parts.part)
    FROM parts WHERE parts.part >= :since)
    SELECT {what} FROM parts {rest}"""
_OF_SERIES = "JOIN rollup_hour r ON r.part = parts.part AND r.series = :series WHERE parts.part >= :since LIMIT 1"
_HOUR_SINCE = text(_PARTS.format(table="rollup_hour", what="1", rest=_OF_SERIES))
_SUMMARIES = {
    table: text(_PARTS.format(table=table.name, what="part", rest="")).columns(table.c.part)
    for table in (schema.rollup_minute, schema.rollup_hour)
}


class Forgetter:
    """Passes over the series now and then, a slice each time it is called."""

    def __init__(self, settings: StoreSettings, intake: Intake) -> None:
        days = max(settings.raw_days, settings.minute_days, settings.hour_days)
        self._raw_seconds, self._all_seconds = settings.raw_days * DAY, days * DAY
        self._intake = intake
        self._due_mono = 0.0
        self._place: int | None = None
        self._excess: dict[tuple[int, str], int] = {}
        self.forgotten = 0

    def __call__(self, connection: Connection, now_wall: float) -> bool:
        """Look at some series within the caller's transaction; tell whether there are more."""
        if time.monotonic() < self._due_mono:
            return False
        low, high = 0, schema.series_range(1 << 32)[1]
        if connection.dialect.name != "sqlite":  # a file is all ours, also what a renamed machine has left
            low, high = schema.series_range(self._intake.host_id)
        if self._place is None:
            self._place, self._excess = low - 1, _excess(connection, low, high)
        query = select(_series.id, _series.host, _series.metric).where(_series.id.between(self._place + 1, high))
        some = connection.execute(query.order_by(_series.id).limit(_AT_ONCE)).all()
        started, in_use = time.monotonic(), self._intake.in_use()
        for number, host, metric in some:
            self._place = number
            crowded = self._excess.get((host, metric), 0) > 0
            since = now_wall - (self._raw_seconds if crowded else self._all_seconds)
            if number not in in_use and not _kept(connection, number, since):
                _delete(connection, number)
                self.forgotten += 1
                if crowded:
                    self._excess[host, metric] -= 1
            if time.monotonic() - started > SLICE_SECONDS:
                return True
        if len(some) == _AT_ONCE:
            return True
        self._place, self._due_mono = None, time.monotonic() + PASS_SECONDS
        return False


def _excess(connection: Connection, low: int, high: int) -> dict[tuple[int, str], int]:
    count = func.count()
    query = select(_series.host, _series.metric, count).where(_series.id.between(low, high))
    query = query.group_by(_series.host, _series.metric).having(count >= MOST_SERIES_OF_NAMES)
    return {(host, metric): found - ROOMY for host, metric, found in connection.execute(query)}


def _kept(connection: Connection, number: int, since_wall: float) -> bool:
    since = int(since_wall // DAY) * DAY
    if connection.execute(_HOUR_SINCE, {"series": number, "since": since}).first() is not None:
        return True
    batch = schema.batch.c
    place_of = func.instr if connection.dialect.name == "sqlite" else func.strpos
    place = place_of(batch.readings, bindparam("needle"), type_=Integer)
    mine = batch.id.between(*schema.row_range(number >> schema.SERIES_BITS))
    query = select(batch.id).where(mine, place > 0).limit(1)
    return connection.execute(query, {"needle": f'"{number}":'}).first() is not None


def _delete(connection: Connection, number: int) -> None:
    for table, parts in _SUMMARIES.items():
        gone = table.c.series == number, table.c.part.in_(parts.bindparams(since=0).scalar_subquery())
        connection.execute(delete(table).where(*gone))
    connection.execute(delete(schema.series).where(_series.id == number))
