"""Turning ticks into sealed blocks and summaries: one stretch of time, one transaction, exactly once.

The ticks go in the same transaction in which their blocks and summaries come, so a crash or restart neither
loses nor repeats any; what lay about from before a downtime is sealed as soon as newer ticks arrive.
"""

from __future__ import annotations

import json
import logging
import zlib
from array import array
from collections.abc import Callable, Sequence
from itertools import compress, groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, select

from wslgpud.store import schema
from wslgpud.store.codec import SeriesBlock, encode, pack_sheet
from wslgpud.store.errors import gap
from wslgpud.store.rollup import MINUTE, summarise, write_summaries
from wslgpud.store.schema import MAX_BATCH, MAX_TICKS, PERIOD_MS

log = logging.getLogger(__name__)


class Column(NamedTuple):
    """The values of one series over the ticks of a chunk; ``mask`` says which of the ticks have one."""

    values: array[int]
    mask: bytearray


def due(connection: Connection, low: int, high: int) -> tuple[int, int] | None:
    """Return first and last id of the oldest batches among ids ``low`` to ``high`` whose period is over, if any."""
    table = schema.batch
    mine = select(table.c.id, table.c.ms).where(table.c.id.between(low, high))
    oldest = connection.execute(mine.order_by(table.c.id).limit(1)).first()
    newest = connection.execute(mine.order_by(table.c.id.desc()).limit(1)).first()
    if oldest is None or newest is None:
        return None
    period = oldest.ms // PERIOD_MS
    if newest.ms // PERIOD_MS == period and newest.id - oldest.id < MAX_TICKS // MAX_BATCH:
        return None
    complete, ticks, seen, last = None, 0, 0, oldest.id
    query = mine.add_columns(table.c.batch, table.c.offsets).order_by(table.c.id).limit(MAX_TICKS)
    for number, ms, batch, offsets in connection.execute(query):
        if number == batch:
            # the rows before are whole batches
            complete = oldest.id, last
            if ms // PERIOD_MS != period or ticks >= MAX_TICKS:
                return complete
            ticks += offsets.count(",") + 1
        seen, last = seen + 1, number
    return complete if seen == MAX_TICKS else None


def seal(connection: Connection, stretch: tuple[int, int], number: int) -> None:
    with connection.begin():
        times, columns, processes = _columns(connection, stretch)
    # the work is done outside of a transaction: nobody waits for it
    write = chunk_writer(number, times, columns, processes) if times else None
    with connection.begin():
        if write is not None:
            write(connection)
        connection.execute(delete(schema.batch).where(schema.batch.c.id.between(*stretch)))


def chunk_writer(
    number: int, times: Sequence[int], columns: dict[int, Column], processes: Sequence[Any]
) -> Callable[[Connection], None]:
    """Return what writes ticks as chunk ``number`` with their summaries within a transaction."""
    masks: dict[bytes, int] = {}
    blocks = {}
    for series, (values, mask) in sorted(columns.items()):
        which = masks.setdefault(bytes(mask), len(masks) + 1) if len(values) < len(mask) else 0
        data = encode(values)
        blocks[series & schema.OWN_SERIES] = SeriesBlock(which, values[-1], data)
    row = {
        "id": number,
        "ticks": len(times),
        "low_ms": min(times),
        "high_ms": max(times),
        "last_ms": times[-1],
        "times": encode(times),
        "masks": zlib.compress(b"".join(masks), 9) if masks else b"",
        "processes": zlib.compress(json.dumps(processes).encode(), 9) if processes else None,
    }
    minutes = {
        (begin // 1000, series): known
        for series, (values, mask) in columns.items()
        for begin, known in summarise(list(compress(times, mask)), values, MINUTE * 1000).items()
    }
    sheet = pack_sheet(blocks)

    def write(connection: Connection) -> None:
        connection.execute(schema.chunk.insert(), row)
        if blocks:
            connection.execute(schema.block.insert(), {"id": number, "data": sheet})
        write_summaries(connection, minutes)

    return write


def _columns(connection: Connection, stretch: tuple[int, int]) -> tuple[list[int], dict[int, Column], list[Any]]:
    """Return the ticks' times in order of arrival, the columns of their series, and their processes."""
    table = schema.batch
    query = select(table).where(table.c.id.between(*stretch)).order_by(table.c.id)
    rows = []
    for raw in connection.execute(query):
        with gap("ticks %d", raw.id):
            rows.append(_parsed(raw))
    places: dict[tuple[int, int], int] = {}
    for batch, group in groupby(rows, key=itemgetter(0)):
        for ms in sorted({ms for _, own, *_ in group for ms in own}):
            places.setdefault((batch, ms), len(places))
    times = [ms for _, ms in places]
    found: dict[int, Column] = {}
    processes = []
    for batch, own, readings, seen in rows:
        where = [places[batch, ms] for ms in own]
        for key, values in readings.items():
            column = found.setdefault(key, Column(array("q"), bytearray(len(times))))
            column.values.extend(values)
            for i in where:
                column.mask[i] = 1
        processes += seen
    return times, found, processes


def _parsed(row: Any) -> tuple[int, list[int], dict[int, array[int]], list[Any]]:
    """Return the batch, times (ms), readings by series and processes of a row, or raise one of ``errors.DAMAGE``."""
    times = [row.ms + offset for offset in json.loads(row.offsets)]
    readings: dict[int, array[int]] = {}
    for key, given in json.loads(row.readings).items():
        values = given if isinstance(given, list) else [given] * len(times)
        if len(values) != len(times) or {*map(type, values)} != {int}:
            raise ValueError(f"values of series {key}")
        readings[int(key)] = array("q", values)
    processes = [[row.ms + offset, seen] for offset, seen in json.loads(row.processes or "[]")]
    return row.batch, times, readings, processes
