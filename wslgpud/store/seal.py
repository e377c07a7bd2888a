"""Turns ticks into sealed blocks and rollups: one period, one transaction, exactly once.

The ticks are deleted in the same transaction that adds their blocks and rollups, so a crash or restart neither loses
nor repeats any; ticks left from before a downtime are sealed as soon as newer ones arrive.
"""

from __future__ import annotations

import json
import logging
import zlib
from array import array
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, NamedTuple

from sqlalchemy import Connection, select, update

from wslgpud.store import schema
from wslgpud.store.batches import parsed
from wslgpud.store.codec import SeriesBlock, encode, pack_sheet
from wslgpud.store.errors import gap
from wslgpud.store.rollup import MINUTE, summarise, write_summaries
from wslgpud.store.schema import MAX_TICKS, PERIOD_MS

log = logging.getLogger(__name__)


class Column(NamedTuple):
    """The values of a series over the ticks of a chunk; ``mask`` marks the ticks that have one."""

    values: array[int]
    mask: bytearray


def due(connection: Connection, host: int, last: int, *, ended: bool = False) -> int | None:
    """Return the last id of the oldest batches of a host, up to id ``last``, whose period is over, if any.

    ``ended``: so is every period, as nobody writes under this name any more.
    """
    of = schema.batch.c
    condition = schema.of_host(schema.batch, host), schema.unsealed, of.id <= last
    query = select(of.id, of.ms, of.ticks).where(*condition).order_by(of.id).limit(MAX_TICKS)
    complete = period = None
    ticks = 0
    for number, ms, count in connection.execute(query).all():
        period = ms // PERIOD_MS if period is None else period
        if ms // PERIOD_MS != period or ticks >= MAX_TICKS:
            return complete
        complete, ticks = number, ticks + count
    return complete if ended else None


def seal(connection: Connection, host: int, last: int, free: Callable[[Connection, int], None]) -> None:
    """Seal the batches of a host up to id ``last`` into a chunk of that id, and ``free`` their places."""
    with connection.begin():
        times, columns, processes = _columns(connection, host, last)
    # computed outside of a transaction, so that no one waits for it
    write = chunk_writer(last, times, columns, processes) if times else None
    with connection.begin():
        if write is not None:
            write(connection)
        connection.execute(update(schema.host).where(schema.host.c.id == host).values(sealed=last))
        free(connection, last)


def chunk_writer(
    number: int, times: Sequence[int], columns: dict[int, Column], processes: Sequence[Any]
) -> Callable[[Connection], None]:
    """Return a function that writes ticks as chunk ``number`` with their rollups within a transaction."""
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


def _columns(connection: Connection, host: int, last: int) -> tuple[list[int], dict[int, Column], list[Any]]:
    """Return the ticks' times in order of arrival, the columns of their series, and their processes."""
    of = schema.batch.c
    query = select(of.id, of.ms, of.data).where(schema.of_host(schema.batch, host), schema.unsealed, of.id <= last)
    batches = []
    for number, ms, data in connection.execute(query.order_by(of.id)):
        with gap("ticks %d", number):
            batches.append(parsed(ms, data))
    times: list[int] = []
    groups, processes = [], []
    for of_batch, seen in batches:
        places = {ms: len(times) + i for i, ms in enumerate(sorted({ms for own, _ in of_batch for ms in own}))}
        groups += [([places[ms] for ms in own], readings) for own, readings in of_batch]
        times += places
        processes += seen
    columns: dict[int, Column] = {}
    for where, readings in groups:
        for key, values in readings.items():
            column = columns.setdefault(key, Column(array("q"), bytearray(len(times))))
            column.values.extend(values)
            for i in where:
                column.mask[i] = 1
    return times, columns, processes
