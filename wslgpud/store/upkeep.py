"""What the writer does between batches: sealing, and keeping the file within its bounds by age and by size.

Everything is done in slices, so that a batch never waits for long.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, select, true

from wslgpud.config import StoreSettings
from wslgpud.store import engine as engines
from wslgpud.store import schema, seal
from wslgpud.store.forget import Forgetter
from wslgpud.store.intake import Intake
from wslgpud.store.used import Used

log = logging.getLogger(__name__)

DAY_SECONDS = 86400
#: time between two looks for something to do
INTERVAL_SECONDS = 60.0
#: a slice of single rows aims at this; 50 ms is the promise
SLICE_SECONDS = 0.02
#: rows in a slice at least, so that it comes to an end on the slowest disk
LEAST_ROWS = 10
#: nothing is deleted for its age before the clock has gone on evenly for so long: a machine that starts with
#: a clock years ahead, until it is set over the network, would lose everything
SETTLE_SECONDS = 600.0
#: a step of the clock against the monotonic one that counts as a jump
JUMP_SECONDS = 3600.0
#: free pages are given back to the file system only beyond this share: the rest will be written again
FREE_SHARE = 0.1
#: pages given back in one slice at most
VACUUM_PAGES = 256
#: most rows of what is kept for years: a rule that flaps all day must not fill the disk either
MOST_ROWS = {
    schema.event: 500_000, schema.transition: 100_000, schema.outbox: 100_000, schema.daemon_run: 20_000,
}  # fmt: skip
#: tables whose rows the store counts, and tells of itself
COUNTED = (schema.series, schema.batch, schema.chunk, *MOST_ROWS)


class Upkeep:
    """Seals what is complete, deletes what is too old, then what is too much; one slice a call."""

    def __init__(self, settings: StoreSettings, wall: Callable[[], float], intake: Intake) -> None:
        """Follow ``settings``; ``wall`` gives the time, ``intake`` says whose rows these are."""
        self._settings = settings
        self._wall = wall
        self._intake = intake
        self._due_mono = 0.0
        self._rows = 50
        self._pages = VACUUM_PAGES
        self._used = Used()
        self._forget = Forgetter(settings, intake)
        self._offset: float | None = None
        self._even_since = 0.0
        self.rows: dict[str, int] = {}
        self.free_bytes: int | None = None
        self.purged_rows = 0
        self.last_purge_wall: float | None = None
        self.longest_slice_seconds = 0.0
        self.longest_seal_seconds = 0.0

    def __call__(self, connection: Connection) -> bool:
        """Do one slice if work is due; tell whether there is more."""
        if time.monotonic() < self._due_mono:
            return False
        if self._seal(connection):
            return True
        started = time.monotonic()
        more = self._purge(connection) or self._shrink(connection) or self._forget_series(connection)
        self.longest_slice_seconds = max(self.longest_slice_seconds, time.monotonic() - started)
        if more:
            return True
        self._due_mono = time.monotonic() + INTERVAL_SECONDS
        self.last_purge_wall = self._wall()
        self._count(connection)
        return False

    def _seal(self, connection: Connection) -> bool:
        low, _ = schema.row_range(self._intake.host_id)
        with connection.begin():
            stretch = seal.due(connection, low, self._intake.synced_row)
        if stretch is not None:
            started = time.monotonic()
            seal.seal(connection, stretch, self._intake.next_row())
            self.longest_seal_seconds = max(self.longest_seal_seconds, time.monotonic() - started)
        return stretch is not None

    def _purge(self, connection: Connection) -> bool:
        """Delete one slice of what is too old or, oldest samples first, too much."""
        keep = self._settings
        now = self._wall() if self._clock_settled() else 0.0
        before_raw = now - keep.raw_days * DAY_SECONDS
        # whole hours, so that hours go on exactly where minutes end
        before_minute = (now - keep.minute_days * DAY_SECONDS) // 3600 * 3600
        before_hour = now - keep.hour_days * DAY_SECONDS
        started = time.monotonic()
        with connection.begin():
            rows = (
                # what is not sealed yet never goes for its age: its minutes and hours are still to be made
                self._purge_chunk(connection, before_raw)
                or self._purge_part(connection, schema.rollup_minute, before_minute)
                or self._purge_part(connection, schema.rollup_hour, before_hour)
                or self._purge_rows(connection, schema.event, before_minute)
                or self._purge_rows(connection, schema.transition, before_hour)
                or self._purge_rows(connection, schema.outbox, before_hour)
                or self._purge_rows(connection, schema.daemon_run, before_hour)
            )
            rows = rows or self._purge_excess(connection)
            if not rows and self._used(connection, self._intake.host_id) > keep.max_bytes:
                rows = (
                    self._purge_chunk(connection, None)
                    or self._purge_part(connection, schema.rollup_minute, None)
                    or self._purge_rows(connection, schema.batch, None)
                    or self._purge_part(connection, schema.rollup_hour, None)
                    or self._purge_rows(connection, schema.event, None)
                )
        if rows:
            self._adapt(time.monotonic() - started)
        self.purged_rows += rows
        self._used.freed(rows)
        return rows > 0

    def _forget_series(self, connection: Connection) -> bool:
        """Look at some series, and delete those that nothing is kept of."""
        if not self._clock_settled():
            return False
        before = self._forget.forgotten
        with connection.begin():
            more = self._forget(connection, self._wall())
        self.purged_rows += self._forget.forgotten - before
        return more

    def _purge_excess(self, connection: Connection) -> int:
        """Delete some of the oldest rows of a table that has more than it may have."""
        for table, most in MOST_ROWS.items():
            excess = self.rows.get(table.name, 0) - most
            if excess > 0:
                rows = self._purge_rows(connection, table, None, at_most=excess)
                self.rows[table.name] -= rows
                return rows
        return 0

    def _ours(self, connection: Connection, table: Table) -> ColumnElement[bool]:
        """Return what is true of the rows to be kept within bounds.

        In a file that is all: of a machine that was renamed, nobody else would ever delete the old rows.
        """
        if connection.dialect.name == "sqlite":
            return true()
        key, (low, high) = schema.key_range(table, self._intake.host_id)
        return key.between(low, high)

    def _clock_settled(self) -> bool:
        mono = time.monotonic()
        offset = self._wall() - mono
        if self._offset is None or abs(offset - self._offset) > JUMP_SECONDS:
            self._offset, self._even_since = offset, mono
        return mono - self._even_since >= SETTLE_SECONDS

    def _purge_chunk(self, connection: Connection, before: float | None) -> int:
        """Delete blocks of the oldest chunk, at last itself, if it ends before ``before`` (None: always)."""
        chunk, block = schema.chunk, schema.block
        query = select(chunk.c.id).where(self._ours(connection, chunk))
        if before is not None:
            # not in order of arrival: one that a clock years ahead has stamped would keep all after it
            query = query.where(chunk.c.high_ms < before * 1000).order_by(chunk.c.high_ms)
        oldest = connection.scalar(query.order_by(chunk.c.id).limit(1))
        if oldest is None:
            return 0
        first, last = schema.block_id(oldest, 0), schema.block_id(oldest, -1)
        beyond = select(block.c.id).where(block.c.id.between(first, last)).order_by(block.c.id)
        end = connection.scalar(beyond.offset(self._rows).limit(1))
        gone = block.c.id.between(first, last if end is None else end - 1)
        deleted = connection.execute(delete(block).where(gone)).rowcount
        if end is not None:
            return deleted
        connection.execute(delete(chunk).where(chunk.c.id == oldest))
        return deleted + 1

    def _purge_part(self, connection: Connection, table: Table, before: float | None) -> int:
        """Delete some of the oldest part of summaries if it begins before ``before`` (None: always)."""
        mine = self._ours(connection, table)
        oldest = connection.scalar(select(func.min(table.c.part)).where(mine))
        if oldest is None or (before is not None and oldest >= before):
            return 0
        # a series of an hour's part is up to 24 rows
        beyond = select(table.c.series).where(table.c.part == oldest, mine).order_by(table.c.series)
        end = connection.scalar(beyond.offset(self._rows).limit(1))
        gone = mine if end is None else and_(mine, table.c.series <= end)
        return connection.execute(delete(table).where(table.c.part == oldest, gone)).rowcount

    def _purge_rows(
        self, connection: Connection, table: Table, before: float | None, at_most: int | None = None
    ) -> int:
        """Delete the oldest rows in order of arrival, as far as they are older than ``before``."""
        moment = next(table.c[name] for name in ("ms", "created_ms", "started_ms") if name in table.c)
        query = (
            select(table.c.id, moment)
            .where(self._ours(connection, table))
            .order_by(table.c.id)
            .limit(self._rows if at_most is None else min(at_most, self._rows))
        )
        ids = []
        for number, ms in connection.execute(query):
            if before is not None and ms >= before * 1000:
                break
            ids.append(number)
        if ids:
            connection.execute(delete(table).where(table.c.id.between(ids[0], ids[-1])))
        return len(ids)

    def _adapt(self, seconds: float) -> None:
        """Let the next slice be as large as the time of this one allows."""
        factor = min(1.5, SLICE_SECONDS / max(seconds, 0.001))
        self._rows = max(LEAST_ROWS, min(5000, int(self._rows * factor)))

    def _shrink(self, connection: Connection) -> bool:
        if connection.dialect.name != "sqlite":
            return False
        with connection.begin():
            pages, free, _ = engines.page_counts(connection)
        if free <= max(VACUUM_PAGES, pages * FREE_SHARE):
            return False
        started = time.monotonic()
        engines.run_outside(connection, f"PRAGMA incremental_vacuum({self._pages})")
        factor = min(1.5, SLICE_SECONDS / max(time.monotonic() - started, 0.001))
        self._pages = max(LEAST_ROWS, min(VACUUM_PAGES, int(self._pages * factor)))
        return True

    def _count(self, connection: Connection) -> None:
        """Refresh the figures that ``Store.stats`` tells, so that a scrape never waits for the file."""
        with connection.begin():
            for table in COUNTED:
                count = select(func.count()).select_from(table)
                if table is not schema.series:
                    count = count.where(self._ours(connection, table))
                self.rows[table.name] = connection.scalar(count) or 0
            if connection.dialect.name == "sqlite":
                _, free, size = engines.page_counts(connection)
                self.free_bytes = free * size
