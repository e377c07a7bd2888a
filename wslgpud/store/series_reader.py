"""Values and summaries of one series from an open connection: sealed chunks, then the newest ticks."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import compress, islice, repeat
from operator import add, itemgetter, le, mul, sub, truediv
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Connection, Table, bindparam, func, literal, select
from sqlalchemy import cast as cast_to

from wslgpud.model import Number
from wslgpud.store import postgresql, schema
from wslgpud.store.batches import of_series
from wslgpud.store.codec import SeriesBlock, decode, find_block, inflate, unpack_sheet
from wslgpud.store.errors import StoreError, gap
from wslgpud.store.postgresql import tuples
from wslgpud.store.records import SeriesRef
from wslgpud.store.rollup import DAY, HOUR, MINUTE, MINUTE_PART, NONE, Steps, columns, merge, minutes_of, summarise
from wslgpud.store.schema import MAX_IDENTITIES, MAX_INFLATED_BYTES, MAX_VALUES, PERIOD_MS

#: chunks whose times are cached: a day, and 1 MB
_KEPT_TIMES = 128
#: times (ms, or seconds), values
Piece = tuple[Iterable[Any], Iterable[Number]]


class Asked(NamedTuple):
    """One series (its id, kind and divisor, see ``schema``) between two moments, both included.

    One whose precision was changed has several ids.
    """

    number: int
    kind: str
    divisor: int
    start_ms: int
    end_ms: int

    @property
    def rows(self) -> tuple[int, int]:
        return schema.row_range(self.number >> schema.SERIES_BITS)


# Built once: SQLAlchemy takes four times as long to compile such a statement as to execute it.
_series = schema.series.c
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


_chunk, _block, _batch = schema.chunk.c, schema.block.c, schema.batch.c
_low, _high, _start, _end = (bindparam(name, type_=BigInteger) for name in ("low", "high", "start", "end"))
#: the chunks between two moments with the sheet of each
_SEALED = (
    select(_chunk.id, _chunk.ticks, _chunk.low_ms, _chunk.high_ms, _chunk.last_ms, _chunk.times, _chunk.masks)
    .add_columns(_block.data)
    .join(schema.block, _block.id == _chunk.id)
    .where(_chunk.high_ms >= _start, _chunk.low_ms <= _end, _chunk.id.between(_low, _high))
    .order_by(_chunk.id)
)
_FIRST_SEALED = select(_chunk.low_ms).where(_chunk.id.between(_low, _high)).order_by(_chunk.high_ms).limit(1)
_UNSEALED = (
    select(_batch.ms, _batch.data)
    .where(_batch.slot.between(_low, _high), schema.unsealed, _batch.ms.between(_start - PERIOD_MS, _end))
    .order_by(_batch.id)
)
_FIRST_NEWEST = select(_batch.ms).where(_batch.slot.between(_low, _high), schema.unsealed).order_by(_batch.id).limit(1)


def asked_for(connection: Connection, series: SeriesRef, start_wall: float, end_wall: float) -> list[Asked]:
    """Return the query for each id of a series, the oldest first; none for an unknown one."""
    words = {"host": series.host, "metric": series.metric, "labels": schema.dumps(dict(series.labels))}
    start, end = round(start_wall * 1000), round(end_wall * 1000)
    return [Asked(row.id, row.kind, row.divisor, start, end) for row in connection.execute(_OF, words)]


def listed(connection: Connection, host: str, limit: int) -> Iterator[tuple[SeriesRef, str]]:
    """Yield each series (of one machine if named) with its kind, up to a limit per metric."""
    every = (_LISTED.where(schema.host.c.name == host) if host else _LISTED).subquery().c
    query = select(every.name, every.metric, every.kind, every.labels).where(every.place <= limit)
    query = query.order_by(every.host, every.metric, every.labels)
    with connection.execute(query.execution_options(stream_results=True, max_row_buffer=500)) as rows:
        for name, metric, kind, labels in rows:
            with gap("labels of a series of %s", metric):
                yield SeriesRef(metric, tuple(json.loads(labels).items()), name), kind


def refs(connection: Connection, wanted: Sequence[int]) -> Iterator[tuple[int, SeriesRef, int]]:
    for at in range(0, len(wanted), MAX_IDENTITIES):
        words = {"numbers": wanted[at : at + MAX_IDENTITIES]}
        for number, divisor, metric, labels, host in connection.execute(_REFS, words):
            with gap("labels of series %d", number):
                yield number, SeriesRef(metric, tuple(json.loads(labels).items()), host), divisor


def _joined(pieces: Iterable[Piece]) -> tuple[list[Any], list[Number]]:
    times: list[Any] = []
    values: list[Number] = []
    for more_times, more_values in pieces:
        times += more_times
        values += more_values
        if len(times) > MAX_VALUES:
            count = f"{MAX_VALUES:,}"
            raise StoreError("more than {count} values; request a shorter time, or steps", count=count)
    if not all(map(le, times, islice(times, 1, None))):
        # the clock went back; ticks of the same millisecond stay in order of arrival
        order = sorted(range(len(times)), key=times.__getitem__)
        times, values = [times[i] for i in order], [values[i] for i in order]
    return times, values


def oldest(connection: Connection, host: int) -> tuple[int | None, int | None, int | None]:
    """Return since when a host has samples, minutes and hours, in milliseconds since the epoch."""
    minute, hour = (_first_part(connection, table, host) for table in (schema.rollup_minute, schema.rollup_hour))
    return _first_sample(connection, host), minute, hour


def _first_part(connection: Connection, table: Table, host: int) -> int | None:
    ours = postgresql.only_ours(connection, schema.of_host(table, host))  # in a file, this is a single seek
    part: int | None = connection.scalar(select(func.min(table.c.part)).where(ours))
    return part and part * 1000


def _first_sample(connection: Connection, host: int) -> int | None:
    low, high = schema.row_range(host)
    first = connection.scalar(_FIRST_SEALED, {"low": low, "high": high})
    return connection.scalar(_FIRST_NEWEST, {"low": low, "high": high}) if first is None else first


def best(connection: Connection, asked: Asked) -> tuple[list[float], list[Number]]:
    """Return every stored sample, before the first of them one value per minute, before that one per hour.

    That is the last value of a counter and the mean of anything else, at the beginning of its step. Times are in
    seconds, and values in their original units.
    """
    before = _coarser(connection, asked, minutes=True)
    times, values = _joined(_pieces(connection, asked, 1000, asked.divisor))
    if not before.times:
        return times, values
    older = unscaled(before.last if asked.kind == "counter" else before.means, asked.divisor)
    return [*(ms / 1000 for ms in before.times), *times], [*older, *values]


def unscaled(numbers: Iterable[Number], divisor: int) -> Iterable[Number]:
    """Return the values stored as ``numbers``: the floats nearest to their decimals, or integers."""
    return map(truediv, numbers, repeat(divisor)) if divisor > 1 else numbers


def _coarser(connection: Connection, asked: Asked, *, minutes: bool) -> Steps:
    """Return values from hours, and perhaps minutes, for times before the start of finer tiers."""
    host = asked.number >> schema.SERIES_BITS
    raw_from = _first_sample(connection, host)
    if raw_from is not None and asked.start_ms > raw_from - MINUTE * 1000:
        return NONE
    minute_from = _first_part(connection, schema.rollup_minute, host)
    steps = NONE
    tiers = (_hours, HOUR, (raw_from, minute_from)), (_minutes, MINUTE, (raw_from,))
    for tier, width, finer in tiers[: 1 + minutes]:
        # a step that reaches into the finer tier belongs to that one
        end = min((asked.end_ms, *(begin - width * 1000 for begin in finer if begin is not None)))
        if asked.start_ms <= end:
            steps = steps.then(tier(connection, asked._replace(end_ms=end)))
    return steps


def _pieces(connection: Connection, asked: Asked, per_time: int, per_value: int) -> Iterator[Piece]:
    """Return the times and values of each chunk, then of the newest ticks.

    Milliseconds and stored values are divided by ``per_time`` and ``per_value`` as they are decoded.
    """
    yield from _sealed(connection, asked, per_time, per_value)
    times, values = _newest(connection, asked)
    yield unscaled(times, per_time), unscaled(values, per_value)


def _sealed(connection: Connection, asked: Asked, per_time: int, per_value: int) -> Iterator[Piece]:
    own, (low, high) = asked.number & schema.OWN_SERIES, asked.rows
    words = {"start": asked.start_ms, "end": asked.end_ms, "low": low, "high": high}
    start, end = asked.start_ms / per_time, asked.end_ms / per_time
    for number, ticks, low_ms, high_ms, last_ms, when, masks, sheet in tuples(connection, _SEALED, words):
        with gap("chunk %d of series %d", number, asked.number):
            block = find_block(sheet, own)
            if block is None:
                continue
            times: list[Any] = _sealed_times(when, ticks, last_ms, per_time).tolist()
            if block.mask:
                times = list(compress(times, mask_of(masks, ticks, block.mask)))
            values = decode(block.data, len(times), block.last, per_value)
            if low_ms < asked.start_ms or high_ms > asked.end_ms:
                inside = [start <= time <= end for time in times]
                times, values = list(compress(times, inside)), list(compress(values, inside))
            yield times, values


@lru_cache(_KEPT_TIMES)
def _sealed_times(block: bytes, ticks: int, last_ms: int, per_time: int) -> array[Any]:
    """Return the times of a chunk, shared by all its series; cached, as plots read several."""
    return array("d" if per_time > 1 else "q", decode(block, ticks, last_ms, per_time))


def times_of(chunk: Any) -> list[Any]:
    """Return the times of a chunk's ticks, in order of arrival, in milliseconds."""
    return decode(chunk.times, chunk.ticks, chunk.last_ms)


