"""Upkeep between batches: sealing, and the limits on age, size and names.

Everything is done in slices, so that a batch never waits for long; the nightly check of the whole file has its own
thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from itertools import takewhile

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, select, text

from wslgpud.config import StoreSettings
from wslgpud.metrics import MAX_SERIES_OF_NAMES
from wslgpud.store import all_series, engines, postgresql, schema, seal
from wslgpud.store.errors import StoreError
from wslgpud.store.reader import Reader
from wslgpud.store.replication import ReplicationSource
from wslgpud.store.rollup import DAY, HOUR
from wslgpud.store.slots import Slots
from wslgpud.store.store_metrics import StoreStats
from wslgpud.store.write_buffer import WriteBuffer

log = logging.getLogger(__name__)

#: time between two checks for work
INTERVAL_SECONDS = 60.0
#: target time of a slice of single rows; the limit is 50 ms
SLICE_SECONDS = 0.02
#: fewest rows in a slice, so that work completes even on the slowest disk
MIN_ROWS = 10
#: nothing is deleted for its age before the clock has run steadily for this long: a machine that starts with a clock
#: years ahead, before it is set over the network, would lose everything
SETTLE_SECONDS = 600.0
#: a step of the clock against the monotonic one that counts as a jump
JUMP_SECONDS = 3600.0
#: free pages are returned to the file system only beyond this share: the rest will be reused
FREE_SHARE = 0.1
#: limit of pages returned per slice
VACUUM_PAGES = 256
#: limit of rows in tables kept for years: a rule that flaps all day must not fill the disk either
MAX_ROWS = {schema.event: 500_000, schema.transition: 100_000, schema.outbox: 100_000, schema.daemon_run: 20_000}
_MEASURED = (schema.block, schema.chunk, schema.batch, schema.event, schema.rollup_minute, schema.rollup_hour)
#: deletion order beyond the size limit
_LEAST_VALUABLE = (schema.chunk, schema.rollup_minute, schema.batch, schema.rollup_hour, schema.event)

#: time between two passes over all series
PASS_SECONDS = 6 * 3600.0
#: beyond the series of all machines
_FAR = 1 << 60
#: series read at a time
_AT_ONCE = 200
#: series left in a metric that reached its limit of names, to make room for new ones
ROOMY = MAX_SERIES_OF_NAMES * 7 // 8
#: the first check of the file comes this long after the start, for machines that never run at night
FIRST_CHECK_SECONDS = 900.0
#: local hour of later checks
CHECK_HOUR = 4
#: called with the damage, and device and inode of the file
Report = Callable[[str, tuple[int, int] | None], None]

_series = schema.series.c
# The days in a rollup, the newest first, each looked up by key: an index by series would take more space than the
# series.
_PARTS = """WITH RECURSIVE parts(part) AS (SELECT max(part) FROM {table} UNION ALL
    SELECT (SELECT max(t.part) FROM {table} t WHERE t.part < parts.part)
    FROM parts WHERE parts.part >= :since)
    SELECT {what} FROM parts {rest}"""
_OF_SERIES = "JOIN rollup_hour r ON r.part = parts.part AND r.series = :series WHERE parts.part >= :since LIMIT 1"
_HOUR_SINCE = text(_PARTS.format(table="rollup_hour", what="1", rest=_OF_SERIES))
_SUMMARIES = {
    table: text(_PARTS.format(table=table.name, what="part", rest="")).columns(table.c.part)
    for table in (schema.rollup_minute, schema.rollup_hour)
}


class Upkeep:
    """Seals complete chunks, deletes data beyond the age limit, then beyond the size limit; one slice per call."""

    def __init__(
        self,
        settings: StoreSettings,
        wall: Callable[[], float],
        buffer: WriteBuffer | ReplicationSource,
        slots: Slots,
        stats: StoreStats,
    ) -> None:
        self._settings, self._wall, self._buffer, self._slots, self._stats = settings, wall, buffer, slots, stats
        self._rows, self._pages = 50, VACUUM_PAGES
        self._due_mono, self._on_server = 0.0, postgresql.UsedBytes(_MEASURED)
        self._forget = Forgetter(settings, buffer, stats)
        self._offset: float | None = None
        self._even_since = 0.0

    def __call__(self, connection: Connection) -> bool:
        """Do one slice if work is due; return whether there is more."""
        if time.monotonic() < self._due_mono:
            return False
        if self._seal(connection) or self._purge(connection) or self._shrink(connection):
            return True
        if self._clock_settled() and self._forget(connection, self._wall()):
            return True
        self._due_mono = time.monotonic() + INTERVAL_SECONDS
        self._stats.last_purge_wall = self._wall()
        self._count(connection)
        return False

    def _seal(self, connection: Connection) -> bool:
        ours = self._buffer.host_id
        with connection.begin():
            last = seal.due(connection, ours, self._buffer.sealable_row(ours))
            earlier = [] if last is not None else self._earlier_names(connection)
        if last is not None:
            seal.seal(connection, ours, last, self._slots.free)
        for host, row in earlier:
            seal.seal(connection, host, row, partial(_delete_batches, host))
        return last is not None or bool(earlier)

    def _earlier_names(self, connection: Connection) -> list[tuple[int, int]]:
        """Return (host, last id) of the batches in a file that may be sealed under earlier names of the machine."""
        if postgresql.is_server(connection):
            return []
        others = connection.scalars(select(schema.host.c.id).where(schema.host.c.id != self._buffer.host_id)).all()
        due_rows = ((h, seal.due(connection, h, self._buffer.sealable_row(h), ended=True)) for h in others)
        return [(host, row) for host, row in due_rows if row is not None]

    def _purge(self, connection: Connection) -> bool:
        keep = self._settings
        now = self._wall() if self._clock_settled() else 0.0
        # whole hours, so that hours continue exactly where minutes end
        before_minute = (now - keep.minute_days * DAY) // HOUR * HOUR
        before_hour = now - keep.hour_days * DAY
        too_old = {
            # unsealed data is never deleted for its age: it has no minutes and hours yet
            schema.chunk: now - keep.raw_days * DAY,
            schema.rollup_minute: before_minute,
            schema.rollup_hour: before_hour,
            schema.event: before_minute,
            schema.transition: before_hour,
            schema.outbox: before_hour,
            schema.daemon_run: before_hour,
        }
        started = time.monotonic()
        with connection.begin():
            rows = self._delete_first(connection, too_old) or self._purge_excess(connection)
            if not rows and self._used(connection) > keep.max_bytes:
                rows = self._delete_first(connection, dict.fromkeys(_LEAST_VALUABLE))
        if rows:
            self._rows = _adapted(self._rows, time.monotonic() - started, 5000)
        self._stats.purged_rows_total += rows
        self._on_server.deleted(rows)
        return rows > 0

    def _used(self, connection: Connection) -> float:
        """Return bytes in use, without free space: of an SQLite file, or of our machine's rows in PostgreSQL."""
        if postgresql.is_server(connection):
            return self._on_server(connection, partial(self._ours, connection))
        pages, free, size = engines.page_counts(connection)
        return (pages - free) * size

    def _purge_excess(self, connection: Connection) -> int:
        row_counts = self._stats.rows
        for table, max_rows in MAX_ROWS.items():
            if (excess := row_counts.get(table.name, 0) - max_rows) > 0:
                rows = self._delete_rows(connection, table, None, min(excess, self._rows))
                row_counts[table.name] -= rows
                return rows
        return 0

    def _ours(self, connection: Connection, table: Table) -> ColumnElement[bool]:
        return postgresql.only_ours(connection, schema.of_host(table, self._buffer.host_id))

    def _clock_settled(self) -> bool:
        mono = time.monotonic()
        offset = self._wall() - mono
        if self._offset is None or abs(offset - self._offset) > JUMP_SECONDS:
            self._offset, self._even_since = offset, mono
        return mono - self._even_since >= SETTLE_SECONDS

    def _delete_first(self, connection: Connection, moments: Mapping[Table, float | None]) -> int:
        """Delete a slice of the first table that has rows from before its moment, or any; return their number."""
        for table, before in moments.items():
            if table is schema.chunk:
                rows = self._delete_chunk(connection, before)
            elif "part" in table.c:
                rows = self._delete_part(connection, table, before)
            else:
                rows = self._delete_rows(connection, table, before, self._rows)
            if rows:
                return rows
        return 0

    def _delete_chunk(self, connection: Connection, before: float | None) -> int:
        chunk, block = schema.chunk, schema.block
        query = select(chunk.c.id).where(self._ours(connection, chunk))
        if before is not None:
            # not in order of arrival: one with a timestamp years ahead would retain all after it
            query = query.where(chunk.c.high_ms < before * 1000).order_by(chunk.c.high_ms)
        oldest = connection.scalar(query.order_by(chunk.c.id).limit(1))
        if oldest is None:
            return 0
        return sum(connection.execute(delete(t).where(t.c.id == oldest)).rowcount for t in (block, chunk))

    def _delete_part(self, connection: Connection, table: Table, before: float | None) -> int:
        own_rows = self._ours(connection, table)
        oldest = connection.scalar(select(func.min(table.c.part)).where(own_rows))
        if oldest is None or (before is not None and oldest >= before):
            return 0
        # a series has up to 24 rows in a part of hours
        beyond = select(table.c.series).where(table.c.part == oldest, own_rows).order_by(table.c.series)
        end = connection.scalar(beyond.offset(self._rows).limit(1))
        gone = own_rows if end is None else and_(own_rows, table.c.series <= end)
        return connection.execute(delete(table).where(table.c.part == oldest, gone)).rowcount

    def _delete_rows(self, connection: Connection, table: Table, before: float | None, limit: int) -> int:
        moment = next(table.c[name] for name in ("ms", "created_ms", "started_ms") if name in table.c)
        query = select(table.c.id, moment).where(self._ours(connection, table)).order_by(table.c.id).limit(limit)
        rows = connection.execute(query)
        ids = [number for number, _ in takewhile(lambda row: before is None or row[1] < before * 1000, rows)]
        if ids:
            connection.execute(delete(table).where(table.c.id.between(ids[0], ids[-1])))
        return len(ids)

    def _shrink(self, connection: Connection) -> bool:
        if postgresql.is_server(connection):
            return False
        with connection.begin():
            pages, free, _ = engines.page_counts(connection)
        if free <= max(VACUUM_PAGES, pages * FREE_SHARE):
            return False
        started = time.monotonic()
        engines.run_outside(connection, f"PRAGMA incremental_vacuum({self._pages})")
        self._pages = _adapted(self._pages, time.monotonic() - started, VACUUM_PAGES)
        return True

    def _count(self, connection: Connection) -> None:
        """Refresh the figures of ``Store.stats``, so that a scrape never waits for the file."""
        with connection.begin():
            for table in (schema.series, schema.batch, schema.chunk, *MAX_ROWS):
                count = select(func.count()).select_from(table)
                ours = count if table is schema.series else count.where(self._ours(connection, table))
                ours = ours.where(schema.unsealed) if table is schema.batch else ours
                self._stats.rows[table.name] = connection.scalar(ours) or 0
            if not postgresql.is_server(connection):
                _, free, size = engines.page_counts(connection)
                self._stats.free_bytes = free * size


