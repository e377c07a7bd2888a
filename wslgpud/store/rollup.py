"""Rollups by minute and hour: n, min, max, sum, last; minutes when sealing, hours from minutes."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import gcd
from operator import truediv
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, and_, delete, select

from wslgpud.store import schema
from wslgpud.store.errors import gap

MINUTE, HOUR, DAY = 60, 3600, 86400
#: seconds whose minutes share a row: those of a chunk, so that rows are written once
MINUTE_PART = 900
_MINUTES = MINUTE_PART // MINUTE
#: columns of a row of minutes that hold a number for each
COLUMNS = ("n", "last", "below", "above", "over")
_INT64_MAX = (1 << 63) - 1
#: 15 numbers of a width in bytes, in the next wider format of ``struct``
_WORDS = [Struct(f">{_MINUTES}{code}") for code in "BBHIIQQQQ"]

_K = TypeVar("_K", int, tuple[int, int])


class Summary(NamedTuple):
    """The summary of a series over one step; ``last`` is the latest to arrive."""

    n: int
    low: int
    high: int
    total: int
    last: int

    def then(self, later: Summary) -> Summary:
        """Return the summary of both; ``later`` arrived later."""
        return Summary(
            self.n + later.n, min(self.low, later.low), max(self.high, later.high), self.total + later.total, later.last
        )


class Steps(NamedTuple):
    """Summaries by time, in columns: a year has 9,000 hours, too many for a call each."""

    times: Sequence[Any]
    n: Sequence[Any]
    low: Sequence[int]
    high: Sequence[int]
    total: Sequence[int]
    last: Sequence[int]

    def rows(self) -> Iterable[tuple[int, Summary]]:
        """Return (beginning of the step, summary)."""
        new = partial(tuple.__new__, Summary)  # NamedTuple's own is Python code
        return zip(self.times, map(new, zip(*self[1:], strict=True)), strict=True)

    @property
    def means(self) -> Iterable[float]:
        return map(truediv, self.total, self.n)

    def between(self, start: int, end: int) -> Steps:
        """Return those that begin between ``start`` and ``end``, both included."""
        first, last = bisect_left(self.times, start), bisect_right(self.times, end)
        if (first, last) == (0, len(self.times)):
            return self
        return Steps(*(column[first:last] for column in self))

    def then(self, later: Steps) -> Steps:
        """Return these combined with later arrivals, which may belong to the same steps."""
        if not self.times or not later.times:
            return later if later.times else self
        place = bisect_left(self.times, later.times[0])
        end = dict(self.between(later.times[0], self.times[-1]).rows())
        for time, known in later.rows() if end else ():
            _add(end, time, known)
        pairs = zip(self, columns(end) if end else later, strict=True)
        return Steps(*([*mine[:place], *theirs] for mine, theirs in pairs))


def columns(known: Mapping[int, Summary]) -> Steps:
    """Return summaries by their beginnings as columns, by time."""
    times = sorted(known)
    return Steps(times, *zip(*(known[time] for time in times), strict=True)) if times else NONE


NONE = Steps([], [], [], [], [], [])


def summary(values: Sequence[Any]) -> Summary:
    return Summary(len(values), min(values), max(values), sum(values), values[-1])


def summarise(times: Sequence[int], values: Sequence[Any], step: int) -> dict[int, Summary]:
    """Return a summary for each clock-aligned ``step`` with values; ``times`` are in order of arrival."""
    summaries: dict[int, Summary] = {}
    for begin, first, end in stretches(times, step):
        _add(summaries, begin, summary(values[first:end]))
    return summaries


def _add(summaries: dict[_K, Summary], key: _K, later: Summary) -> None:
    summaries[key] = summaries[key].then(later) if key in summaries else later


def stretches(times: Sequence[int], step: int) -> Iterator[tuple[int, int, int]]:
    """Return (beginning of the step, index of the first, index after the last) of runs within one step."""
    first, count = 0, len(times)
    while first < count:
        begin = times[first] // step * step
        end = first + 1
        while end < count and begin <= times[end] < begin + step:
            end += 1
        yield begin, first, end
        first = end


def merge(steps: Steps, step: int) -> Steps:
    times, n, low, high, total, last = steps
    runs = list(stretches(times, step))
    return Steps(
        [begin for begin, _, _ in runs],
        [sum(n[first:end]) for _, first, end in runs],
        [min(low[first:end]) for _, first, end in runs],
        [max(high[first:end]) for _, first, end in runs],
        [sum(total[first:end]) for _, first, end in runs],
        [last[end - 1] for _, _, end in runs],
    )


def write_summaries(connection: Connection, minutes: Mapping[tuple[int, int], Summary]) -> None:
    """Merge newly sealed minutes, by beginning (s) and series, into existing ones, and update their hours.

    A minute exists already if the clock went back or a chunk was closed within it.
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
        _add(all_minutes, key, new)
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
        summaries: dict[int, Summary] = {}
        within = range(begin, begin + HOUR, MINUTE_PART)
        of_hour = and_(minute.c.part.in_(within), minute.c.series.between(low, high))
        for _, number, known in minute_rows(connection, of_hour):
            _add(summaries, number, known)
        day, hour = begin // DAY * DAY, begin % DAY // HOUR
        connection.execute(
            delete(table).where(table.c.part == day, table.c.series.between(low, high), table.c.hour == hour)
        )
        rows = [{"part": day, "series": n, "hour": hour, "n": s.n, **_kept(s)} for n, s in sorted(summaries.items())]
        if rows:
            connection.execute(table.insert(), rows)


