"""The only writing thread: batches, upkeep between them, and retries when the disk fails."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from wslgpud.config import StoreSettings
from wslgpud.store import engines, errors, maintenance
from wslgpud.store.store_metrics import StoreStats
from wslgpud.store.upkeep import NightlyCheck, Upkeep
from wslgpud.store.write_buffer import Buffer
from wslgpud.words import cause, clauses, say

log = logging.getLogger(__name__)

#: ticks per transaction, so that catching up after an outage never locks the file for long
TICKS_A_COMMIT = 600
#: the log is checkpointed when it has about this many pages: each page is then copied once for all its changes
CHECKPOINT_PAGES = 256
#: approximate pages changed by a slice of upkeep
SLICE_PAGES = 9
#: waits between attempts while the database cannot be written
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
#: errors that end the start, as waiting would not help
_REFUSED = (errors.NewerSchemaError, errors.ForeignDatabaseError, errors.MissingDriverError, errors.UnwritableError)
#: in place of device and inode before anything was opened
_NO_FILE = (0, 0)


class Writer:
    """Owns the writing connection and the thread that uses it.

    Each commit is synced: Linux reports a failed write-back once (`man 2 fsync`_), and then considers the lost pages
    written. What a commit has not reported as written is written again.

    .. _man 2 fsync: https://man7.org/linux/man-pages/man2/fsync.2.html
    """

    def __init__(  # noqa: PLR0913 - the composition of the store
        self,
        target: str,
        settings: StoreSettings,
        buffer: Buffer,
        stats: StoreStats,
        wall: Callable[[], float],
        *,
        attach: Callable[[Connection], None],
    ) -> None:
        """Prepare; ``attach`` is called with each newly opened database (see ``Store``)."""
        self._target = target
        self._path = engines.sqlite_path(target)
        self._buffer, self._stats = buffer, stats
        self._attach, self._wall, self._commit_seconds = attach, wall, settings.commit_seconds
        self._upkeep = Upkeep(settings, wall, buffer, stats, on_server=self._path is None)
        # Only our own file: a server is its administrator's to check, and all of a fleet would do it at the same hour.
        self._check = None if self._path is None else NightlyCheck(target, wall, stats, self.report_damage)
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        #: device and inode of the file and of its log
        self._inode: tuple[int, int] | None = _NO_FILE
        self._log_inode: tuple[int, int] | None = _NO_FILE
        self._log_pages = 0
        self._damaged = False
        self._damage: tuple[str, tuple[int, int] | None] = ("", None)
        self._wake = threading.Condition()
        self._stopping = self._urgent = False
        self._asked = self._answered = 0
        self._failures_in_a_row = 0
        self._thread = threading.Thread(target=self._loop, name="wslgpud-store", daemon=True)
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
                ticket, stopping = self._asked, self._stopping
                self._urgent = False
            more, wait = False, RETRY_SECONDS[min(self._failures_in_a_row, len(RETRY_SECONDS) - 1)]
            try:
                self._commit_all()
                self._succeeded(ticket)
                more = not stopping and self._upkeep_slice()
                wait = self._commit_seconds
            except Exception as error:
                if not isinstance(error, (SQLAlchemyError, sqlite3.Error, errors.StoreError, OSError)):
                    # a bug in sealing or purging must not stop the writing
                    log.exception("please report this")
                self._failed(error)
            self._stats.written_bytes_total = _written_bytes()
            if stopping:
                break
        self._close_connection()

    def _commit_all(self) -> None:
        self._reopen_if_replaced()
        (problem, damaged), self._damage = self._damage, ("", None)
        if problem and damaged is not None and damaged == self._inode:
            raise errors.DamagedError("{path}: is damaged ({problem})", path=str(self._target), problem=problem)
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
        if self._check is not None:
            self._check()
        more = self._upkeep(connection)
        if more:
            self._log_grew(connection, SLICE_PAGES)
        return more

    def _log_grew(self, connection: Connection, pages: int) -> None:
        """Checkpoint the log, as far as readers allow, once it is long: SQLite would not tell of the disk's errors."""
        self._log_pages += pages
        if self._path is not None and self._log_pages >= CHECKPOINT_PAGES:
            engines.run_outside(connection, "PRAGMA wal_checkpoint(PASSIVE)")
            self._log_pages = 0

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
        # before the error is known: afterwards the file is as its readers find it
        self._close_connection()
        if self._path is not None and errors.code_of(error) == errors.IO_ERROR:
            if self._check is not None:
                self._check.soon()
            reason, remedy = errors.refusal(engines.lock_path(self._path))
            why = say("{what} ({why})", what=why, why=reason) if reason else why
            why = clauses((why, remedy))
        if str(why) != str(self._stats.error):
            log.error("history is kept %s: %s", self._buffer.waiting_place, why)
        self._stats.error = why
        self._damaged = self._damaged or (self._path is not None and errors.is_damage(error))

    def _open(self) -> Connection:
        if self._connection is None:
            self._engine = self._engine or engines.writer_engine(self._target)
            if self._damaged and self._path is not None:
                self._stats.set_aside = str(maintenance.recover(self._path, self._wall()))
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
            self._log_inode = engines.identity(self._path and engines.log_path(self._path))
        return self._connection

    def _close_connection(self) -> None:
        if self._connection is not None:
            with suppress(SQLAlchemyError):
                self._connection.close()
            self._connection = None
        self._buffer.detached()

    def _reopen_if_replaced(self) -> None:
        """Close a file that was deleted or replaced: writes to it would succeed and be lost.

        Its log remains under the name of the new file's log and would be replayed into that.
        """
        if self._path is None or self._connection is None or engines.identity(self._path) == self._inode:
            return
        log.warning("%s was deleted or replaced; continuing with the file now of that name", self._path)
        ours = engines.identity(engines.log_path(self._path)) == self._log_inode
        self._close_connection()
        if ours:
            for suffix in ("-wal", "-shm"):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)


def _written_bytes() -> int | None:
    """Return the bytes that this thread has written to disks, None where the kernel does not count them."""
    try:
        counts = Path("/proc/thread-self/io").read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in counts.splitlines() if line.startswith("write_bytes:")), None)