def blocks_of(connection: Connection, chunk: int) -> dict[int, SeriesBlock]:
    """Return the blocks of a chunk by the low 16 bits of their series, or raise ValueError: they are damaged."""
    sheet = connection.scalar(select(_block.data).where(_block.id == chunk))
    return {} if sheet is None else unpack_sheet(sheet)


def mask_of(masks: bytes, ticks: int, mask: int) -> bytes:
    """Return one byte (0 or 1) for each of a chunk's ticks, from mask number ``mask`` (from 1)."""
    return inflate(masks, MAX_INFLATED_BYTES)[(mask - 1) * ticks : mask * ticks]


def _newest(connection: Connection, asked: Asked) -> tuple[list[Any], list[Number]]:
    """Return times (ms) and values of one series among the ticks that are not sealed yet, in order of arrival."""
    low, high = asked.rows
    words = {"start": asked.start_ms, "end": asked.end_ms, "low": low, "high": high}
    points: list[tuple[int, Number]] = []
    for first, data in tuples(connection, _UNSEALED, words):
        with gap("ticks from %d on, series %d", first, asked.number):
            given = zip(*of_series(first, data, asked.number), strict=True)
            points += [(ms, number) for ms, number in given if asked.start_ms <= ms <= asked.end_ms]
    return [ms for ms, _ in points], [value for _, value in points]


