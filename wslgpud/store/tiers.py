"""The summaries in the database: minutes as they are sealed, hours always made anew from their minutes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import copysign, gcd, isfinite
from sys import float_info
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, select

from wslgpud.model import Number
from wslgpud.store import schema
from wslgpud.store.pending import dumps
from wslgpud.store.rollup import Steps, Summary

MINUTE, HOUR, DAY = 60, 3600, 86400
#: seconds whose minutes share a row: those of a chunk, so that rows are written once
MINUTE_PART = 900
_MINUTES = MINUTE_PART // MINUTE
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
    low, high = min(numbers), max(numbers)
    these = and_(table.c.part.in_(parts), table.c.series.between(low, high))
    all_minutes = {(time, number): known for time, number, known in _minute_rows(connection, these)}
    if all_minutes:
        connection.execute(delete(table).where(these))
    for key, new in minutes.items():
        all_minutes[key] = all_minutes[key].then(new) if key in all_minutes else new
    by_row: dict[tuple[int, int], dict[int, Summary]] = {}
    for (time, number), known in all_minutes.items():
        part = time // MINUTE_PART * MINUTE_PART
        by_row.setdefault((part, number), {})[(time - part) // MINUTE] = known
    rows = [{"part": part, "series": number, **packed(row)} for (part, number), row in sorted(by_row.items())]
    connection.execute(table.insert(), rows)
    _renew_hours(connection, parts, low, high)


def _renew_hours(connection: Connection, parts: Iterable[int], low: int, high: int) -> None:
    minute, table = schema.rollup_minute, schema.rollup_hour
    for begin in sorted({part // HOUR * HOUR for part in parts}):
        found: dict[int, Summary] = {}
        within = range(begin, begin + HOUR, MINUTE_PART)
        of_hour = and_(minute.c.part.in_(within), minute.c.series.between(low, high))
        for _, number, known in _minute_rows(connection, of_hour):
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


def _minute_rows(connection: Connection, where: ColumnElement[bool]) -> Iterator[tuple[int, int, Summary]]:
    """Return (time, series, summary), by series in order of time."""
    table = schema.rollup_minute
    for row in connection.execute(select(table).where(where).order_by(table.c.part, table.c.series)):
        for minute, known in unpacked(row.unit, row.base, row.data).rows():
            yield row.part + minute * MINUTE, row.series, known


def packed(minutes: Mapping[int, Summary]) -> dict[str, Any]:
    """Return the minutes (0 to 14) of one series and part as columns of a row.

    Of whole numbers the distances from ``base`` and ``last`` in multiples of ``unit``; of doubles (unit 0)
    the values themselves. A list holds null where a minute is missing; one number stands for 15 equal ones.
    """
    some = next(iter(minutes.values()))
    unit, base = 0, 0
    fields: dict[int, Sequence[Number]]
    if isinstance(some.last, float):
        fields = {m: (s.n, s.last, s.low, s.high, _finite(s)) for m, s in minutes.items()}
    else:
        base = int(some.last)
        plain = {
            m: (s.last - base, s.last - s.low, s.high - s.last, s.total - s.n * s.last)
            for m, s in minutes.items()
        }
        unit = gcd(*(int(v) for values in plain.values() for v in values)) or 1
        fields = {m: (minutes[m].n, *(int(v) // unit for v in values)) for m, values in plain.items()}
    columns = []
    for i in range(5):
        values = [fields[m][i] if m in fields else None for m in range(_MINUTES)]
        alike = values[0] is not None and values.count(values[0]) == _MINUTES and unit
        columns.append(values[0] if alike or (i == 0 and len(set(values)) == 1) else values)
    return {"unit": unit, "base": base, "data": dumps(columns)}


def unpacked(unit: int, base: int, data: str) -> Steps:
    """Return the minutes that the columns of a row hold, in order."""
    columns = [c if isinstance(c, list) else [c] * _MINUTES for c in json.loads(data)]
    minutes: Sequence[int] = range(_MINUTES)
    if None in columns[0]:
        minutes = [minute for minute in minutes if columns[0][minute] is not None]
        columns = [[column[minute] for minute in minutes] for column in columns]
    n, last, below, above, extra = columns
    if not unit:
        return Steps(minutes, n, below, above, extra, last)
    ends = [base + distance * unit for distance in last]
    return Steps(
        minutes,
        n,
        [end - distance * unit for end, distance in zip(ends, below, strict=True)],
        [end + distance * unit for end, distance in zip(ends, above, strict=True)],
        [count * end + more * unit for count, end, more in zip(n, ends, extra, strict=True)],
        ends,
    )


def _kept(known: Summary) -> dict[str, Number]:
    """Return a summary as the row of an hour keeps it; ``history`` reads it back."""
    if isinstance(known.last, float):
        return {
            "n": known.n,
            "last": known.last,
            "below": known.low,
            "above": known.high,
            "extra": _finite(known),
        }
    distances = known.last - known.low, known.high - known.last, known.total - known.n * known.last
    # numbers near the ends of 64 bits: a bound instead of a distance is better than no row
    below, above, extra = (max(-_INT64_MAX, min(_INT64_MAX, distance)) for distance in distances)
    return {"n": known.n, "last": known.last, "below": below, "above": above, "extra": extra}


def _finite(known: Summary) -> Number:
    """Return the sum, bounded: neither JSON nor a database takes infinity."""
    return known.total if isfinite(known.total) else copysign(float_info.max, known.last)
