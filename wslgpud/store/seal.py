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
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, select

from wslgpud.model import Number
from wslgpud.store import schema
from wslgpud.store.codec import Block, encode, pack_sheet
from wslgpud.store.errors import gap
from wslgpud.store.rollup import MINUTE, Summary, summarise, write_summaries
from wslgpud.store.schema import MAX_BATCH, MAX_TICKS, PERIOD_MS

log = logging.getLogger(__name__)


class Column(NamedTuple):
    """The values of one series over the ticks of a chunk; ``mask`` says which of the ticks have one."""

    values: array[Any] | list[Number]
    mask: bytearray


class Stretch(NamedTuple):
    """Batches to be sealed together: ids from ``first`` to ``last``."""

    first: int
    last: int


def due(connection: Connection, low: int, high: int) -> Stretch | None:
    """Return the oldest batches among ids ``low`` to ``high`` whose period is over, if any."""
    table = schema.batch
    mine = select(table.c.id, table.c.ms).where(table.c.id.between(low, high))
    oldest = connection.execute(mine.order_by(table.c.id).limit(1)).first()
    newest = connection.execute(mine.order_by(table.c.id.desc()).limit(1)).first()
    if oldest is None or newest is None:
        return None
    period = oldest.ms // PERIOD_MS
    if newest.ms // PERIOD_MS == period and newest.id - oldest.id < MAX_TICKS // MAX_BATCH:
        return None
    complete = None
    ticks, seen, last = 0, 0, oldest.id
    query = mine.add_columns(table.c.batch, table.c.offsets).order_by(table.c.id).limit(MAX_TICKS)
    for number, ms, batch, offsets in connection.execute(query):
        if number == batch:
            # the rows before are whole batches
            complete = Stretch(oldest.id, last)
            if ms // PERIOD_MS != period or ticks >= MAX_TICKS:
                return complete
            ticks += offsets.count(",") + 1
        seen, last = seen + 1, number
    return complete if seen == MAX_TICKS else None


def seal(connection: Connection, stretch: Stretch, number: int) -> None:
    """Seal the ticks of ``stretch`` as chunk ``number``."""
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
    sheet, masks = _sheet(columns)
    row = {
        "id": number,
        "ticks": len(times),
        "low_ms": min(times),
        "high_ms": max(times),
        "last_ms": times[-1],
        "times": encode(times, whole=True),
        "masks": zlib.compress(b"".join(masks), 9) if masks else b"",
        "processes": zlib.compress(json.dumps(processes).encode(), 9) if processes else None,
    }
    minutes = _minutes(times, columns)
    data = pack_sheet(sheet)

    def write(connection: Connection) -> None:
        connection.execute(schema.chunk.insert(), row)
        if sheet:
            connection.execute(schema.block.insert(), {"id": number, "data": data})
        write_summaries(connection, minutes)

    return write


def _columns(connection: Connection, stretch: Stretch) -> tuple[list[int], dict[int, Column], list[Any]]:
    """Return the ticks' times in order of arrival, the columns of their series, and their processes."""
    table = schema.batch
    query = select(table).where(table.c.id.between(*stretch)).order_by(table.c.id)
    rows: list[_Row] = []
    for raw in connection.execute(query):
        with gap("ticks %d", raw.id):
            rows.append(_parsed(raw))
    places: dict[int, dict[int, int]] = {}
    times: list[int] = []
    for batch, group in groupby(rows, key=attrgetter("batch")):
        ticks = sorted({ms for row in group for ms in row.times})
        places[batch] = {ms: len(times) + i for i, ms in enumerate(ticks)}
        times += ticks
    found: dict[int, Column] = {}
    processes = []
    for row in rows:
        where = [places[row.batch][ms] for ms in row.times]
        for key, values in row.readings.items():
            column = found.setdefault(key, Column(values[:0], bytearray(len(times))))
            if type(values) is not type(column.values):
                log.warning("ticks of series %d are damaged: whole numbers and others", key)
                continue
            column.values.extend(values)
            for i in where:
                column.mask[i] = 1
        processes += row.processes
    return times, found, processes


class _Row(NamedTuple):
    batch: int
    times: list[int]
    readings: dict[int, array[Any] | list[Number]]
    processes: list[Any]


def _parsed(row: Any) -> _Row:
    times = [row.ms + offset for offset in json.loads(row.offsets)]
    readings: dict[int, array[Any] | list[Number]] = {}
    for key, given in json.loads(row.readings).items():
        values = given if isinstance(given, list) else [given] * len(times)
        if len(values) != len(times) or {*map(type, values)} not in ({int}, {float}):
            raise ValueError(f"values of series {key}")
        readings[int(key)] = array("q", values) if type(values[0]) is int else values
    processes = [[row.ms + offset, seen] for offset, seen in json.loads(row.processes or "[]")]
    return _Row(row.batch, times, readings, processes)


def _sheet(columns: dict[int, Column]) -> tuple[dict[int, Block], list[bytes]]:
    """Return the blocks by the low bits of their series, and the masks they refer to (1, 2, ...)."""
    masks: dict[bytes, int] = {}
    blocks = {}
    for number, column in sorted(columns.items()):
        mask = 0
        if len(column.values) < len(column.mask):
            mask = masks.setdefault(bytes(column.mask), len(masks) + 1)
        data = encode(column.values, whole=isinstance(column.values, array))
        blocks[number & schema.OWN_SERIES] = Block(mask, column.values[-1], data)
    return blocks, list(masks)


def _minutes(times: Sequence[int], columns: dict[int, Column]) -> dict[tuple[int, int], Summary]:
    found: dict[tuple[int, int], Summary] = {}
    for number, (values, mask) in columns.items():
        own = times if len(values) == len(times) else list(compress(times, mask))
        for begin, known in summarise(own, values, MINUTE * 1000).items():
            found[begin // 1000, number] = known
    return found