def _delete_batches(host: int, connection: Connection, last: int) -> None:
    gone = schema.of_host(schema.batch, host), schema.batch.c.id <= last
    connection.execute(delete(schema.batch).where(*gone))


def _adapted(size: int, seconds: float, max_size: int) -> int:
    factor = min(1.5, SLICE_SECONDS / max(seconds, 0.001))
    return max(MIN_ROWS, min(max_size, int(size * factor)))


class Forgetter:
    """Deletes series without remaining data, and beyond the limit on names, those not seen for longest."""

    def __init__(self, settings: StoreSettings, buffer: WriteBuffer | ReplicationSource, stats: StoreStats) -> None:
        days = max(settings.raw_days, settings.minute_days, settings.hour_days)
        self._raw_seconds, self._all_seconds = settings.raw_days * DAY, days * DAY
        self._buffer, self._stats = buffer, stats
        self._due_mono = 0.0
        self._place: int | None = None
        self._excess: dict[tuple[int, str], int] = {}

    def __call__(self, connection: Connection, now_wall: float) -> bool:
        """Check some series; return whether there are more."""
        if time.monotonic() < self._due_mono:
            return False
        with connection.begin():
            more = self._look(connection, now_wall)
        if not more:
            self._place, self._due_mono = None, time.monotonic() + PASS_SECONDS
        return more

    def _look(self, connection: Connection, now_wall: float) -> bool:
        host = self._buffer.host_id
        low, high = schema.series_range(host) if postgresql.is_server(connection) else (0, _FAR)
        own_batches = postgresql.only_ours(connection, schema.of_host(schema.batch, host))
        if self._place is None:
            self._place, self._excess = low - 1, _excess(connection, low, high)
        query = select(_series.id, _series.host, _series.metric).where(_series.id.between(self._place + 1, high))
        some = connection.execute(query.order_by(_series.id).limit(_AT_ONCE)).all()
        in_use = self._buffer.in_use() | all_series.unsealed_series(connection, own_batches)
        started = time.monotonic()
        for number, of_host, metric in some:
            self._place = number
            crowded = self._excess.get((of_host, metric), 0) > 0
            since = now_wall - (self._raw_seconds if crowded else self._all_seconds)
            if number not in in_use and not _kept(connection, number, since):
                _delete(connection, number)
                self._stats.purged_rows_total += 1
                if crowded:
                    self._excess[of_host, metric] -= 1
            if time.monotonic() - started > SLICE_SECONDS:
                return True
        return len(some) == _AT_ONCE


