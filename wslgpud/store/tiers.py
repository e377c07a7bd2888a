"""The summaries in the database: minutes as they are sealed, hours always made anew from their minutes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import copysign, isfinite
from sys import float_info
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, select

from wslgpud.model import Number
from wslgpud.store import schema
from wslgpud.store.rollup import Summary

MINUTE, HOUR, DAY = 60, 3600, 86400
#: seconds whose minutes lie together in the table
MINUTE_PART = 900
_INT64_MAX = (1 << 63) - 1
#: (beginning of the step in seconds, series) -> what is known of it
Summaries = Mapping[tuple[int, int], Summary]


def write_summaries(connection: Connection, minutes: Summaries) -> None:
    """Add newly sealed minutes, joining those that are there already, and renew the hours they belong to.

    A minute is there already when a clock went back or a chunk was closed within it.
    """
    if not minutes:
        return
    table = schema.rollup_minute
    parts = sorted({time // MINUTE_PART * MINUTE_PART for time, _ in minutes})
    numbers = {number for _, number in minutes}
    these = and_(table.c.part.in_(parts), table.c.series.between(min(numbers), max(numbers)))
    there = {(time, number): known for time, number, known in _minute_rows(connection, these)}
    if there:
        connection.execute(delete(table).where(these))
        for key, new in minutes.items():
            there[key] = there[key].then(new) if key in there else new
    connection.execute(table.insert(), list(_rows_of_minutes(there or minutes)))
    _renew_hours(connection, parts, min(numbers), max(numbers))


def _renew_hours(connection: Connection, parts: Iterable[int], low: int, high: int) -> None:
    minute, table = schema.rollup_minute, schema.rollup_hour
    for begin in sorted({part // HOUR * HOUR for part in parts}):
        found: dict[int, Summary] = {}
        of_hour = and_(
            minute.c.part.in_(range(begin, begin + HOUR, MINUTE_PART)), minute.c.series.between(low, high)
        )
        for _, number, known in _minute_rows(connection, of_hour, expand=False):
            found[number] = found[number].then(known) if number in found else known
        day, hour = begin // DAY * DAY, begin % DAY // HOUR
        connection.execute(
            delete(table).where(table.c.part == day, table.c.series.between(low, high), table.c.hour == hour)
        )
        rows = [
            {"part": day, "series": n, "hour": hour, "n": s.n, **_kept(s)} for n, s in sorted(found.items())
        ]
        if rows:
            connection.execute(table.insert(), rows)


def _kept(known: Summary) -> dict[str, Number]:
    """Return a summary as its row keeps it: distances of whole numbers, doubles as they are."""
    if isinstance(known.last, float):
        total = known.total if isfinite(known.total) else copysign(float_info.max, known.last)
        return {"last": known.last, "below": known.low, "above": known.high, "extra": total}
    distances = known.last - known.low, known.high - known.last, known.total - known.n * known.last
    # numbers near the ends of 64 bits: a bound instead of a distance is better than no row
    below, above, extra = (max(-_INT64_MAX, min(_INT64_MAX, distance)) for distance in distances)
    return {"last": known.last, "below": below, "above": above, "extra": extra}


def summary_of(row: Row[Any]) -> Summary:
    """Return what a row keeps (of one minute, where it stands for several)."""
    if isinstance(row.last, float):
        return Summary(row.n, row.below, row.above, row.extra, row.last)
    return Summary(row.n, row.last - row.below, row.last + row.above, row.n * row.last + row.extra, row.last)


def _rows_of_minutes(minutes: Summaries) -> Iterator[dict[str, Any]]:
    """Return rows by key; neighbours within a part in which the very same value stood become one."""
    row: dict[str, Any] | None = None
    for (time, number), known in sorted(
        minutes.items(), key=lambda i: (i[0][0] // MINUTE_PART, i[0][1], i[0][0])
    ):
        part, minute = time // MINUTE_PART * MINUTE_PART, time % MINUTE_PART // MINUTE
        key = {"part": part, "series": number, "minute": minute, "span": 1, "n": known.n, **_kept(known)}
        if (
            row is not None
            and known.constant
            and row | {"minute": 0, "span": 1} == key | {"minute": 0}
            and row["minute"] + row["span"] == minute
        ):
            row["span"] += 1
            continue
        if row is not None:
            yield row
        row = key
    if row is not None:
        yield row


def _minute_rows(
    connection: Connection, where: ColumnElement[bool], *, expand: bool = True
) -> Iterator[tuple[int, int, Summary]]:
    """Return (time, series, summary) in order of time; unexpanded, a row of several minutes comes as one."""
    table = schema.rollup_minute
    query = select(table).where(where).order_by(table.c.part, table.c.series, table.c.minute)
    for row in connection.execute(query):
        known, time = summary_of(row), row.part + row.minute * MINUTE
        if not expand:
            yield time, row.series, known._replace(n=known.n * row.span, total=known.total * row.span)
            continue
        for i in range(row.span):
            yield time + i * MINUTE, row.series, known
