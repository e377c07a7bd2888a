"""The summaries in the database: minutes as they are sealed, hours always made anew from their minutes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import copysign, gcd, isfinite
from struct import Struct
from sys import float_info
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, select, text

from wslgpud.model import Number
from wslgpud.store import schema
from wslgpud.store.damage import DAMAGE
from wslgpud.store.pending import dumps
from wslgpud.store.rollup import NONE, Steps, Summary

log = logging.getLogger(__name__)

MINUTE, HOUR, DAY = 60, 3600, 86400
#: seconds whose minutes share a row: those of a chunk, so that rows are written once
MINUTE_PART = 900
_MINUTES = MINUTE_PART // MINUTE
#: all columns of a row, also of a file that an older version still writes: that lacks the newest
MINUTE_ROW = text("rollup_minute.*")
_INT64_MAX = (1 << 63) - 1
#: 15 numbers of so many bytes, as the next wider that ``struct`` knows
_WORDS = [Struct(f">{_MINUTES}{code}") for code in "BBHIIQQQQ"]
#: columns of whole numbers since schema 5
PACKED = ("n", "last", "below", "above", "over")
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
    all_minutes = {(time, number): known for time, number, known in minute_rows(connection, these)}
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
        for _, number, known in minute_rows(connection, of_hour):
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


def minute_rows(connection: Connection, where: ColumnElement[bool]) -> Iterator[tuple[int, int, Summary]]:
    """Return (time, series, summary), by series in order of time."""
    table = schema.rollup_minute
    query = select(MINUTE_ROW).select_from(table).where(where).order_by(table.c.part, table.c.series)
    for part, series, *row in connection.execute(query):
        for minute, known in minutes_of(part, series, *row).rows():
            yield part + minute * MINUTE, series, known


def packed(minutes: Mapping[int, Summary]) -> dict[str, Any]:
    """Return the minutes (0 to 14) of one series and part as columns of a row, see ``schema``."""
    some = next(iter(minutes.values()))
    if isinstance(some.last, float):
        doubles = {m: (s.n, s.last, s.low, s.high, _finite(s)) for m, s in minutes.items()}
        return _as_text(0, doubles)
    base = min(int(s.last) for s in minutes.values())
    distances = {
        m: [int(v) for v in (s.last - base, s.last - s.low, s.high - s.last, s.total - s.n * s.low)]
        for m, s in minutes.items()
    }
    if max(map(max, distances.values())) > _INT64_MAX:
        return _as_text(1, {m: (s.n, s.last, *_distances(s)) for m, s in minutes.items()})
    unit = gcd(*(v for values in distances.values() for v in values)) or 1
    numbers = {m: (minutes[m].n, *(v // unit for v in values)) for m, values in distances.items()}
    none = (0,) * len(PACKED)
    columns = zip(*(numbers.get(m, none) for m in range(_MINUTES)), strict=True)
    blobs = zip(PACKED, map(_bytes_of, columns), strict=True)
    return {"unit": unit, "base": base, "data": "", **dict(blobs)}


def _as_text(unit: int, fields: Mapping[int, Sequence[Number]]) -> dict[str, Any]:
    """Return minutes as JSON: a list for each column, with null where a minute is missing."""
    columns = [[fields[m][i] if m in fields else None for m in range(_MINUTES)] for i in range(len(PACKED))]
    return {"unit": unit, "base": 0, "data": dumps(columns), **dict.fromkeys(PACKED)}


def _bytes_of(column: Sequence[int]) -> bytes:
    """Return 15 numbers in as few bytes as the largest needs, one after the other, or one for all."""
    width = (max(column).bit_length() + 7) // 8
    alike = column.count(column[0]) == _MINUTES
    return b"".join(number.to_bytes(width, "big") for number in (column[:1] if alike else column))


def _numbers_of(blob: bytes) -> Sequence[int]:
    """Undo ``_bytes_of``."""
    if len(blob) < _MINUTES:
        return [int.from_bytes(blob, "big")] * _MINUTES
    width = len(blob) // _MINUTES
    words = _WORDS[width]
    wide = words.size // _MINUTES
    if wide > width:
        filled = bytearray(words.size)
        for i in range(width):
            filled[wide - width + i :: wide] = blob[i::width]
        return words.unpack(filled)
    return words.unpack(blob)


def minutes_of(part: int, series: int, *row: Any) -> Steps:
    """Return the minutes that a row holds, in order; none of one that is damaged."""
    try:
        return unpacked(*row)
    except DAMAGE as error:
        log.warning("minutes of series %d from %d on: damaged: %s", series, part, error)
        return NONE


def unpacked(unit: int, base: int, data: str, *packed: bytes | None) -> Steps:
    """Return the minutes that the columns of a row hold, in order."""
    if not data:
        return _of_bytes(unit, base, [_numbers_of(blob or b"") for blob in packed])
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


def _of_bytes(unit: int, base: int, columns: Sequence[Sequence[int]]) -> Steps:
    minutes: Sequence[int] = range(_MINUTES)
    if 0 in columns[0]:
        minutes = [minute for minute in minutes if columns[0][minute]]
        columns = [[column[minute] for minute in minutes] for column in columns]
    n, last, below, above, over = columns
    ends = [base + distance * unit for distance in last]
    low = [end - distance * unit for end, distance in zip(ends, below, strict=True)]
    high = [end + distance * unit for end, distance in zip(ends, above, strict=True)]
    total = [count * least + more * unit for count, least, more in zip(n, low, over, strict=True)]
    return Steps(minutes, n, low, high, total, ends)


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
    # numbers near the ends of 64 bits: a bound instead of a distance is better than no row
    below, above, extra = (max(-_INT64_MAX, min(_INT64_MAX, distance)) for distance in _distances(known))
    return {"n": known.n, "last": known.last, "below": below, "above": above, "extra": extra}


def _distances(known: Summary) -> tuple[Number, Number, Number]:
    """Return how far the least, the greatest and all together are from the last."""
    return known.last - known.low, known.high - known.last, known.total - known.n * known.last


def _finite(known: Summary) -> Number:
    """Return the sum, bounded: neither JSON nor a database takes infinity."""
    return known.total if isfinite(known.total) else copysign(float_info.max, known.last)
