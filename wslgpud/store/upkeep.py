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

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, or_, select, true, update

from wslgpud.config import StoreSettings
from wslgpud.metrics import MAX_SERIES_OF_NAMES
from wslgpud.store import engines, rollup, schema
from wslgpud.store.errors import StoreError
from wslgpud.store.reader import Reader
from wslgpud.store.store_metrics import StoreStats
from wslgpud.store.write_buffer import Buffer

log = logging.getLogger(__name__)

HOUR, DAY = 3600, 86400

#: time between two checks for work
INTERVAL_SECONDS = 60.0
#: rows, and chunks, deleted in a slice, which takes at most 50 ms
SLICE_ROWS, SLICE_CHUNKS = 200, 4
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
_MINUTE, _HOUR = schema.MINUTES.table, schema.HOURS.table
#: deletion order beyond the size limit
_LEAST_VALUABLE = (schema.chunk, _MINUTE, schema.batch, _HOUR, schema.event)

#: time between two passes over all series
PASS_SECONDS = 6 * 3600.0
#: series left in a metric that reached its limit of names, to make room for new ones
ROOMY = MAX_SERIES_OF_NAMES * 7 // 8
#: the first check of the file comes this long after the start, for machines that never run at night
FIRST_CHECK_SECONDS = 900.0
#: local hour of later checks
CHECK_HOUR = 4
#: called with the damage, and device and inode of the file
Report = Callable[[str, tuple[int, int] | None], None]


