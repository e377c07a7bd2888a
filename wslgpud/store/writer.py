"""From a tick to the disk: a bounded queue, and the only thread that writes the file."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from wslgpud.config import StoreSettings
from wslgpud.model import Number, Reading, Snapshot
from wslgpud.store import engines, errors, maintenance, schema, statements
from wslgpud.store.codec import Batch, OpenBatch, Series, process_rows
from wslgpud.store.store_metrics import StoreStats, written_bytes
from wslgpud.store.upkeep import NightlyCheck, Upkeep
from wslgpud.words import MessageLike, cause, clauses, say

log = logging.getLogger(__name__)

#: limit of the queue while the disk is full or gone: three quarters of an hour of 250 series
BUFFER_BYTES = 8 * 1024 * 1024
#: memory of a queued row besides its text
_ROW_BYTES = 700
#: ids a second, for rows from before the database is open: theirs come from the clock, and those in it stay below
_IDS_A_SECOND = 4
#: all series are looked up anew this often, which says in the database that they are still read, and drops the others
FORGET_SECONDS = 3600.0
#: ticks per transaction, so that catching up after an outage never locks the file for long
TICKS_A_COMMIT = 600
#: The log is checkpointed when it has about this many pages, 4 MB: each page is then copied once for all its changes,
#: those of batches about once an hour. A quarter of this length writes 15 % more.
CHECKPOINT_PAGES = 1024
SLICE_PAGES = 9  # changed by a slice of upkeep
#: waits between attempts while the database cannot be written
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
#: errors that end the start, as waiting would not help
_REFUSED = (errors.NewerSchemaError, errors.ForeignDatabaseError, errors.UnwritableError)


class Row(NamedTuple):
    """A queued statement; ``spare`` ones are dropped first."""

    write: Callable[[Connection], object]
    bytes: int
    spare: bool
    ticks: int = 0


class WriteBuffer:
    """Keeps rows until the writer has committed them, which is: until they are on the disk; never blocks on it."""

    def __init__(self, wall: Callable[[], float], buffer_bytes: int = BUFFER_BYTES) -> None:
        self._lock, self._wall = threading.RLock(), wall
        #: id of the host of these rows, and where its batches lie
        self.host_id, self._slots = 0, statements.BatchSlots(0)
        #: metric and label values -> a series that was read since the hour began
        self._series: dict[tuple[str, tuple[str, ...]], Series] = {}
        self._forgotten_wall = 0.0
        self._open = OpenBatch()
        self._queue: list[Batch | Row] = []
        self._max_bytes, self._bytes = buffer_bytes, 0
        self._next_row = 0
        self.dropped_ticks = self.dropped_records = self.rejected_values = 0

    def put(self, snapshot: Snapshot, *, urgent: bool) -> None:
        ms = round(snapshot.wall * 1000)
        readings: dict[int, Number] = {}
        processes: list[list[Any]] | None = None
        with self._lock:
            # or the clock jumped: after a long sleep the upkeep would take those in use for unseen
            if self.empty and abs(snapshot.wall - self._forgotten_wall) >= FORGET_SECONDS:
                self._forgotten_wall, self._series = snapshot.wall, {}
            for sample in (report.sample for report in snapshot.reports if report.fresh):
                self._scale(sample.readings, readings)
                if sample.processes:
                    processes = process_rows(sample.processes, snapshot.gpus)
                for event in sample.events:
                    fields = json.dumps(dict(event.fields), ensure_ascii=False)
                    row = {"ms": round(event.wall * 1000), "kind": event.kind, "text": event.text, "fields": fields}
                    self.insert(schema.event, row, spare=True)
            if readings or processes:
                if urgent or not self._open.takes(ms):
                    self._close_batch()
                self._open.add(ms, readings, processes)
                if urgent:
                    self._close_batch(urgent=True)

    def insert(self, table: Table, row: Mapping[str, Any], *, spare: bool = False) -> int:
        """Queue a row and return its id."""
        text_bytes = sum(len(value) for value in row.values() if isinstance(value, str))
        with self._lock:  # rows of a table reach the file in the order of their ids
            number = self.next_row()
            write = partial(statements.insert_new, table=table, rows=[{**row, "id": number}])
            self._queue_up(Row(write, _ROW_BYTES + text_bytes, spare))
        return number

    def later(self, write: Callable[[Connection], object]) -> None:
        """Queue a change of rows."""
        with self._lock:
            self._queue_up(Row(write, _ROW_BYTES, spare=False))

    def next_row(self) -> int:
        with self._lock:
            self._next_row = (self._next_row or round(self._wall() * _IDS_A_SECOND)) + 1
            return self._next_row - 1

    def attach(self, connection: Connection, host_id: int) -> None:
        """Adopt an opened database: called again with each new connection, whatever file it leads to now."""
        last_row = engines.last_row(connection, host_id)
        sealed = connection.scalar(select(schema.host.c.sealed).where(schema.host.c.id == host_id)) or 0
        with self._lock:
            self.host_id, self._slots = host_id, statements.BatchSlots(host_id)
            self._next_row = max(self._next_row, last_row + 1)
            for item in self._queue:
                if isinstance(item, Batch) and item.id <= sealed:  # another file: it would count as sealed
                    item.id = self.next_row()
            for series in self._series.values():  # nor does a failed transaction count
                series.asked = False

    def waiting(self, ticks: int) -> Sequence[Batch | Row]:
        """Return about ``ticks`` ticks, and other rows, without removing them."""
        with self._lock:
            self._close_batch()
            before = accumulate((item.ticks for item in self._queue), initial=0)
            return [item for item, ticks_before in zip(self._queue, before, strict=False) if ticks_before < ticks]

    def write(self, connection: Connection, waiting: Sequence[Batch | Row]) -> int:
        """Write what ``waiting`` returned within a transaction; return the bytes of its batches."""
        with self._lock:
            known, now = [*self._series.values()], {"host": self.host_id, "seen_ms": round(self._wall() * 1000)}
        for series in known:
            if not series.asked:
                number = statements.register(connection, series.row | now, limited=series.limited)
                series.number, series.asked = number, True
        numbers = {str(one.key): one.number & schema.OWN_SERIES for one in known if one.number is not None}
        written = 0
        for item in waiting:
            if isinstance(item, Batch):
                row = item.row(numbers)
                written += len(row["data"])
                self._slots.write(connection, row)
            else:
                item.write(connection)
        return written

    def committed(self, done: Sequence[Batch | Row]) -> None:
        with self._lock:
            gone = {*map(id, done)}
            self._queue = [item for item in self._queue if id(item) not in gone]
            self._bytes = sum(item.bytes for item in self._queue)

    @property
    def queue(self) -> tuple[int, int]:
        """Queued ticks, and their approximate bytes."""
        with self._lock:
            return sum(item.ticks for item in self._queue) + len(self._open.times), self._bytes

    @property
    def empty(self) -> bool:
        return not (self._open.times or self._queue)

    def _queue_up(self, item: Batch | Row) -> None:
        """Queue an item; beyond the limit, drop the oldest, spare ones first."""
        self._queue.append(item)
        self._bytes += item.bytes
        while self._bytes > self._max_bytes and len(self._queue) > 1:
            gone = self._queue.pop(next((i for i, old in enumerate(self._queue) if old.spare), 0))
            self._bytes -= gone.bytes
            self.dropped_ticks += gone.ticks
            self.dropped_records += not gone.ticks

    def _close_batch(self, *, urgent: bool = False) -> None:
        if self._open.times:
            self._queue_up(self._open.closed(self.next_row(), urgent=urgent))
            self._open = OpenBatch()

    def _scale(self, readings: Iterable[Reading], into: dict[int, Number]) -> None:
        """Convert readings to integers by names of their series."""
        for spec, value, labels in readings:
            if not spec.stored:
                continue
            if (series := self._series.get((spec.name, labels))) is None:
                series = self._series[spec.name, labels] = Series.of(len(self._series), spec, labels)
            number = series.scaled(value)
            if number is None:
                self.rejected_values += 1
            else:
                into[series.key] = number


class DatabaseThread:
    """A thread that writes a database in rounds: at intervals, when woken, and again soon after a failure."""

    waiting_place = "in memory"

    def __init__(self, name: str, target: str, stats: StoreStats, interval_seconds: float) -> None:
        self._target, self._stats, self._interval_seconds = target, stats, interval_seconds
        self._connection: Connection | None = None
        self._wake = threading.Condition()
        self._stopping = self._urgent = False
        self._asked = self._answered = 0
        self._failures_in_a_row = 0
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def _write(self) -> None:
        """Write all that waits."""
        raise NotImplementedError

    def _upkeep_slice(self) -> bool:
        """Do other work for a moment; return whether there is more."""
        raise NotImplementedError

    def wake(self) -> None:
        """Have the queue committed now; otherwise it is committed periodically."""
        with self._wake:
            self._urgent = True
            # notify all: otherwise a waiter in ``flush`` might take it from the thread
            self._wake.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until the present queue is committed; return False on timeout."""
        with self._wake:
            self._asked += 1
            ticket = self._asked
            self.wake()
            self._wake.wait_for(lambda: self._answered >= ticket, timeout_seconds)
            return self._answered >= ticket

    def close(self, timeout_seconds: float) -> bool:
        """Write the queue and end; return False if that takes longer."""
        self._stopping = True
        self.wake()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        more, wait = False, 0.0
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or self._urgent, 0 if more else wait)
                ticket, stopping = self._asked, self._stopping
                self._urgent = False
            more, wait = False, RETRY_SECONDS[min(self._failures_in_a_row, len(RETRY_SECONDS) - 1)]
            try:
                self._write()
                self._succeeded(ticket)
                more = not stopping and self._upkeep_slice()
                wait = self._interval_seconds
            except Exception as error:
                if not isinstance(error, (SQLAlchemyError, sqlite3.Error, errors.StoreError, OSError)):
                    # a bug in sealing or purging must not stop the writing
                    log.exception("please report this")
                self._failed(error)
            self._stats.written_bytes_total = written_bytes()
            if stopping:
                break
        self._close_connection()

    def _succeeded(self, ticket: int) -> None:
        if self._failures_in_a_row:
            log.info("%s: written again", engines.shown(self._target))
        self._failures_in_a_row, self._stats.error = 0, ""
        with self._wake:
            self._answered = ticket
            self._wake.notify_all()

    def _failed(self, error: Exception) -> None:
        self._stats.write_errors_total += 1
        self._failures_in_a_row += 1
        # before the error is known: afterwards the file is as its readers find it
        self._close_connection()
        why = self._reason(error)
        if str(why) != str(self._stats.error):
            log.error("history is kept %s: %s", self.waiting_place, why)
        self._stats.error = why

    def _close_connection(self) -> None:
        if self._connection is not None:
            with suppress(SQLAlchemyError):
                self._connection.close()
            self._connection = None

    def _reason(self, error: Exception) -> MessageLike:
        return cause(errors.explain(error, self._target) if isinstance(error, DBAPIError) else error)


