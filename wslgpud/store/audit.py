"""Whether a history is sound: the file's structure, every block, and the minutes against their samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import compress
from typing import Any

from sqlalchemy import Connection, and_, func, select

from wslgpud.store import schema
from wslgpud.store.codec import Block, decode
from wslgpud.store.errors import DAMAGE
from wslgpud.store.reader import Reader
from wslgpud.store.rollup import MINUTE, MINUTE_PART, Summary, minute_rows, summarise
from wslgpud.store.series_reader import blocks_of, mask_of, times_of
from wslgpud.words import Said, cause, say

#: findings told at most; a damaged page makes hundreds
MOST = 20
_Minutes = dict[tuple[int, int], Summary]


def audit(reader: Reader, progress: Callable[[int, int], None]) -> list[Said]:
    """Return what is wrong, empty when nothing is; ``progress`` is told (chunks done, chunks)."""
    findings = reader.check()
    if findings:
        # beyond a damaged page nothing can be trusted, and each read of it would be one more finding
        return [*findings[:MOST]]
    found: list[Said] = []
    with reader.connected() as connection:
        for finding in _chunks(connection, progress):
            found.append(finding)
            if len(found) >= MOST:
                break
    return found


def _chunks(connection: Connection, progress: Callable[[int, int], None]) -> Iterator[Said]:
    chunk, block, series = schema.chunk, schema.block, schema.series
    whole = {row.id: row.divisor > 0 for row in connection.execute(select(series.c.id, series.c.divisor))}
    numbers = connection.scalars(select(chunk.c.id).order_by(chunk.c.id)).all()
    known = {host for (host,) in connection.execute(select(schema.host.c.id))}
    orphans = {number >> schema.SERIES_BITS for number in whole} - known
    if orphans:
        yield say("series of {count} hosts that are not known", count=len(orphans))
    for done, number in enumerate(numbers):
        progress(done, len(numbers))
        row = connection.execute(select(chunk).where(chunk.c.id == number)).one()
        host = number >> schema.ROW_BITS << schema.SERIES_BITS
        try:
            times, blocks = times_of(row), blocks_of(connection, number)
        except DAMAGE as error:
            yield say("chunk {number}: {why}", number=number, why=cause(error))
            continue
        minutes: _Minutes = {}
        for own, part in blocks.items():
            series_id = host | own
            try:
                minutes |= _minutes_of(row, times, part, series_id, whole=whole[series_id])
            except KeyError:
                yield say(
                    "chunk {number}: belongs to a series {series} that is not known", number=number, series=series_id
                )
            except DAMAGE as error:
                yield say("chunk {number}, series {series}: {why}", number=number, series=series_id, why=cause(error))
        yield from _compare(connection, number, minutes)
    progress(len(numbers), len(numbers))
    if not numbers and connection.scalar(select(func.count()).select_from(block)):
        yield say("blocks without their chunks")


def _minutes_of(chunk: Any, times: list[int], block: Block, series_id: int, *, whole: bool) -> _Minutes:
    own = list(compress(times, mask_of(chunk, block.mask))) if block.mask else times
    values = decode(block.data, len(own), block.last, whole=whole)
    summaries = summarise(own, values, MINUTE * 1000)
    return {(ms // 1000, series_id): known for ms, known in summaries.items()}


def _compare(connection: Connection, number: int, minutes: _Minutes) -> Iterator[Said]:
    table = schema.rollup_minute
    parts = sorted({time // MINUTE_PART * MINUTE_PART for time, _ in minutes})
    mine = table.c.series.between(*schema.series_range(number >> schema.ROW_BITS))
    in_order = select(table.c.part, table.c.series).where(mine).order_by(table.c.part, table.c.series)
    # where minutes are kept for less time than samples the oldest are gone, and they go in this very order
    first = tuple(connection.execute(in_order.limit(1)).first() or (0, 0))
    kept: _Minutes = {}
    ids = {series_id for _, series_id in minutes}
    if ids:
        these = and_(table.c.part.in_(parts), table.c.series.between(min(ids), max(ids)))
        kept = {(time, series_id): known for time, series_id, known in minute_rows(connection, these)}
    wrong = [
        (time, series_id)
        for (time, series_id), seen in minutes.items()
        if (time // MINUTE_PART * MINUTE_PART, series_id) >= first and not _holds(kept.get((time, series_id)), seen)
    ]
    if wrong:
        yield say(
            "chunk {number}: {count} of its minutes do not hold what their samples say", number=number, count=len(wrong)
        )


def _holds(kept: Summary | None, seen: Summary) -> bool:  # perhaps more than these samples
    return kept is not None and kept.n >= seen.n and kept.low <= seen.low and kept.high >= seen.high