class Upkeep:
    """Seals complete chunks, deletes data beyond the age limit, then beyond the size limit; one slice per call."""

    def __init__(self, settings: StoreSettings, wall: Callable[[], float], buffer: Buffer, stats: StoreStats) -> None:
        self._settings, self._wall, self._buffer, self._stats = settings, wall, buffer, stats
        self._due_mono = self._pass_due_mono = 0.0
        #: of any data; a day more, as series are seen at intervals
        self._longest_days = max(settings.raw_days, settings.minute_days, settings.hour_days) + 1
        self._offset: float | None = None
        self._even_since = 0.0

    def __call__(self, connection: Connection) -> bool:
        """Do one slice if work is due; return whether there is more."""
        if time.monotonic() < self._due_mono:
            return False
        if self._seal(connection) or self._purge(connection) or self._shrink(connection):
            return True
        if self._clock_settled() and self._forget(connection):
            return True
        self._due_mono = time.monotonic() + INTERVAL_SECONDS
        self._stats.last_purge_wall = self._wall()
        self._count(connection)
        return False

    def _seal(self, connection: Connection) -> bool:
        with connection.begin():
            last = rollup.due(connection, self._buffer.host_id, self._buffer.sealable_row)
        if last is not None:
            rollup.seal(connection, self._buffer.host_id, last, self._buffer.free)
        return last is not None

    def _purge(self, connection: Connection) -> bool:
        keep = self._settings
        now = self._wall() if self._clock_settled() else 0.0
        # whole hours, so that hours continue exactly where minutes end
        before_minute = (now - keep.minute_days * DAY) // HOUR * HOUR
        before_hour = now - keep.hour_days * DAY
        too_old = {
            # unsealed data is never deleted for its age: it has no minutes and hours yet
            schema.chunk: now - keep.raw_days * DAY,
            _MINUTE: before_minute,
            _HOUR: before_hour,
            schema.event: before_minute,
            schema.transition: before_hour,
            schema.outbox: before_hour,
            schema.daemon_run: before_hour,
        }
        with connection.begin():
            rows = self._delete_first(connection, too_old) or self._purge_excess(connection)
            if not rows and self._used_bytes(connection) > keep.max_bytes:
                rows = self._delete_first(connection, dict.fromkeys(_LEAST_VALUABLE))
        self._stats.purged_rows_total += rows
        return rows > 0

    def _used_bytes(self, connection: Connection) -> float:
        """Return the size of the database without free space."""
        pages, free, size = engines.page_counts(connection)
        self._stats.free_bytes = free * size
        return (pages - free) * size

    def _purge_excess(self, connection: Connection) -> int:
        row_counts = self._stats.rows
        for table, max_rows in MAX_ROWS.items():
            if (excess := row_counts.get(table.name, 0) - max_rows) > 0:
                rows = self._delete_rows(connection, table, None, min(excess, SLICE_ROWS))
                row_counts[table.name] -= rows
                return rows
        return 0

    def _ours(self, table: Table) -> ColumnElement[bool]:
        """Return the condition for our rows: in a file all are, also from before the machine was renamed."""
        _ = table
        return true()

    def _clock_settled(self) -> bool:
        mono = time.monotonic()
        offset = self._wall() - mono
        if self._offset is None or abs(offset - self._offset) > JUMP_SECONDS:
            self._offset, self._even_since = offset, mono
        return mono - self._even_since >= SETTLE_SECONDS

    def _delete_first(self, connection: Connection, moments: Mapping[Table, float | None]) -> int:
        """Delete a slice of the first table that has rows from before its moment, or any; return their number."""
        for table, before in moments.items():
            if "part" in table.c:
                rows = self._delete_part(connection, table, before)
            else:
                rows = self._delete_rows(
                    connection, table, before, SLICE_CHUNKS if table is schema.chunk else SLICE_ROWS
                )
            if rows:
                return rows
        return 0

    def _delete_rows(self, connection: Connection, table: Table, before: float | None, limit: int) -> int:
        of = table.c
        moment = next(of[name] for name in ("high_ms", "ms", "created_ms", "started_ms") if name in of)
        # not in order of arrival: a chunk with a timestamp years ahead would retain all after it
        order = (moment, of.id) if table is schema.chunk and before is not None else (of.id,)
        oldest = select(of.id, moment.label("ms")).where(self._ours(table)).order_by(*order).limit(limit).subquery().c
        gone = select(oldest.id) if before is None else select(oldest.id).where(oldest.ms < before * 1000)
        return connection.execute(delete(table).where(of.id.in_(gone))).rowcount

    def _delete_part(self, connection: Connection, table: Table, before: float | None) -> int:
        own_rows = self._ours(table)
        oldest = connection.scalar(select(func.min(table.c.part)).where(own_rows))
        if oldest is None or (before is not None and oldest >= before):
            return 0
        beyond = select(table.c.series).where(table.c.part == oldest, own_rows).order_by(table.c.series)
        end = connection.scalar(beyond.offset(SLICE_ROWS).limit(1))
        gone = own_rows if end is None else and_(own_rows, table.c.series <= end)
        return connection.execute(delete(table).where(table.c.part == oldest, gone)).rowcount

    def _shrink(self, connection: Connection) -> bool:
        with connection.begin():
            pages, free, _ = engines.page_counts(connection)
        if free <= max(VACUUM_PAGES, pages * FREE_SHARE):
            return False
        engines.run_outside(connection, f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
        return True

    def _forget(self, connection: Connection) -> bool:
        """Delete series without data, and beyond the limit on names, those not seen for longest; say if any.

        Summaries of the latter stay until they are too old, under a number that no other series gets.
        """
        if time.monotonic() < self._pass_due_mono:
            return False
        keep, now_ms = self._settings, round(self._wall() * 1000)
        in_use = sorted(self._buffer.in_use())
        of, ours = schema.series.c, self._ours(schema.series)
        place = (
            func.row_number()
            .over(partition_by=(of.host, of.metric), order_by=(of.seen_ms.desc(), of.id.desc()))
            .label("place")
        )
        total = func.count().over(partition_by=(of.host, of.metric)).label("total")
        newest = func.max(of.id).over(partition_by=of.host).label("newest")
        every = select(of.id, of.seen_ms, place, total, newest).where(ours).subquery().c
        crowded = and_(every.total >= MAX_SERIES_OF_NAMES, every.place > ROOMY)
        raw_ms, all_ms = (now_ms - days * DAY * 1000 for days in (keep.raw_days, self._longest_days))
        gone = or_(every.seen_ms < all_ms, and_(crowded, every.seen_ms < raw_ms))
        with connection.begin():
            for at in range(0, len(in_use), schema.MAX_IDENTITIES):
                seen = of.id.in_(in_use[at : at + schema.MAX_IDENTITIES])
                connection.execute(update(schema.series).where(seen).values(seen_ms=now_ms))
            # a clock that was years ahead must not keep any for so long
            connection.execute(update(schema.series).where(ours, of.seen_ms > now_ms).values(seen_ms=now_ms))
            query = select(every.id).where(gone, every.id < every.newest).limit(schema.MAX_IDENTITIES)
            numbers = connection.scalars(query).all()
            connection.execute(delete(schema.series).where(of.id.in_(numbers)))
        self._stats.purged_rows_total += len(numbers)
        if not numbers:
            self._pass_due_mono = time.monotonic() + PASS_SECONDS
        return bool(numbers)

    def _count(self, connection: Connection) -> None:
        """Refresh the figures of ``Store.stats``, so that a scrape never waits for the file."""
        with connection.begin():
            for table in (schema.series, schema.batch, schema.chunk, *MAX_ROWS):
                count = select(func.count()).select_from(table)
                ours = count if table is schema.series else count.where(self._ours(table))
                ours = ours.where(schema.unsealed) if table is schema.batch else ours
                self._stats.rows[table.name] = connection.scalar(ours) or 0


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