class Writer(DatabaseThread):
    """Owns the writing connection to the file.

    Each commit is synced: Linux reports a failed write-back once (man 2 fsync), and then considers the lost pages
    written. What a commit has not reported as written is written again.
    """

    def __init__(  # noqa: PLR0913 - the composition of the store
        self,
        path: Path,
        settings: StoreSettings,
        buffer: WriteBuffer,
        stats: StoreStats,
        wall: Callable[[], float],
        *,
        attach: Callable[[Connection], None],
    ) -> None:
        """Prepare; ``attach`` is called with each newly opened database (see ``Store``)."""
        super().__init__("wslgpud-store", str(path), stats, settings.commit_seconds)
        self._path, self._buffer, self._attach, self._wall = path, buffer, attach, wall
        self.upkeep = Upkeep(settings, wall, stats)
        self._check = NightlyCheck(str(path), wall, stats, self.report_damage)
        self._engine = engines.writer_engine(path)
        #: device and inode of the file and of its log
        self._inode: tuple[int, int] | None = None
        self._log_inode: tuple[int, int] | None = None
        self._log_pages = 0
        self._damaged = False
        self._damage: tuple[str, tuple[int, int] | None] = ("", None)
        self.last_commit_mono: float | None = None

    def start(self, *, ours: bool) -> None:
        """Open the database in the caller's thread, so that its errors (StoreError) are the caller's; then write.

        ``ours``: we created this file, so if it is not a valid database, it is damaged rather than foreign.
        """
        try:
            with errors.explained(self._target):
                self._open()
        except errors.StoreError as error:
            if isinstance(error, _REFUSED) or (isinstance(error, errors.NotADatabaseError) and not ours):
                raise
            # full, locked, damaged: samples wait in memory, and alerts must go out meanwhile
            self._failed(error)
        self._thread.start()

    def report_damage(self, problem: str, identity: tuple[int, int] | None) -> None:
        """Have the file (by device and inode) set aside: a reader found it damaged."""
        self._damage = (problem, identity)
        self.wake()

    def _write(self) -> None:
        self._reopen_if_replaced()
        (problem, damaged), self._damage = self._damage, ("", None)
        if problem and damaged is not None and damaged == self._inode:
            raise errors.DamagedError("{path}: is damaged ({problem})", path=self._target, problem=problem)
        connection, started = self._open(), time.monotonic()
        while waiting := self._buffer.waiting(TICKS_A_COMMIT):
            with connection.begin():
                batch_bytes = self._buffer.write(connection, waiting)
            self._buffer.committed(waiting)
            self._log_grew(connection, 1 + batch_bytes // 4096)
            self.last_commit_mono = time.monotonic()
            self._stats.last_commit_seconds = self.last_commit_mono - started

    def _upkeep_slice(self) -> bool:
        connection = self._open()
        self._check()
        more = self.upkeep(connection, self._buffer.host_id)
        if more:
            self._log_grew(connection, SLICE_PAGES)
        return more

    def _log_grew(self, connection: Connection, pages: int) -> None:
        """Checkpoint the log, as far as readers allow, once it is long: SQLite would not tell of the disk's errors."""
        self._log_pages += pages
        if self._log_pages >= CHECKPOINT_PAGES:
            engines.run_outside(connection, "PRAGMA wal_checkpoint(PASSIVE)")
            self._log_pages = 0

    def _reason(self, error: Exception) -> MessageLike:
        self._damaged = self._damaged or errors.is_damage(error)
        why = super()._reason(error)
        if errors.code_of(error) != errors.IO_ERROR:
            return why
        self._check.soon()
        reason, remedy = errors.refusal(engines.lock_path(self._path))
        return clauses((say("{what} ({why})", what=why, why=reason) if reason else why, remedy))

    def _open(self) -> Connection:
        if self._connection is None:
            if self._damaged:
                if self._path.exists():  # else somebody has removed it
                    self._stats.set_aside = str(maintenance.recover(self._path, self._wall()))
                self._stats.check_findings = None  # they were of the file that is gone
                self._damaged = False
            opened = self._engine.connect()
            try:
                self._attach(opened)
            except BaseException:
                with suppress(SQLAlchemyError):
                    opened.close()
                raise
            self._connection = opened
            self._inode = engines.identity(self._path)
            self._log_inode = engines.identity(engines.log_path(self._path))
        return self._connection

    def _reopen_if_replaced(self) -> None:
        """Close a file that was deleted or replaced: writes to it would succeed and be lost.

        Its log remains under the name of the new file's log and would be replayed into that.
        """
        if self._connection is None or engines.identity(self._path) == self._inode:
            return
        log.warning("%s was deleted or replaced; continuing with the file now of that name", self._path)
        ours = engines.identity(engines.log_path(self._path)) == self._log_inode
        self._close_connection()
        for suffix in ("-wal", "-shm") if ours else ():
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
