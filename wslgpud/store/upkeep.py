"""Upkeep between batches: sealing, and the limits on age, size and names.

Everything is done in slices, so that a batch never waits for long; the nightly check of the whole file has its own
thread. Statements are text: building them anew each minute would take longer than most of them run.

One period is sealed exactly once: the ticks are freed in the same transaction that adds their blocks and rollups, so a
crash or restart neither loses nor repeats any. Ticks left from before a downtime are sealed as soon as newer ones
arrive.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, TextClause, select, text

from wslgpud.config import StoreSettings
from wslgpud.metrics import MAX_SERIES_OF_NAMES
from wslgpud.store import engines, schema, statements
from wslgpud.store.codec import Samples, Steps, Summary, add, pack_sheet, packed, parsed, summarise, unpacked
from wslgpud.store.errors import DamagedError, NotADatabaseError, StoreError, gap
from wslgpud.store.reader import Reader
from wslgpud.store.schema import HOURS, MINUTES, Tier
from wslgpud.store.store_metrics import StoreStats

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
MAX_ROWS = {"event": 500_000, "transition": 100_000, "outbox": 100_000, "daemon_run": 20_000}
#: deletion order beyond the size limit
_LEAST_VALUABLE = ("chunk", "rollup_minute", "batch", "rollup_hour", "event")
#: later than any row, in seconds since the epoch
_NEVER = float(1 << 52)

#: time between two passes over all series
PASS_SECONDS = 6 * 3600.0
#: of a metric with more series, those no longer read are deleted with their samples, to leave room for new names
ROOMY = MAX_SERIES_OF_NAMES * 7 // 8
#: slots of batches to keep when they are free; a machine that commits every second for a quarter of an hour takes 900
#: for a while
MAX_SLOTS = 300
#: the first check of the file comes this long after the start, for machines that never run at night
FIRST_CHECK_SECONDS = 900.0
#: local hour of later checks
CHECK_HOUR = 4
#: called with the damage, and device and inode of the file
Report = Callable[[str, tuple[int, int] | None], None]

# the parameters are those of ``_ours``
_OURS, _OUR_SERIES = "id BETWEEN :low AND :high", "id BETWEEN :first AND :final"
_UNSEALED = "slot BETWEEN :low AND :high AND id > (SELECT sealed FROM host WHERE host.id = :host)"
_BATCHES = text(f"SELECT id, ms, ticks FROM batch WHERE {_UNSEALED} AND id <= :last ORDER BY id LIMIT :limit")
_TICKS = text(f"SELECT id, ms, data FROM batch WHERE {_UNSEALED} AND id <= :last ORDER BY id")
_SEALED = text("UPDATE host SET sealed = :last WHERE id = :host")
#: what is left is overwritten, see ``statements.BatchSlots``; on a server, where slots are ids, nearly nothing
_SURPLUS = text("DELETE FROM batch WHERE slot BETWEEN :low + :slots AND :high AND id <= :last")
#: a clock that was years ahead must not keep any for so long
_SEEN_AHEAD = text(f"UPDATE series SET seen_ms = :now WHERE {_OUR_SERIES} AND seen_ms > :now")
_FORGOTTEN = text(f"""
    SELECT id FROM (
        SELECT id, seen_ms, row_number() OVER (PARTITION BY metric ORDER BY seen_ms DESC, id DESC) AS place,
            max(id) OVER () AS newest
        FROM series WHERE {_OUR_SERIES}
    ) s
    WHERE id < newest AND (seen_ms < :all_ms OR (place > :roomy AND seen_ms < :raw_ms))
    LIMIT :limit""")
_FORGET = text("DELETE FROM series WHERE id = :id")


def _deletion(table: str, moment: str, key: str = "id", order: str = "", ours: str = _OURS) -> TextClause:
    """Return the statement that deletes a slice of our oldest rows from before a moment (ms)."""
    oldest = f"SELECT {key}, {moment} AS ms FROM {table} WHERE {ours} ORDER BY {order or key} LIMIT :limit"
    return text(f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM ({oldest}) o WHERE ms < :before)")


def _rolled_up(table: str) -> TextClause:
    ours = "series BETWEEN :first AND :final AND part < :before / 1000"
    return _deletion(table, "part * 1000", "part, series", ours=ours)


_DELETIONS = {
    # not in order of arrival: a chunk with a timestamp years ahead would retain all after it
    "chunk": _deletion("chunk", "high_ms", order="high_ms, id", ours=f"+{_OURS} AND high_ms < :before"),
    "rollup_minute": _rolled_up("rollup_minute"),
    "rollup_hour": _rolled_up("rollup_hour"),
    "batch": _deletion("batch", "ms"),
    "event": _deletion("event", "ms"),
    "transition": _deletion("transition", "ms"),
    "outbox": _deletion("outbox", "created_ms"),
    "daemon_run": _deletion("daemon_run", "started_ms"),
}


def _excess(table: str, max_rows: int) -> TextClause:
    """Return the statement that deletes a slice of our rows beyond the newest ``max_rows``."""
    beyond = f"SELECT id FROM {table} WHERE {_OURS} ORDER BY id DESC LIMIT :limit OFFSET {max_rows}"
    return text(f"DELETE FROM {table} WHERE id IN ({beyond})")


_EXCESS = {name: _excess(name, max_rows) for name, max_rows in MAX_ROWS.items()}


class Upkeep:
    """Seals complete chunks, deletes data beyond the age limit, then beyond the size limit; one slice per call.

    On a server it keeps to our rows and their age; its size is its administrator's.
    """

    def __init__(
        self, settings: StoreSettings, wall: Callable[[], float], stats: StoreStats, *, on_server: bool = False
    ) -> None:
        self._settings, self._wall, self._stats, self._on_server = settings, wall, stats, on_server
        #: id of the host of our rows, and of the last batch that may be sealed
        self._host, self.sealable_row = 0, 1 << 62
        self._due_mono = self._pass_due_mono = 0.0
        #: of any data; a day more, as series are seen at intervals
        self._longest_days = max(settings.raw_days, settings.minute_days, settings.hour_days) + 1
        self._offset: float | None = None
        self._even_since = 0.0

    def __call__(self, connection: Connection, host: int) -> bool:
        """Do one slice for a host if work is due; return whether there is more."""
        self._host = host
        if time.monotonic() < self._due_mono:
            return False
        if self._seal(connection) or self._purge(connection) or self._shrink(connection):
            return True
        if self._clock_settled() and self._forget(connection):
            return True
        self._due_mono = time.monotonic() + INTERVAL_SECONDS
        self._stats.last_purge_wall = self._wall()
        return False

    def _seal(self, connection: Connection) -> bool:
        with connection.begin():
            last = due(connection, self._host, self.sealable_row)
        if last is not None:
            seal(connection, self._host, last)
        return last is not None

    def _purge(self, connection: Connection) -> bool:
        keep = self._settings
        now = self._wall() if self._clock_settled() else 0.0
        # summaries stay at least as long as what they sum up; whole hours, so that hours continue where minutes end
        before_minute = (now - max(keep.minute_days, keep.raw_days) * DAY) // HOUR * HOUR
        before_hour = min(now - keep.hour_days * DAY, before_minute)
        too_old = {
            # unsealed data is never deleted for its age: it has no minutes and hours yet
            "chunk": now - keep.raw_days * DAY,
            "rollup_minute": before_minute,
            "rollup_hour": before_hour,
            "event": before_minute,
            "transition": before_hour,
            "outbox": before_hour,
            "daemon_run": before_hour,
        }
        with connection.begin():
            rows = self._delete_first(connection, too_old) or self._delete_excess(connection)
            if not rows and self._used_bytes(connection) > keep.max_bytes:
                rows = self._delete_first(connection, dict.fromkeys(_LEAST_VALUABLE, _NEVER))
        self._stats.purged_rows_total += rows
        return rows > 0

    def _used_bytes(self, connection: Connection) -> int:
        """Return the size of the database without free space; 0 on a server."""
        if self._on_server:
            return 0
        pages, free, size = engines.page_counts(connection)
        self._stats.free_bytes = free * size
        return (pages - free) * size

    def _delete_first(self, connection: Connection, moments: Mapping[str, float]) -> int:
        """Delete a slice of the first table that has rows from before its moment; return their number."""
        for table, wall in moments.items():
            limit = SLICE_CHUNKS if table == "chunk" else SLICE_ROWS
            words = {**_ours(self._host), "before": round(wall * 1000), "limit": limit}
            if rows := connection.execute(_DELETIONS[table], words).rowcount:
                return rows
        return 0

    def _delete_excess(self, connection: Connection) -> int:
        words = {**_ours(self._host), "limit": SLICE_ROWS}
        return sum(connection.execute(query, words).rowcount for query in _EXCESS.values())

    def _clock_settled(self) -> bool:
        mono = time.monotonic()
        offset = self._wall() - mono
        if self._offset is None or abs(offset - self._offset) > JUMP_SECONDS:
            self._offset, self._even_since = offset, mono
        return mono - self._even_since >= SETTLE_SECONDS

    def _shrink(self, connection: Connection) -> bool:
        if self._on_server:
            return False
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
        now_ms, ours = round(self._wall() * 1000), _ours(self._host)
        raw_ms, all_ms = (now_ms - days * DAY * 1000 for days in (self._settings.raw_days, self._longest_days))
        limits = {"roomy": ROOMY, "limit": SLICE_ROWS}
        with connection.begin():
            connection.execute(_SEEN_AHEAD, {**ours, "now": now_ms})
            if gone := connection.scalars(_FORGOTTEN, {**ours, **limits, "raw_ms": raw_ms, "all_ms": all_ms}).all():
                connection.execute(_FORGET, [{"id": number} for number in gone])
            else:
                self._pass_due_mono = time.monotonic() + PASS_SECONDS
        self._stats.purged_rows_total += len(gone)
        return bool(gone)


def _ours(host: int) -> dict[str, int]:
    (low, high), (first, final) = schema.row_range(host), schema.series_range(host)
    return {"host": host, "low": low, "high": high, "first": first, "final": final}


def due(connection: Connection, host: int, last: int) -> int | None:
    """Return the last id of the oldest batches of a host, up to id ``last``, whose period is over, if any."""
    complete = period = None
    ticks = 0
    # one more than is sealed, which shows that it is time: while memory is short each tick is a batch
    words = {**_ours(host), "last": last, "limit": schema.MAX_TICKS + 1}
    for number, ms, count in connection.execute(_BATCHES, words).all():
        period = ms // schema.PERIOD_MS if period is None else period
        if ms // schema.PERIOD_MS != period or ticks >= schema.MAX_TICKS:
            return complete
        complete, ticks = number, ticks + count
    return None


def seal(connection: Connection, host: int, last: int) -> None:
    """Seal the batches of a host up to id ``last`` into a chunk of that id, and delete those that are surplus."""
    with connection.begin():
        series, processes = _samples(connection, host, last)
    # computed outside of a transaction, so that no one waits for it
    write = chunk_writer(last, series, processes) if series or processes else None
    with connection.begin():
        if write is not None:
            write(connection)
        connection.execute(_SEALED, {"host": host, "last": last})
        connection.execute(_SURPLUS, {**_ours(host), "last": last, "slots": MAX_SLOTS})


def _samples(connection: Connection, host: int, last: int) -> tuple[list[Samples], list[Any]]:
    """Return the samples of each series in order of arrival, and the processes."""
    series: dict[int, tuple[array[int], array[int]]] = {}
    processes = []
    for number, ms, data in connection.execute(_TICKS, {**_ours(host), "last": last}):
        with gap("ticks %d", number):
            ticks = parsed(ms, data)
            processes += ticks.processes
            for which, (times, more) in ticks.series.items():
                all_times, values = series.setdefault(which, (array("q"), array("q")))
                all_times.extend(times)
                values.extend(more)
    return [(which, *samples) for which, samples in series.items()], processes


def chunk_writer(number: int, series: Sequence[Samples], processes: Sequence[Any]) -> Callable[[Connection], None]:
    """Return a function that writes samples as chunk ``number`` with their rollups within a transaction.

    The numbers of series are without the host's bits.
    """
    moments = [ms for _, times, _ in series for ms in (min(times), max(times))] + [ms for ms, _ in processes]
    row = {
        "id": number,
        "low_ms": min(moments),
        "high_ms": max(moments),
        "samples": sum(len(times) for _, times, _ in series),
        "data": pack_sheet(series),
        "processes": zlib.compress(json.dumps(processes).encode(), 9) if processes else None,
    }
    first, _ = schema.series_range(number >> schema.ROW_BITS)
    summaries = {
        tier: {
            (begin // 1000, first | which): known
            for which, times, values in series
            for begin, known in summarise(times, values, tier.step_seconds * 1000).items()
        }
        for tier in (MINUTES, HOURS)
    }

    def write(connection: Connection) -> None:
        connection.execute(schema.chunk.insert(), row)
        for tier, of_tier in summaries.items():
            write_summaries(connection, tier, of_tier)

    return write


def write_summaries(connection: Connection, tier: Tier, new: Mapping[tuple[int, int], Summary]) -> None:
    """Merge summaries, by beginning (s) and series, into those that are there.

    A minute exists already if the clock went back or a chunk was closed within it, an hour from its first chunk on.
    """
    by_row: dict[tuple[int, int], Steps] = {}
    for (time_, number), known in new.items():
        part = time_ // tier.part_seconds * tier.part_seconds
        by_row.setdefault((part, number), {})[time_] = known
    if not by_row:
        return
    of, numbers = tier.table.c, {number for _, number in by_row}
    these = of.part.in_({part for part, _ in by_row}), of.series.between(min(numbers), max(numbers))
    for row in connection.execute(select(tier.table).where(*these)):
        if later := by_row.get((row.part, row.series)):
            earlier = dict(unpacked(tier, row))
            add(earlier, later.items())
            by_row[row.part, row.series] = earlier
    rows = [packed(tier, part, number, steps) for (part, number), steps in sorted(by_row.items())]
    statements.put(connection, tier.table, rows)


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
        identity = engines.identity(Path(self._target))
        try:
            with Reader(self._target) as reader:
                findings, identity = reader.check(), reader.identity
        except (DamagedError, NotADatabaseError) as error:
            # not even its tables can be read: the writer would not notice, as it has those in memory
            findings = [str(getattr(error.__cause__, "orig", error))]
        except StoreError as error:
            log.warning("the history could not be checked: %s", error)
            return
        self._stats.check_findings, self._stats.last_check_wall = tuple(findings), self._wall()
        if findings:
            log.error("%s: %s", self._target, findings[0])
            self._report(findings[0], identity)
