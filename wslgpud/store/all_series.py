"""Queries over all series: their last values, processes, and unsealed series."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from wslgpud.model import Number
from wslgpud.store import schema
from wslgpud.store.batches import parsed
from wslgpud.store.codec import inflate
from wslgpud.store.errors import gap
from wslgpud.store.schema import MAX_INFLATED_BYTES, PERIOD_MS
from wslgpud.store.series_reader import blocks_of, mask_of, times_of

#: time and batches that ``last_values`` looks back, for series read less often than every tick
LATEST_MS = 65_000
LATEST_BATCHES = 75
#: lists in the processes of a chunk: 100 processes, a few of them on a GPU, each second
_MAX_ROWS = 250_000


_chunk, _batch = schema.chunk.c, schema.batch.c


def unsealed_series(connection: Connection, of_host: ColumnElement[bool]) -> set[int]:
    """Return the ids of the series in those batches that are not sealed yet."""
    series_ids: set[int] = set()
    for ms, data in connection.execute(select(_batch.ms, _batch.data).where(of_host, schema.unsealed)):
        with gap("ticks from %d on", ms):
            series_ids.update(*(values for _, values in parsed(ms, data).groups))
    return series_ids


def last_values(connection: Connection, host: int) -> dict[int, tuple[int, Number]]:
    """Return (ms, value) of every series of a host: from the newest batches, else from the end of its newest chunk."""
    chunks = select(schema.chunk).where(schema.of_host(schema.chunk, host))
    latest: dict[int, tuple[int, Number]] = {}
    for newest in connection.execute(chunks.order_by(_chunk.id.desc()).limit(1)):
        latest = _last_of_chunk(connection, host, newest)
    return latest | _newest_values(connection, host)


def _last_of_chunk(connection: Connection, host: int, newest: Any) -> dict[int, tuple[int, Number]]:
    values_by_series: dict[int, tuple[int, Number]] = {}
    with gap("chunk %d", newest.id):
        times = times_of(newest)
        latest = {0: times[-1]}
        for number, (mask, last, _) in blocks_of(connection, newest.id).items():
            if mask not in latest:
                latest[mask] = times[mask_of(newest.masks, newest.ticks, mask).rfind(1)]
            values_by_series[host << schema.SERIES_BITS | number] = (latest[mask], last)
    return values_by_series


def _newest_values(connection: Connection, host: int) -> dict[int, tuple[int, Number]]:
    condition = schema.of_host(schema.batch, host), schema.unsealed
    newest = connection.scalar(select(_batch.ms).where(*condition).order_by(_batch.id.desc()).limit(1))
    rows = select(_batch.ms, _batch.data).where(*condition, _batch.ms >= (newest or 0) - LATEST_MS)
    latest: dict[int, tuple[int, Number]] = {}
    for ms, data in connection.execute(rows.order_by(_batch.id.desc()).limit(LATEST_BATCHES)).all()[::-1]:
        with gap("ticks from %d on", ms):
            for times, values in parsed(ms, data).groups:
                latest.update({series: (times[-1], of_series[-1]) for series, of_series in values.items()})
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
    sealed = select(_chunk.id, _chunk.processes).where(_chunk.high_ms >= start_ms, _chunk.low_ms <= end_ms)
    sealed = sealed.where(_chunk.processes.is_not(None))
    newest = select(_batch.ms, _batch.data).where(_batch.ms.between(start_ms - PERIOD_MS, end_ms), schema.unsealed)
    for table, query in ((schema.chunk, sealed), (schema.batch, newest)):
        own_rows = query.where(ours(connection, table)).order_by(table.c.id)
        for which, given in connection.execute(own_rows):
            with gap("processes of %s %d", table.name, which):
                seen = _of_chunk(given) if table is schema.chunk else parsed(which, given).processes
                yield from [(ms, rows) for ms, rows in seen if start_ms <= ms <= end_ms]
