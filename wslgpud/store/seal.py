"""Turning ticks into sealed blocks and summaries: one stretch of time, one transaction, exactly once.

The ticks go in the same transaction in which their blocks and summaries come, so a crash or restart neither
loses nor repeats any; what lay about from before a downtime is sealed as soon as newer ticks arrive.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, select

from wslgpud.model import Number
from wslgpud.store import schema
from wslgpud.store.codec import encode
from wslgpud.store.rollup import Summary, stretches, summary
from wslgpud.store.tiers import write_summaries

#: length of a chunk: long enough to compress, short enough that the newest, larger rows stay few
PERIOD_SECONDS = 900
PERIOD_MS = PERIOD_SECONDS * 1000
#: at ten ticks a second a chunk is closed early
MAX_TICKS = 3000

MINUTE = 60


class Column(NamedTuple):
    """The values of one series over the ticks of a chunk; ``mask`` says which of the ticks have one."""

    values: array[int] | list[Number]
    mask: bytearray


class Stretch(NamedTuple):
    """Ticks to be sealed together: ids from ``first`` to ``last``."""

    first: int
    last: int


def due(connection: Connection, low: int, high: int) -> Stretch | None:
    """Return the oldest ticks among ids ``low`` to ``high`` whose period is over, if any."""
    tick = schema.tick
    mine = select(tick.c.id, tick.c.ms).where(tick.c.id.between(low, high))
    oldest = connection.execute(mine.order_by(tick.c.id).limit(1)).first()
    newest = connection.execute(mine.order_by(tick.c.id.desc()).limit(1)).first()
    if oldest is None or newest is None:
        return None
    period = oldest.ms // PERIOD_MS
    if newest.ms // PERIOD_MS == period and newest.id - oldest.id + 1 < MAX_TICKS:
        return None
    count, last = 0, oldest.id
    for number, ms in connection.execute(mine.order_by(tick.c.id).limit(MAX_TICKS)):
        if ms // PERIOD_MS != period:
            return Stretch(oldest.id, last)
        count, last = count + 1, number
    return Stretch(oldest.id, last) if count == MAX_TICKS else None


def seal(connection: Connection, stretch: Stretch, host_id: int) -> int:
    """Seal the ticks of ``stretch`` and return how many they were."""
    with connection.begin():
        times, columns, processes = _columns(connection, stretch)
        number = _next_chunk(connection, host_id)
    # the work is done outside of a transaction: nobody waits for it
    blocks, masks = _blocks(number, columns)
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
    tick = schema.tick
    with connection.begin():
        connection.execute(schema.chunk.insert(), row)
        if blocks:
            connection.execute(schema.block.insert(), blocks)
        write_summaries(connection, minutes)
        connection.execute(delete(tick).where(tick.c.id.between(stretch.first, stretch.last)))
    return len(times)


def _columns(connection: Connection, stretch: Stretch) -> tuple[list[int], dict[int, Column], list[Any]]:
    """Return the ticks' times, the columns of their series, and their processes."""
    tick = schema.tick
    query = (
        select(tick.c.ms, tick.c.readings, tick.c.processes)
        .where(tick.c.id.between(stretch.first, stretch.last))
        .order_by(tick.c.id)
    )
    rows = connection.execute(query).all()
    times = [ms for ms, _, _ in rows]
    found: dict[str, Column] = {}
    for i, (_, readings, _) in enumerate(rows):
        for key, value in json.loads(readings).items():
            column = found.get(key)
            if column is None:
                values: array[int] | list[Number] = array("q") if type(value) is int else []
                column = found[key] = Column(values, bytearray(len(times)))
            column.values.append(value)
            column.mask[i] = 1
    processes = [[ms, json.loads(text)] for ms, _, text in rows if text]
    return times, {int(key): column for key, column in found.items()}, processes


def _next_chunk(connection: Connection, host_id: int) -> int:
    low, high = schema.row_range(host_id)
    newest: int | None = connection.scalar(
        select(func.max(schema.chunk.c.id)).where(schema.chunk.c.id.between(low, high))
    )
    return (newest or low) + 1


def _blocks(chunk: int, columns: dict[int, Column]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return the rows of the blocks, and the masks they refer to by number (1, 2, ...)."""
    masks: dict[bytes, int] = {}
    rows = []
    for number, column in sorted(columns.items()):
        mask = 0
        if len(column.values) < len(column.mask):
            mask = masks.setdefault(bytes(column.mask), len(masks) + 1)
        rows.append(
            {
                "id": schema.block_id(chunk, number),
                "mask": mask,
                "last": column.values[-1],
                "data": encode(column.values, whole=isinstance(column.values, array)),
            }
        )
    return rows, list(masks)


def _minutes(times: Sequence[int], columns: dict[int, Column]) -> dict[tuple[int, int], Summary]:
    """Return the summary of each (minute, series); minutes are seconds since the epoch."""
    found: dict[tuple[int, int], Summary] = {}
    everywhere = list(stretches(times, MINUTE * 1000))
    for number, (values, mask) in columns.items():
        full = len(values) == len(times)
        runs = everywhere if full else stretches(list(compress(times, mask)), MINUTE * 1000)
        for begin, first, end in runs:
            key, part = (begin // 1000, number), summary(values[first:end])
            found[key] = found[key].then(part) if key in found else part
    return found
