"""Keeping the file within its bounds: by age and by size, in slices that never hold the writer for long."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Connection, Table, delete, func, select

from wslgpud.config import StoreSettings
from wslgpud.store import engine as engines
from wslgpud.store import schema

DAY_MS = 86_400_000
#: time between two looks for something to delete
INTERVAL_SECONDS = 60.0
#: a slice aims at this; 50 ms is the promise
SLICE_SECONDS = 0.02
#: free pages are given back to the file system only beyond this share: the rest will be written again
FREE_SHARE = 0.1
#: pages given back in one slice
VACUUM_PAGES = 256
#: tables whose rows the store tells of itself
COUNTED = (schema.series, schema.tick, schema.event, schema.transition)


class Upkeep:
    """Deletes what is too old, then what is too much, one slice a call."""

    def __init__(self, settings: StoreSettings, wall: Callable[[], float]) -> None:
        """Follow ``settings``; ``wall`` gives the time."""
        self._settings = settings
        self._wall = wall
        self._due_mono = 0.0
        self._rows = 200
        self.purged_rows = 0
        self.rows: dict[str, int] = {}
        self.free_bytes: int | None = None
        self.last_purge_wall: float | None = None

    def __call__(self, connection: Connection) -> bool:
        """Do one slice if work is due; tell whether there is more."""
        if time.monotonic() < self._due_mono:
            return False
        if self._delete_slice(connection) or self._shrink_slice(connection):
            return True
        self._due_mono = time.monotonic() + INTERVAL_SECONDS
        self.last_purge_wall = self._wall()
        self._count(connection)
        return False

    def _count(self, connection: Connection) -> None:
        """Refresh the figures that ``Store.stats`` tells, so that a scrape never waits for the file."""
        with connection.begin():
            self.rows = {
                table.name: connection.scalar(select(func.count()).select_from(table)) or 0
                for table in COUNTED
            }
            if connection.dialect.name == "sqlite":
                _, free, size = page_counts(connection)
                self.free_bytes = free * size

    def _delete_slice(self, connection: Connection) -> bool:
        now = round(self._wall() * 1000)
        oldest_raw = now - self._settings.raw_days * DAY_MS
        oldest_row = now - self._settings.hour_days * DAY_MS
        started = time.monotonic()
        with connection.begin():
            if _used_bytes(connection) > self._settings.max_bytes:
                oldest_raw = float(now)
            rows = self._delete(connection, schema.tick, oldest_raw)
            for table in (schema.event, schema.transition):
                rows += self._delete(connection, table, oldest_row)
        self.purged_rows += rows
        if rows:
            self._adapt(time.monotonic() - started)
        return rows > 0

    def _delete(self, connection: Connection, table: Table, before_ms: float) -> int:
        """Delete the oldest rows in order of arrival, as far as they are older than ``before_ms``."""
        oldest = select(table.c.id, table.c.ms).order_by(table.c.id).limit(self._rows)
        ids = []
        for number, ms in connection.execute(oldest):
            if ms >= before_ms:
                break
            ids.append(number)
        if ids:
            connection.execute(delete(table).where(table.c.id.between(ids[0], ids[-1])))
        return len(ids)

    def _adapt(self, seconds: float) -> None:
        factor = min(2.0, SLICE_SECONDS / max(seconds, 0.001))
        self._rows = max(10, min(5000, int(self._rows * factor)))

    def _shrink_slice(self, connection: Connection) -> bool:
        if connection.dialect.name != "sqlite":
            return False
        with connection.begin():
            pages, free, _ = page_counts(connection)
        if free <= max(VACUUM_PAGES, pages * FREE_SHARE):
            return False
        engines.run_outside(connection, f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
        return True


def page_counts(connection: Connection) -> tuple[int, int, int]:
    """Return (pages, free pages, bytes a page) of an SQLite file."""
    pages, free, size = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar() or 0)
        for name in ("page_count", "freelist_count", "page_size")
    )
    return pages, free, size


def _used_bytes(connection: Connection) -> int:
    if connection.dialect.name != "sqlite":
        return 0
    pages, free, size = page_counts(connection)
    return (pages - free) * size
