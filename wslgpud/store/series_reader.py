"""Values and summaries from an open connection: sealed chunks, then the newest ticks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from operator import itemgetter, le, truediv
from typing import Any, NamedTuple

from sqlalchemy import Connection, TextClause, select, text

from wslgpud.model import Number
from wslgpud.store import schema
from wslgpud.store.codec import Summary, add, entries_of, inflate, parsed, samples_in, summarise, unpacked
from wslgpud.store.errors import StoreError, gap
from wslgpud.store.records import SeriesRef
from wslgpud.store.schema import HOURS, MAX_INFLATED_BYTES, MAX_VALUES, MINUTES, PERIOD_MS, Tier, tuples

#: time and batches that ``last_values`` looks back, for series read less often than every tick
LATEST_MS = 65_000
LATEST_BATCHES = 75
#: lists in the processes of a chunk: 100 processes, a few of them on a GPU, each second
_MAX_ROWS = 250_000
#: times (ms) and values
Samples = tuple[Sequence[int], Sequence[int]]


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


# As text: SQLAlchemy takes four times as long to build and compile such a statement as to execute it.
_LISTED = text(
    "SELECT s.id, s.metric, s.labels, h.name, s.kind, s.divisor FROM series s JOIN host h ON h.id = s.host"
    " WHERE :host IN ('', h.name) ORDER BY s.host, s.metric, s.labels, s.id"
)
_OF = text(
    "SELECT s.id, s.kind, s.divisor FROM series s JOIN host h ON h.id = s.host"
    " WHERE h.name = :host AND s.metric = :metric AND s.labels = :labels ORDER BY s.id"
)
_SEALED = text(
    "SELECT id, low_ms, high_ms, data FROM chunk"
    " WHERE high_ms >= :start AND low_ms <= :end AND id BETWEEN :low AND :high ORDER BY id"
)
#: after the clock went back, the chunk that ends first may not be the one that begins first; both are of one period
_FIRST_SEALED = text(
    f"SELECT min(low_ms) FROM chunk WHERE id BETWEEN :low AND :high AND high_ms < {PERIOD_MS} +"
    " (SELECT high_ms FROM chunk WHERE id BETWEEN :low AND :high ORDER BY high_ms LIMIT 1)"
)
_OURS_NEWEST = (
    "FROM batch WHERE slot BETWEEN :low AND :high"
    f" AND id > (SELECT sealed FROM host WHERE host.id = slot >> {schema.ROW_BITS})"
)
_UNSEALED = text(f"SELECT ms, data {_OURS_NEWEST} AND ms BETWEEN :start - {PERIOD_MS} AND :end ORDER BY id")
_FIRST_NEWEST = text(f"SELECT ms {_OURS_NEWEST} ORDER BY id LIMIT 1")
_LAST_NEWEST = text(f"SELECT ms, data {_OURS_NEWEST} ORDER BY id DESC LIMIT {LATEST_BATCHES}")
_LAST_SEALED = text("SELECT id, data FROM chunk WHERE id BETWEEN :low AND :high ORDER BY id DESC LIMIT 1")


def _of_tier(query: str) -> dict[Tier, TextClause]:
    """Return a query of summaries for each tier."""
    return {tier: text(query.format(table=tier.table.name, width=tier.part_seconds)) for tier in (MINUTES, HOURS)}


# not "min(part)", which would read all of them
_FIRST_PART = _of_tier("SELECT part FROM {table} WHERE series BETWEEN :low AND :high ORDER BY part LIMIT 1")
_LAST_PART = _of_tier("SELECT max(part) FROM {table}")
#: parts are looked up by key, never scanned
_STEPS = _of_tier("""
    WITH RECURSIVE asked (part) AS (
        SELECT CAST(:first AS BIGINT) UNION ALL SELECT part + {width} FROM asked WHERE part + {width} <= :last
    )
    SELECT r.* FROM asked JOIN {table} r ON r.part = asked.part AND r.series = :series""")


def asked_for(connection: Connection, series: SeriesRef, start_wall: float, end_wall: float) -> list[Asked]:
    """Return the query for each id of a series, the oldest first; none for an unknown one."""
    words = {"host": series.host, "metric": series.metric, "labels": schema.dumps(dict(series.labels))}
    start, end = round(start_wall * 1000), round(end_wall * 1000)
    return [Asked(row.id, row.kind, row.divisor, start, end) for row in connection.execute(_OF, words)]


class Listed(NamedTuple):
    """A row of ``schema.series``."""

    number: int
    ref: SeriesRef
    kind: str
    divisor: int


def listed(connection: Connection, host: str = "") -> Iterator[Listed]:
    """Yield each series (of one machine if named)."""
    options = {"stream_results": True, "max_row_buffer": 500}
    with connection.execute(_LISTED, {"host": host}, execution_options=options) as rows:
        for number, metric, labels, name, kind, divisor in rows:
            with gap("labels of series %d", number):
                yield Listed(number, SeriesRef(metric, tuple(json.loads(labels).items()), name), kind, divisor)


def _joined(pieces: Iterable[Samples]) -> Samples:
    times: list[int] = []
    values: list[int] = []
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
    minute, hour = (first_part(connection, tier, host) for tier in (MINUTES, HOURS))
    return _first_sample(connection, host), minute, hour


def first_part(connection: Connection, tier: Tier, host: int) -> int | None:
    low, high = schema.series_range(host)
    part: int | None = connection.scalar(_FIRST_PART[tier], {"low": low, "high": high})
    return part and part * 1000


def _first_sample(connection: Connection, host: int) -> int | None:
    low, high = schema.row_range(host)
    first: int | None = connection.scalar(_FIRST_SEALED, {"low": low, "high": high})
    return connection.scalar(_FIRST_NEWEST, {"low": low, "high": high}) if first is None else first


def best(connection: Connection, asked: Asked) -> tuple[list[float], list[Number]]:
    """Return every stored sample, before the first of them one value per minute, before that one per hour.

    That is the last value of a counter and the mean of anything else, at the beginning of its step. Times are in
    seconds, and values in their original units.
    """
    before = _coarser(connection, asked, (MINUTES, HOURS))
    times, values = _joined(chain(_sealed(connection, asked), _newest(connection, asked)))
    walls = [*map(truediv, chain((time for time, _ in before), times), repeat(1000))]
    return walls, [*unscaled(shown(asked, before), asked.divisor), *unscaled(values, asked.divisor)]


def shown(asked: Asked, steps: Iterable[tuple[int, Summary]]) -> list[Number]:
    """Return the last value of a counter, the mean of anything else, for each step."""
    return [known.last if asked.kind == "counter" else known.total / known.n for _, known in steps]


def unscaled(numbers: Iterable[Number], divisor: int) -> Iterable[Number]:
    """Return the values stored as ``numbers``: the floats nearest to their decimals, or integers."""
    return map(truediv, numbers, repeat(divisor)) if divisor > 1 else numbers


def _coarser(connection: Connection, asked: Asked, tiers: Sequence[Tier]) -> list[tuple[int, Summary]]:
    """Return values from ``tiers`` for times before the start of finer ones, by time."""
    host = asked.number >> schema.SERIES_BITS
    begins = [_first_sample(connection, host)]
    steps: list[tuple[int, Summary]] = []
    for tier in (MINUTES, HOURS):
        # a step that reaches into a finer tier belongs to that one
        finer = (begin - tier.step_seconds * 1000 for begin in begins if begin is not None)
        end = min((asked.end_ms, *finer))
        if asked.start_ms > end:
            break
        if tier in tiers:
            steps = steps_of(connection, asked._replace(end_ms=end), tier) + steps
        begins.append(first_part(connection, tier, host))
    return steps


def _sealed(connection: Connection, asked: Asked) -> Iterator[Samples]:
    own, (low, high) = asked.number & schema.OWN_SERIES, asked.rows
    words = {"start": asked.start_ms, "end": asked.end_ms, "low": low, "high": high}
    for number, low_ms, high_ms, sheet in tuples(connection, _SEALED, words):
        with gap("chunk %d of series %d", number, asked.number):
            found = samples_in(sheet, own)
            if found is not None:
                _, times, values = found
                whole = asked.start_ms <= low_ms and high_ms <= asked.end_ms
                yield (times, values) if whole else _inside(asked, times, values)


def _newest(connection: Connection, asked: Asked) -> Iterator[Samples]:
    """Yield times and values of one series among the ticks that are not sealed yet, in order of arrival."""
    low, high = asked.rows
    words = {"start": asked.start_ms, "end": asked.end_ms, "low": low, "high": high}
    for first, data in tuples(connection, _UNSEALED, words):
        with gap("ticks from %d on, series %d", first, asked.number):
            samples = parsed(first, data).series.get(asked.number & schema.OWN_SERIES)
            if samples is not None:
                yield _inside(asked, *samples)


def _inside(asked: Asked, times: Sequence[int], values: Sequence[int]) -> Samples:
    kept = [i for i, ms in enumerate(times) if asked.start_ms <= ms <= asked.end_ms]
    return [times[i] for i in kept], [values[i] for i in kept]


def summaries(connection: Connection, asked: Asked, step_ms: int) -> list[tuple[int, Summary]]:
    """Return the summaries of a series by clock-aligned step (its beginning in ms), by time.

    Read from the coarsest suitable tier, plus unsealed ticks.
    """
    begin, end = asked.start_ms // step_ms * step_ms, asked.end_ms // step_ms * step_ms + step_ms - 1
    asked = asked._replace(start_ms=begin, end_ms=end)
    steps, samples = dict[int, Summary](), _newest(connection, asked)
    tier = HOURS if step_ms % (HOURS.step_seconds * 1000) == 0 else MINUTES
    if step_ms % (tier.step_seconds * 1000):
        add(steps, _coarser(connection, asked, (MINUTES, HOURS)), step_ms)
        samples = chain(_sealed(connection, asked), samples)
    else:
        if tier is MINUTES:
            add(steps, _coarser(connection, asked, (HOURS,)), step_ms)
        kept = steps_of(connection, asked, tier)
        if steps or step_ms > tier.step_seconds * 1000:
            add(steps, kept, step_ms)
        else:
            steps = dict(kept)
    add(steps, summarise(*_joined(samples), step_ms).items())
    return sorted(steps.items())


def steps_of(connection: Connection, asked: Asked, tier: Tier) -> list[tuple[int, Summary]]:
    """Return the summaries of a tier by their beginnings (ms)."""
    first, width = first_part(connection, tier, asked.number >> schema.SERIES_BITS), tier.part_seconds
    if first is None:
        return []
    words = {
        "first": max(first // 1000, asked.start_ms // 1000 // width * width),
        "last": min(connection.scalar(_LAST_PART[tier]), asked.end_ms // 1000),
        "series": asked.number,
    }
    # SQLite would sort all, as it does not know that parts come in order
    rows = sorted(tuples(connection, _STEPS[tier], words), key=itemgetter(0))
    low, high = asked.start_ms / 1000, asked.end_ms / 1000
    return [(time * 1000, known) for row in rows for time, known in unpacked(tier, row) if low <= time <= high]


def last_values(connection: Connection, host: int) -> dict[int, tuple[int, Number]]:
    """Return (ms, value) of every series of a host: from the newest batches, else from the end of its newest chunk."""
    low, high = schema.row_range(host)
    first, _ = schema.series_range(host)
    latest: dict[int, tuple[int, Number]] = {}
    for number, sheet in connection.execute(_LAST_SEALED, {"low": low, "high": high}):
        with gap("chunk %d", number):
            latest = {first | entry.number: (entry.last_ms, entry.last) for entry in entries_of(sheet)}
    newest = connection.execute(_LAST_NEWEST, {"low": low, "high": high}).all()
    for ms, data in reversed(newest):
        if ms >= newest[0].ms - LATEST_MS:
            with gap("ticks from %d on", ms):
                values = parsed(ms, data).series.items()
                latest |= {first | number: (times[-1], values[-1]) for number, (times, values) in values}
    return latest


def _of_chunk(data: bytes) -> list[Any]:
    # each row would take a hundred times its two bytes
    text = inflate(data, MAX_INFLATED_BYTES)
    if text.count(b"[") + text.count(b"{") > _MAX_ROWS:
        raise ValueError(f"more than {_MAX_ROWS} rows of processes")
    rows: list[Any] = json.loads(text)
    return rows


def processes(
    connection: Connection, start_ms: int, end_ms: int, ours: schema.Ours
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Return (ms, rows as in ``schema.batch``) between two moments."""
    chunk, batch = schema.chunk.c, schema.batch.c
    sealed = select(chunk.id, chunk.processes).where(chunk.high_ms >= start_ms, chunk.low_ms <= end_ms)
    sealed = sealed.where(chunk.processes.is_not(None))
    newest = select(batch.ms, batch.data).where(batch.ms.between(start_ms - PERIOD_MS, end_ms), schema.unsealed)
    for table, query in ((schema.chunk, sealed), (schema.batch, newest)):
        own_rows = query.where(ours(connection, table)).order_by(table.c.id)
        for which, given in connection.execute(own_rows):
            with gap("processes of %s %d", table.name, which):
                seen = _of_chunk(given) if table is schema.chunk else parsed(which, given).processes
                yield from [(ms, rows) for ms, rows in seen if start_ms <= ms <= end_ms]
