"""The one thread that writes: batches, upkeep between them, and going on when the disk does not."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from wslgpud.store import engine as engines
from wslgpud.store import schema
from wslgpud.store.errors import StoreError
from wslgpud.store.intake import Intake, Waiting
from wslgpud.store.journal import Journal, Write
from wslgpud.store.pending import Batch
from wslgpud.store.sql import insert_new

log = logging.getLogger(__name__)

#: ticks written by one transaction, so that catching up after an outage never holds the file for long
TICKS_A_COMMIT = 600
#: waits between attempts while the database cannot be written
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)

Upkeep = Callable[[Connection], bool]


class Writer:
    """Owns the writing connection and the thread that uses it."""

    def __init__(  # noqa: PLR0913 - the composition of the store
        self,
        target: str,
        intake: Intake,
        journal: Journal,
        *,
        attach: Callable[[Connection], None],
        upkeep: Upkeep,
        commit_seconds: float,
    ) -> None:
        """Prepare; ``attach`` is called with each newly opened database.

        ``upkeep`` is called when nothing waits: it does one slice of work and tells whether there is more.
        """
        self._target = target
        self._path = engines.sqlite_path(target)
        self._intake, self._journal = intake, journal
        self._attach, self._upkeep = attach, upkeep
        self._commit_seconds = commit_seconds
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._wake = threading.Condition()
        self._stopping = False
        self._urgent = False
        self._asked = 0
        self._answered = 0
        self._failures_in_a_row = 0
        self._thread = threading.Thread(target=self._loop, name="wslgpud-store", daemon=True)
        self.write_errors = 0
        self.error = ""
        self.last_commit_mono: float | None = None
        self.last_commit_seconds: float | None = None

    def start(self) -> None:
        """Open the database in the caller's thread, so that its errors are the caller's; then write.

        Raises:
            StoreError: it cannot be opened.
        """
        with engines.explained(self._target):
            self._open()
        self._thread.start()

    def wake(self, *, urgent: bool) -> None:
        """Tell that something waits; urgent means commit now and sync."""
        if urgent:
            with self._wake:
                self._urgent = True
                self._wake.notify()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until what waits now is committed; return False when that has not come about in time."""
        with self._wake:
            self._asked += 1
            ticket = self._asked
            self._urgent = True
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._answered >= ticket, timeout_seconds)
            return self._answered >= ticket

    def close(self, timeout_seconds: float) -> bool:
        """Write what waits and end; return False when rows were left behind."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive() and self._intake.empty and not self._journal.batch()

    def _loop(self) -> None:
        more, wait = False, 0.0
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or self._urgent, 0 if more else wait)
                urgent, ticket, stopping = self._urgent, self._asked, self._stopping
                self._urgent = False
            done = self._step(synced=urgent or stopping)
            if done:
                with self._wake:
                    self._answered = ticket
                    self._wake.notify_all()
            if stopping:
                break
            more = done and self._try(self._upkeep_slice)
            wait = self._commit_seconds if done else self._retry_seconds()
        self._close_connection(final=True)

    def _retry_seconds(self) -> float:
        return RETRY_SECONDS[min(self._failures_in_a_row, len(RETRY_SECONDS)) - 1]

    def _step(self, *, synced: bool) -> bool:
        """Commit everything that waits; False when the database would not take it."""
        return self._try(lambda: self._commit_all(synced=synced))

    def _commit_all(self, *, synced: bool) -> bool:
        self._reopen_if_replaced()
        while True:
            waiting, writes = self._intake.waiting(TICKS_A_COMMIT), self._journal.batch()
            if not waiting and not writes:
                return True
            started = time.monotonic()
            self._commit(waiting, writes, synced=synced)
            self.last_commit_mono = time.monotonic()
            self.last_commit_seconds = self.last_commit_mono - started
            self._intake.written(waiting)
            self._journal.written(len(writes))

    def _commit(self, waiting: Waiting, writes: list[Write], *, synced: bool) -> None:
        connection = self._open()
        engines.set_synced(connection, synced=synced)
        with connection.begin():
            for write in writes:
                write(connection)
            host = self._intake.host_id
            insert_new(
                connection, schema.series, [{"id": n, "host": host, **k._asdict()} for n, k in waiting.series]
            )
            insert_new(connection, schema.batch, list(_rows(waiting.batches)))
            insert_new(connection, schema.event, [e._asdict() for e in waiting.events])

    def _upkeep_slice(self) -> bool:
        return self._upkeep(self._open())

    def _try(self, act: Callable[[], bool]) -> bool:
        """Act; on any trouble with the database note it, let the connection go and return False."""
        try:
            result = act()
        except (SQLAlchemyError, StoreError, OSError) as error:
            self._failed(error)
            return False
        if self._failures_in_a_row:
            log.info("%s: written again", engines.shown(self._target))
        self._failures_in_a_row = 0
        self.error = ""
        return result

    def _failed(self, error: Exception) -> None:
        self.write_errors += 1
        self._failures_in_a_row += 1
        text = str(engines.explain(error, self._target) if isinstance(error, DBAPIError) else error)
        if text != self.error:
            log.error("history is kept in memory: %s", text)
        self.error = text
        self._close_connection()

    def _open(self) -> Connection:
        if self._connection is None:
            self._engine = self._engine or engines.writer_engine(self._target)
            connection = self._engine.connect()
            try:
                self._attach(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._inode = self._stat()
        return self._connection

    def _close_connection(self, *, final: bool = False) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except SQLAlchemyError as error:
                log.debug("closing after a failure: %s", error)
        if final and self._engine is not None:
            self._engine.dispose()

    def _stat(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _reopen_if_replaced(self) -> None:
        """Leave a file that was deleted or replaced: writes to it would succeed and be lost."""
        if self._path is None or self._connection is None or self._stat() == self._inode:
            return
        log.warning("%s was deleted or replaced; going on with a new file", self._path)
        self._close_connection()
        if not self._path.exists():
            for suffix in ("-wal", "-shm"):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)


def _rows(batches: Iterable[Batch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for i, row in enumerate(batch.rows):
            yield {"id": batch.id + i, "batch": batch.id, **row._asdict()}
