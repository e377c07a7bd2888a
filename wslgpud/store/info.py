"""What a history consists of: what takes the room, since when, and how fast it grows."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, func, select

from wslgpud.store import engine, schema
from wslgpud.store.errors import StoreError, gap
from wslgpud.store.reader import Reader
from wslgpud.store.records import Oldest
from wslgpud.store.rollup import DAY
from wslgpud.store.series_reader import blocks_of, mask_of
from wslgpud.words import template

#: tier -> its tables
TIERS = {
    template("samples, sealed"): ("chunk", "block"),
    template("samples, newest"): ("batch",),
    template("minutes"): ("rollup_minute",),
    template("hours"): ("rollup_hour",),
    template("events and alerts"): ("event", "transition", "outbox"),
}
#: a rate over less than this says nothing
_LEAST_SPAN_SECONDS = 3600.0


@dataclass(frozen=True)
class Info:
    """Sizes in bytes, times in seconds since the epoch; None where it is not known."""

    version: int
    hosts: tuple[str, ...]
    series: int
    file_bytes: int
    wal_bytes: int
    free_bytes: int
    tiers: dict[str, int]
    samples: int
    oldest: Oldest
    newest_wall: float | None
    set_aside: tuple[Path, ...]

    @property
    def bytes_a_sample(self) -> float | None:
        """What a sample that is still kept takes, without the summaries, which outlive it."""
        raw = self.tiers.get("samples, sealed", 0) + self.tiers.get("samples, newest", 0)
        return raw / self.samples if raw and self.samples else None

    @property
    def bytes_a_day(self) -> float | None:
        """How fast the samples grow."""
        if self.newest_wall is None or self.oldest.raw_wall is None or not self.tiers:
            return None
        span = self.newest_wall - self.oldest.raw_wall
        raw = self.tiers["samples, sealed"] + self.tiers["samples, newest"]
        return raw / span * DAY if span >= _LEAST_SPAN_SECONDS else None


def info(reader: Reader) -> Info:
    """Look through a history; of a month it takes seconds."""
    with reader.connected() as connection:
        version = connection.scalar(select(func.max(schema.schema_migration.c.version))) or 0
        hosts = tuple(connection.scalars(select(schema.host.c.name).order_by(schema.host.c.id)))
        series = connection.scalar(select(func.count()).select_from(schema.series)) or 0
        newest = connection.scalar(select(func.max(schema.chunk.c.high_ms)))
        batch = schema.batch.c
        last = connection.execute(select(batch.ms, batch.offsets).order_by(batch.ms.desc()).limit(1)).first()
        with gap("the newest ticks"):
            newest = newest if last is None else last.ms + json.loads(last.offsets)[-1]
        samples = _samples(connection)
    tiers, total, free = _sizes(reader)
    path = reader.path
    aside = path.parent.glob(f"{path.name}.damaged-*Z") if path is not None else ()
    return Info(
        version=version,
        hosts=hosts,
        series=series,
        file_bytes=total,
        wal_bytes=engine.size_of(path and engine.log_path(path)) or 0,
        free_bytes=free,
        tiers=tiers,
        samples=samples,
        oldest=reader.oldest(),
        newest_wall=None if newest is None else newest / 1000,
        set_aside=tuple(sorted(aside)),
    )


def _samples(connection: Connection) -> int:
    chunk, batch = schema.chunk, schema.batch
    total = 0
    for row in connection.execute(select(chunk.c.id, chunk.c.ticks, chunk.c.masks)).all():
        with gap("chunk %d", row.id):
            blocks = Counter(block.mask for block in blocks_of(connection, row.id).values())
            for mask, count in blocks.items():
                total += count * (mask_of(row, mask).count(1) if mask else row.ticks)
    for offsets, readings in connection.execute(select(batch.c.offsets, batch.c.readings)):
        total += (offsets.count(",") + 1) * readings.count('":')
    return total


def _sizes(reader: Reader) -> tuple[dict[str, int], int, int]:
    """Return bytes by tier (nothing where this SQLite cannot tell), of the whole, and of its free pages."""
    size: dict[str, int] = {}
    total = free_bytes = 0
    # not every SQLite is built with dbstat
    with suppress(StoreError), reader.connected() as connection:
        if connection.dialect.name == "sqlite":
            pages, free, page = engine.page_counts(connection)
            total, free_bytes = pages * page, free * page
            query = "SELECT coalesce(m.tbl_name, s.name), sum(s.pgsize) FROM dbstat s"
            query += " LEFT JOIN sqlite_master m ON m.name = s.name GROUP BY 1"
            size = {str(name): int(taken) for name, taken in connection.exec_driver_sql(query)}
        else:
            tables = schema.metadata.tables
            size = {name: connection.scalar(select(func.pg_total_relation_size(name))) or 0 for name in tables}
            total = sum(size.values())
    tiers = {tier: sum(size.get(table, 0) for table in tables) for tier, tables in TIERS.items()}
    rest = {template("all else"): sum(size.values()) - sum(tiers.values())}
    return tiers | rest if size else {}, total, free_bytes