def minute_rows(connection: Connection, where: ColumnElement[bool]) -> Iterator[tuple[int, int, Summary]]:
    """Return (time, series, summary), by series in order of time."""
    table = schema.rollup_minute
    query = select(table).where(where).order_by(table.c.part, table.c.series)
    for part, series, *row in connection.execute(query):
        for minute, known in minutes_of(part, series, *row).rows():
            yield part + minute * MINUTE, series, known


def packed(minutes: Mapping[int, Summary]) -> dict[str, Any]:
    """Return the minutes (0 to 14) of one series and part as columns of a row, see ``schema``."""
    base = min(s.last for s in minutes.values())
    distances = {m: [s.last - base, s.last - s.low, s.high - s.last, s.total - s.n * s.low] for m, s in minutes.items()}
    if max(map(max, distances.values())) > _INT64_MAX:
        numbers = {m: (s.n, s.last, s.low, s.high, s.total) for m, s in minutes.items()}
        columns = [[numbers[m][i] if m in numbers else None for m in range(_MINUTES)] for i in range(len(COLUMNS))]
        return {"unit": 0, "base": 0, "data": schema.dumps(columns), **dict.fromkeys(COLUMNS)}
    unit = gcd(*(v for values in distances.values() for v in values)) or 1
    none = (0,) * len(COLUMNS)
    rows = [(minutes[m].n, *(v // unit for v in distances[m])) if m in minutes else none for m in range(_MINUTES)]
    row: dict[str, Any] = {"unit": unit, "base": base, "data": ""}
    for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=True):
        width = (max(column).bit_length() + 7) // 8
        constant = column.count(column[0]) == _MINUTES
        row[name] = b"".join(number.to_bytes(width, "big") for number in (column[:1] if constant else column))
    return row


def _numbers_of(blob: bytes) -> Sequence[int]:
    if len(blob) < _MINUTES:
        return [int.from_bytes(blob, "big")] * _MINUTES
    width = len(blob) // _MINUTES
    words = _WORDS[width]
    wide = words.size // _MINUTES
    if wide == width:
        return words.unpack(blob)
    filled = bytearray(words.size)
    for i in range(width):
        filled[wide - width + i :: wide] = blob[i::width]
    return words.unpack(filled)


def minutes_of(part: int, series: int, unit: int, base: int, data: str, *blobs: bytes | None) -> Steps:
    """Return the minutes (0 to 14) in a row, in order; none for a damaged one."""
    with gap("minutes of series %d from %d on", series, part):
        columns = json.loads(data) if data else [_numbers_of(blob or b"") for blob in blobs]
        minutes: Sequence[int] = range(_MINUTES)
        if not all(columns[0]):
            minutes = [minute for minute in minutes if columns[0][minute]]
            columns = [[column[minute] for minute in minutes] for column in columns]
        if data:
            n, last, low, high, total = columns
            return Steps(minutes, n, low, high, total, last)
        n, last, below, above, over = columns
        ends = [base + distance * unit for distance in last]
        low = [end - distance * unit for end, distance in zip(ends, below, strict=True)]
        high = [end + distance * unit for end, distance in zip(ends, above, strict=True)]
        total = [count * lowest + more * unit for count, lowest, more in zip(n, low, over, strict=True)]
        return Steps(minutes, n, low, high, total, ends)
    return NONE


def _kept(known: Summary) -> dict[str, int]:
    """Return a summary in the format of an hour's row; ``series_reader`` reads it."""
    distances = known.last - known.low, known.high - known.last, known.total - known.n * known.last
    # numbers near the 64-bit limits: a clamped distance is better than no row
    below, above, extra = (max(-_INT64_MAX, min(_INT64_MAX, distance)) for distance in distances)
    return {"n": known.n, "last": known.last, "below": below, "above": above, "extra": extra}
