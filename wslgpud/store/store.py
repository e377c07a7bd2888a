"""The store's interface to the rest of the program."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from sqlalchemy import Connection, case, delete, func, select, update

from wslgpud import __version__
from wslgpud.config import StoreSettings
from wslgpud.host import Clock, SystemClock
from wslgpud.model import Snapshot, StressResult
from wslgpud.security import safe_files
from wslgpud.store import engines, replication, schema, statements
from wslgpud.store.errors import gap
from wslgpud.store.outbox import Outbox
from wslgpud.store.reader import Reader
from wslgpud.store.records import DaemonRun, Learned, stress_to_json
from wslgpud.store.replication import Replication
from wslgpud.store.store_metrics import StoreStats
from wslgpud.store.writer import WriteBuffer, Writer

#: time that ``close`` waits for the disk; a service has 3 s to stop
CLOSE_SECONDS = 2.5
#: window in which the watched time of this machine is counted
WATCHED_SECONDS = 30 * 86400.0


@final
class Store(AbstractContextManager["Store"]):
    """History of this machine in one SQLite file, perhaps copied to a server: one writer, many readers.

    ``append`` and the outbox never block on the disk and never fail with it; unwritten data is kept in memory up to a
    limit, shown in ``stats``, and written when the disk is back.
    """

    def __init__(  # noqa: PLR0913 - the composition of the history
        self,
        target: str | Path,
        settings: StoreSettings | None = None,
        *,
        host_name: str | None = None,
        boot_id: str = "",
        clock: Clock | None = None,
        own_file: Path | None = None,
        machine_id: str = "",
    ) -> None:
        """Open or create the database at ``target`` (a path, or an SQLAlchemy URL) and start the writer.

        With a server as ``target`` the history is stored in ``own_file``, and copied there whenever it answers.

        Raises:
            ValueError: a server as ``target`` without ``own_file``.
            StoreError: the folder or file cannot be used; each subclass names it and the remedy.
            NewerSchemaError: a newer wslgpud wrote the file.
            LockedError: another daemon writes into it.
        """
        server = str(target) if engines.sqlite_path(str(target)) is None else ""
        path = own_file if server else engines.sqlite_path(str(target))
        if path is None:
            raise ValueError("a history that is copied to a server is written into a file first: own_file")
        self._path = path
        settings = settings or StoreSettings()
        self.host = host_name or socket.gethostname()
        self._clock = clock or SystemClock()
        self._held = ExitStack()
        engines.prepare_folder(path)
        self.warning = engines.check_state_folder(path.parent)
        # a lock file beside it shows that the file was ours, whatever it looks like now
        ours = engines.lock_path(path).exists()
        self._held.callback(os.close, engines.lock_for_writing(path))
        self._buffer = WriteBuffer(self._clock.wall)
        self._stats = StoreStats()
        self._reader: Reader | None = None
        self._reading = threading.Lock()
        self._run_id: int | None = None
        self._replication: Replication | None = None
        self._boot_id = boot_id
        self.previous_run: DaemonRun | None = None
        #: time that earlier daemons have watched within ``WATCHED_SECONDS``
        self.watched_seconds = 0.0
        self.learned: dict[str, Learned] = {}
        self._writer = Writer(path, settings, self._buffer, self._stats, self._clock.wall, attach=self._attach)
        self.outbox = Outbox(self._buffer, self._clock.wall, self._writer.wake)
        if server:
            self._writer.upkeep.sealable_row = 0  # before the writer starts, whose upkeep would seal the backlog
        try:
            self._writer.start(ours=ours)
            self._held.callback(self._writer.close, CLOSE_SECONDS)
            if server:
                self._replication = Replication(
                    server,
                    settings,
                    file=str(path),
                    host=self.host,
                    machine=machine_id,
                    wall=self._clock.wall,
                    of_file=self._writer.upkeep,
                )
        except BaseException:
            self._held.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, snapshot: Snapshot, *, urgent: bool = False) -> None:
        """Store the fresh readings of a tick, without blocking or failing.

        ``urgent`` ones are committed and synced at once: it may be the last tick of this machine.
        """
        self._buffer.put(snapshot, urgent=urgent)
        if urgent:
            self._writer.wake()

    def flush(self, timeout: float = 300.0) -> bool:
        """Wait until everything is on disk; False if that takes longer than ``timeout`` seconds."""
        return self._writer.flush(timeout)

    def close(self) -> bool:
        """Write the queue, record the clean end and close the file; False if data is lost."""
        self._buffer.later(self._note_end)
        clean = self._writer.close(CLOSE_SECONDS) and self._buffer.empty
        if self._replication is not None:
            self._replication.close(replication.CLOSE_SECONDS)
        self._held.close()
        return clean

    def record_stress(self, result: StressResult) -> int:
        document = json.dumps(stress_to_json(result), ensure_ascii=False)
        row = {"ms": round(result.wall * 1000), "gpu": result.uuid, "verdict": result.verdict, "document": document}
        number = self._buffer.insert(schema.stress_run, row)
        self._writer.wake()
        return number

    def learn(self, subject: str, document: Mapping[str, Any]) -> None:
        """Store a lesson about a subject (a GPU's UUID, RAM), replacing the previous one; see ``learned``."""
        ms = round(self._clock.wall() * 1000)
        of = schema.learned.c
        row = {"ms": ms, "subject": subject, "document": json.dumps(dict(document))}
        earlier = of.subject == subject, of.id < self._buffer.insert(schema.learned, row)
        self._buffer.later(lambda connection: connection.execute(delete(schema.learned).where(*earlier)))

    @property
    def reader(self) -> Reader:
        """The reader of the history while we write it; StoreError: it cannot be read."""
        with self._reading:
            if self._reader is None:
                self._reader = self._held.enter_context(Reader(str(self._path), self.host))
            return self._reader

    def _attach(self, connection: Connection) -> None:
        """Prepare a newly opened database and load this host's state from it."""
        with connection.begin():
            host_id = engines.prepare(connection, self._path, self.host)
            self._buffer.attach(connection, host_id)
            self.outbox.load(connection)
            self._begin_run(connection, *schema.row_range(host_id))

    def _begin_run(self, connection: Connection, low: int, high: int) -> None:
        run, batch = schema.daemon_run, schema.batch
        of_host = run.c.id.between(low, high)
        if self._run_id is None:
            lessons = select(schema.learned).where(schema.learned.c.id.between(low, high))
            for row in connection.execute(lessons.order_by(schema.learned.c.id)):
                with gap("what was learned of %s", row.subject):
                    self.learned[row.subject] = Learned(row.ms / 1000, safe_files.parsed(row.document))
            last = connection.execute(select(run).where(of_host).order_by(run.c.id.desc()).limit(1)).first()
            since_ms = round((self._clock.wall() - WATCHED_SECONDS) * 1000)
            ran = func.sum(run.c.stopped_ms - case((run.c.started_ms > since_ms, run.c.started_ms), else_=since_ms))
            watched_ms = connection.scalar(select(ran).where(of_host, run.c.stopped_ms > since_ms))
            self.watched_seconds = (watched_ms or 0) / 1000
            if last is not None:
                since = batch.c.slot.between(low, high), batch.c.id > last.id
                stopped = last.stopped_ms or connection.scalar(
                    select(batch.c.ms).where(*since).order_by(batch.c.id.desc()).limit(1)
                )
                began, ended = last.started_ms / 1000, None if stopped is None else stopped / 1000
                self.previous_run = DaemonRun(began, ended, bool(last.clean), last.version, last.boot_id)
                if last.stopped_ms is None:
                    connection.execute(update(run).where(run.c.id == last.id).values(stopped_ms=stopped))
            self._run_id = self._buffer.next_row()
        ours = {"id": self._run_id, "started_ms": round(self._clock.wall() * 1000), "stopped_ms": None, "clean": 0}
        statements.insert_new(connection, run, [{**ours, "version": __version__, "boot_id": self._boot_id}])

    def _note_end(self, connection: Connection) -> None:
        run = schema.daemon_run
        connection.execute(
            update(run).where(run.c.id == self._run_id).values(stopped_ms=round(self._clock.wall() * 1000), clean=1)
        )

    def stats(self) -> StoreStats:
        """Return the store's figures about itself, without reading the file."""
        committed, (ticks, queued_bytes) = self._writer.last_commit_mono, self._buffer.queue
        return replace(
            self._stats,
            file_bytes=engines.size_of(self._path),
            wal_bytes=engines.size_of(engines.log_path(self._path)),
            queue_ticks=ticks,
            queue_bytes=queued_bytes,
            dropped_ticks_total=self._buffer.dropped_ticks,
            dropped_records_total=self._buffer.dropped_records,
            rejected_values_total=self._buffer.rejected_values,
            last_commit_age_seconds=None if committed is None else time.monotonic() - committed,
            error=self._stats.error or (self._replication.stats.error if self._replication else ""),
            replication_queue_ticks=self._replication.waiting_ticks if self._replication else None,
        )