def _excess(connection: Connection, low: int, high: int) -> dict[tuple[int, str], int]:
    count = func.count()
    query = select(_series.host, _series.metric, count).where(_series.id.between(low, high))
    query = query.group_by(_series.host, _series.metric).having(count >= MAX_SERIES_OF_NAMES)
    return {(host, metric): series_count - ROOMY for host, metric, series_count in connection.execute(query)}


def _kept(connection: Connection, number: int, since_wall: float) -> bool:
    since = int(since_wall // DAY) * DAY
    return connection.execute(_HOUR_SINCE, {"series": number, "since": since}).first() is not None


def _delete(connection: Connection, number: int) -> None:
    for table, parts in _SUMMARIES.items():
        gone = table.c.series == number, table.c.part.in_(parts.bindparams(since=0).scalar_subquery())
        connection.execute(delete(table).where(*gone))
    connection.execute(delete(schema.series).where(_series.id == number))


def next_check(last_wall: float) -> float:
    """Return the time of the next nightly check after a moment."""
    last = datetime.fromtimestamp(last_wall).astimezone()
    due = last.replace(hour=CHECK_HOUR, minute=0, second=0, microsecond=0)
    return (due if due > last else due + timedelta(days=1)).timestamp()


class NightlyCheck:
    """Checks the file when it is due."""

    def __init__(self, target: str, wall: Callable[[], float], stats: StoreStats, report: Report) -> None:
        self._target, self._wall, self._stats, self._report = target, wall, stats, report
        self._due_wall = wall() + FIRST_CHECK_SECONDS
        self._thread: threading.Thread | None = None

    def __call__(self) -> None:
        """Start a check if it is due and none is running."""
        now = self._wall()
        # a clock that was years ahead and went back must not postpone the next check for years
        self._due_wall = min(self._due_wall, next_check(now))
        if now < self._due_wall or (self._thread is not None and self._thread.is_alive()):
            return
        self._due_wall = next_check(now)
        self._thread = threading.Thread(target=self._look, name="wslgpud-check", daemon=True)
        self._thread.start()

    def soon(self) -> None:
        self._due_wall = self._wall()

    def _look(self) -> None:
        try:
            with Reader(self._target) as reader:
                findings, identity = reader.check(), reader.identity
        except StoreError as error:
            log.warning("the history could not be checked: %s", error)
            return
        self._stats.check_findings, self._stats.last_check_wall = tuple(findings), self._wall()
        if findings:
            log.error("%s: %s", self._target, findings[0])
            self._report(findings[0], identity)