def summaries(connection: Connection, asked: Asked, step_ms: int) -> Steps:
    """Return the summaries of a series by clock-aligned step (its beginning in ms).

    Read from the coarsest suitable tier, plus unsealed ticks.
    """
    begin, end = asked.start_ms // step_ms * step_ms, asked.end_ms // step_ms * step_ms + step_ms - 1
    asked = asked._replace(start_ms=begin, end_ms=end)
    if step_ms % (MINUTE * 1000):
        older = merge(_coarser(connection, asked, minutes=True), step_ms)
        newest = _joined(_pieces(connection, asked, 1, 1))
    else:
        tier, width = (_minutes, MINUTE) if step_ms % (HOUR * 1000) else (_hours, HOUR)
        older = NONE if tier is _hours else merge(_coarser(connection, asked, minutes=False), step_ms)
        table = schema.rollup_minute if tier is _minutes else schema.rollup_hour
        kept_from = _first_part(connection, table, asked.number >> schema.SERIES_BITS)
        if kept_from is not None and asked.start_ms < kept_from:
            # samples may be kept for longer
            before = asked._replace(end_ms=min(asked.end_ms, kept_from - 1))
            samples = _joined(_sealed(connection, before, 1, 1))
            older = older.then(columns(summarise(*samples, step_ms)))
        steps = tier(connection, asked)
        older = older.then(steps if step_ms == width * 1000 else merge(steps, step_ms))
        newest = _newest(connection, asked)
    return older.then(columns(summarise(*newest, step_ms)))


def _minutes(connection: Connection, asked: Asked) -> Steps:
    collected: tuple[list[Any], ...] = ([], [], [], [], [], [])
    for part, series, *row in _by_part(connection, asked, schema.rollup_minute, MINUTE_PART, *schema.rollup_minute.c):
        times, *values = minutes_of(part, series, *row)
        collected[0].extend([(part + minute * MINUTE) * 1000 for minute in times])
        for column, more in zip(collected[1:], values, strict=True):
            column.extend(more)
    return Steps(*collected).between(asked.start_ms, asked.end_ms)


def _hours(connection: Connection, asked: Asked) -> Steps:
    of = schema.rollup_hour.c
    wanted = (of.part * 1000 + of.hour * (HOUR * 1000), of.n, of.last, of.below, of.above, of.extra)
    rows = _by_part(connection, asked, schema.rollup_hour, DAY, *wanted)
    if not rows:
        return NONE
    times, n, last, below, above, extra = zip(*rows, strict=True)
    total = list(map(add, map(mul, n, last), extra))
    steps = Steps(times, n, list(map(sub, last, below)), list(map(add, last, above)), total, last)
    return steps.between(asked.start_ms, asked.end_ms)


def _by_part(
    connection: Connection, asked: Asked, table: Table, width: int, *columns: ColumnElement[Any]
) -> Sequence[Any]:
    """Return the rows of a series, by their first column; parts are looked up by key, never scanned."""
    ends = [connection.scalar(select(end(table.c.part))) for end in (func.min, func.max)]
    if None in ends:
        return []
    first, last = max(ends[0], asked.start_ms // 1000 // width * width), min(ends[1], asked.end_ms // 1000)
    part = select(cast_to(literal(first), BigInteger).label("part")).where(literal(first) <= last)
    part_ = part.cte("asked", recursive=True)
    part_ = part_.union_all(select(part_.c.part + width).where(part_.c.part + width <= last))
    query = select(*columns).select_from(part_).join(table, part_.c.part == table.c.part)
    query = query.where(table.c.series == asked.number)
    # SQLite would sort all, as it does not know that parts come in order.
    return sorted(tuples(connection, query), key=itemgetter(0))
