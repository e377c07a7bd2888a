"""The only writing thread: batches, upkeep between them, and retries when the disk fails."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from wslgpud.config import StoreSettings
from wslgpud.store import engines, errors, recovery, schema, series_ids, wal
from wslgpud.store.batches import Slots
from wslgpud.store.schema import insert_new
from wslgpud.store.store_metrics import StoreStats
from wslgpud.store.upkeep import NightlyCheck, Upkeep
from wslgpud.store.write_buffer import Buffer, Waiting
from wslgpud.words import cause, clauses, say

log = logging.getLogger(__name__)

#: ticks per transaction, so that catching up after an outage never locks the file for long
TICKS_A_COMMIT = 600
#: approximate pages changed by a slice of upkeep
SLICE_BYTES = 8 * wal.PAGE
#: waits between attempts while the database cannot be written
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
#: errors that end the start, as waiting would not help
_REFUSED = (errors.NewerSchemaError, errors.ForeignDatabaseError, errors.MissingDriverError, errors.UnwritableError)
#: in place of device and inode before anything was opened
_NO_FILE = (0, 0)


class Writer:
    """Owns the writing connection and the thread that uses it."""

    def __init__(  # noqa: PLR0913 - the composition of the store
        self,
        target: str,
        settings: StoreSettings,
        buffer: Buffer,
        stats: StoreStats,
        wall: Callable[[], float],
        *,
        attach: Callable[..., None],
        upkeep: type[Upkeep] = Upkeep,
        once: bool = False,
    ) -> None:
        """Prepare; ``attach`` is called with each newly opened database (see ``Store``).

        ``once``: end as soon as all that waits is written, however long that takes.
        """
        self._target = target
        self._path = engines.sqlite_path(target)
        self._buffer, self._stats = buffer, stats
        self._attach, self._wall, self._commit_seconds = attach, wall, settings.commit_seconds
        self._slots, self._once = Slots(), once
        self._upkeep = upkeep(settings, wall, buffer, self._slots, stats)
        # Only our own file: a server is its administrator's to check, and all of a fleet would do it at the same hour.
        self._check = None if self._path is None else NightlyCheck(target, wall, stats, self.report_damage)
        self._engine: Engine | None = None
        self._damaged = False
        self._inode: tuple[int, int] | None = _NO_FILE
        self._wal: wal.Wal | None = None
        self._wake = threading.Condition()
        self._stopping = self._urgent = False
        self._asked = self._answered = 0
        self._failures_in_a_row = 0
        self._thread = threading.Thread(target=self._loop, name="wslgpud-store", daemon=True)
        self._unsynced = self._suspect = False
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
        self.begin()

    def begin(self) -> None:
        """Write from now on; the thread opens the database, which may take as long as it likes.

        Raises MissingDriverError.
        """
        self._engine = self._engine or engines.writer_engine(self._target)
        self._thread.start()

    def wake(self) -> None:
        """Have the queue committed and synced now; otherwise it is committed periodically."""
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
        """Write the queue and end; return False if rows were left behind."""
        self._stopping = True
        self.wake()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive() and self._buffer.empty

    def report_damage(self, problem: str, identity: tuple[int, int] | None) -> None:
        """Have the file (by device and inode) set aside: a reader found it damaged."""
        self._damage = (problem, identity)
        self.wake()

    def _loop(self) -> None:
        more, wait = False, 0.0
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or self._urgent, 0 if more else wait)
                urgent, ticket, stopping = self._urgent, self._asked, self._stopping
                self._urgent = False
            more, wait = False, RETRY_SECONDS[min(self._failures_in_a_row, len(RETRY_SECONDS) - 1)]
            try:
                self._commit_all(synced=urgent or stopping or self._once)
                self._succeeded(ticket)
                more = not stopping and self._upkeep_slice()
                wait = self._commit_seconds
            except Exception as error:
                if not isinstance(error, (SQLAlchemyError, sqlite3.Error, errors.StoreError, OSError)):
                    # a bug in sealing or purging must not stop the writing
                    log.exception("please report this")
                self._failed(error)
            self._stats.written_bytes_total = wal.written_bytes()
            if stopping or (self._once and not more and not self._failures_in_a_row):
                break
        self._close_connection()

    def _commit_all(self, *, synced: bool) -> None:
        self._reopen_if_replaced()
        (problem, damaged), self._damage = self._damage, ("", None)
        if problem and damaged is not None and damaged == self._inode:
            raise errors.StoreError("{path}: is damaged ({problem})", path=str(self._target), problem=problem)
        # before taking rows to write: a new file may need other numbers
        log_file = self._open()
        started, some = time.monotonic(), False
        while True:
            numbered = self._buffer.look_up(log_file.connection)
            waiting = self._buffer.waiting(TICKS_A_COMMIT)
            if not (numbered or waiting):
                break
            log_file.grew(self._commit(log_file.connection, waiting))
            self._buffer.committed(waiting)
            some = self._unsynced = True
        if synced or log_file.due:
            self._sync(log_file)
        if some:
            self.last_commit_mono = time.monotonic()
            self._stats.last_commit_seconds = self.last_commit_mono - started

    def _sync(self, log_file: wal.Wal) -> None:
        if self._unsynced:
            log_file.sync()
            self._buffer.synced()
            self._unsynced = False
        if log_file.long:
            log_file.checkpoint()

    def _commit(self, connection: Connection, waiting: Waiting) -> int:
        """Commit rows; return the bytes of the batches."""
        with connection.begin():
            for write in waiting.writes:
                write(connection)
            series_ids.save(connection, self._buffer.host_id, waiting.series, self._wall())
            insert_new(connection, schema.event, waiting.events)
            return self._slots.write(connection, waiting.rows)

    def _upkeep_slice(self) -> bool:
        log_file = self._open()
        if self._check is not None:
            self._check()
        more = self._upkeep(log_file.connection)
        if more:
            self._unsynced = True
            log_file.grew(SLICE_BYTES)
            if log_file.long:
                self._sync(log_file)
        return more

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
        why = cause(errors.explain(error, self._target) if isinstance(error, DBAPIError) else error)
        lost_writes = isinstance(error, errors.LostWriteError) or "I/O error" in str(why)
        # SQLite has been told of a disk error, which is not reported again
        self._suspect = self._suspect or lost_writes
        # before the error is known: afterwards the queue includes rows to write again
        self._close_connection()
        if self._path is not None and lost_writes:
            reason, remedy = wal.refusal(self._path)
            if reason and str(reason) not in str(why):
                why = say("{what} ({why})", what=why, why=reason)
            why = clauses((why, remedy))
        if str(why) != str(self._stats.error):
            log.error("history is kept %s: %s", self._buffer.waiting_place, why)
        self._stats.error = why
        # the driver's own text: SQLAlchemy adds the statement's values, which may mention damage
        driver_text = str(error.orig if isinstance(error, DBAPIError) else error)
        self._damaged = self._damaged or (self._path is not None and recovery.is_damage(driver_text))

    def _open(self) -> wal.Wal:
        if self._wal is None:
            self._engine = self._engine or engines.writer_engine(self._target)
            if self._damaged and self._path is not None:
                self._stats.set_aside = str(recovery.recover(self._path, self._wall()))
                self._damaged, self._inode = False, _NO_FILE
            opened = wal.Wal(self._engine.connect(), self._path)
            same_file = self._inode == engines.identity(self._path)
            try:
                if self._suspect and same_file:
                    opened.write_again()
                self._attach(opened.connection, same_file=same_file)
                with opened.connection.begin():
                    self._slots.load(opened.connection, self._buffer.host_id)
                # the start of this run must be on disk even if the power fails in the next second
                opened.sync()
            except BaseException:
                opened.close()
                raise
            self._wal, self._inode = opened, engines.identity(self._path)
            if self._suspect and self._check is not None:
                self._check.soon()
            self._suspect = False
        return self._wal

    def _close_connection(self) -> None:
        if self._wal is not None:
            self._wal.close()
            self._wal = None
        self._buffer.again()

    def _reopen_if_replaced(self) -> None:
        """Close a file that was deleted or replaced: writes to it would succeed and be lost.

        Its log remains under the name of the new file's log and would be replayed into that.
        """
        if self._path is None or self._wal is None or engines.identity(self._path) == self._inode:
            return
        log.warning("%s was deleted or replaced; continuing with the file now of that name", self._path)
        ours = engines.identity(engines.log_path(self._path)) == self._wal.inode
        self._close_connection()
        if ours:
            for suffix in ("-wal", "-shm"):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)
