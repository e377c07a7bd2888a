"""Turns snapshots into rows queued for writing: by column, bounded, and without blocking on a disk."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from sqlalchemy import Connection, Table

from wslgpud.model import Number, Reading, Snapshot
from wslgpud.store.batches import Batch, OpenBatch
from wslgpud.store.schema import MAX_VALUE, insert_new, row_range
from wslgpud.store.series_ids import SeriesInUse, SeriesKey, find

#: limit of the queue while the disk is full or gone: three quarters of an hour of 250 series
BUFFER_BYTES = 8 * 1024 * 1024
#: limit of queued events
BUFFER_EVENTS = 2000
#: limit of other queued statements; a transition and its deliveries are a handful
BUFFER_WRITES = 20_000
#: row ids from here on are placeholders until the database is opened for the first time
PROVISIONAL = 1 << 50
_T = TypeVar("_T")

Write = Callable[[Connection], object]


class Backlog(Generic[_T]):
    """Items to write, oldest first: committed ones, then queued ones.

    Committed items stay until they are known to be on disk: a calm commit only passes rows to the kernel. If the disk
    then fails, Linux reports it once and drops them, and only we still have them.
    """

    def __init__(
        self,
        max_size: int,
        size: Callable[[_T], int] = lambda _: 1,
        count: Callable[[_T], int] = lambda _: 1,
        calm: Callable[[_T], bool] = lambda _: True,
    ) -> None:
        """Hold items up to a total size of ``max_size``; among queued ones, the ``calm`` ones are dropped first."""
        self._max_size, self._size_of, self._count_of, self._calm = max_size, size, count, calm
        self._items: deque[_T] = deque()
        self._committed = 0
        #: total size of all items
        self.size = 0
        #: number of items dropped without a commit
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._items) - self._committed

    def waiting(self) -> list[_T]:
        return [*islice(self._items, self._committed, None)]

    def put(self, item: _T) -> None:
        """Queue an item; beyond the limit, drop committed ones, then queued ones, oldest first."""
        self._items.append(item)
        self.size += self._size_of(item)
        while self.size > self._max_size and len(self) > 1:
            self._give_up()

    def replace(self, changed: Callable[[_T], _T]) -> None:
        """Replace the items by others of the same sizes."""
        self._items = deque(map(changed, self._items))

    def committed(self, items: Iterable[_T]) -> None:
        """Record which items were committed, in order; idempotent."""
        for item in items:
            if len(self) and self._items[self._committed] is item:
                self._committed += 1

    def synced(self) -> None:
        """Drop committed items: they are on disk."""
        while self._committed:
            self._give_up()

    def again(self) -> None:
        """Queue everything again that may not be on disk."""
        self._committed = 0

    def _give_up(self) -> None:
        index = 0
        if self._committed:
            self._committed -= 1
        else:
            index = next((i for i, item in enumerate(self._items) if self._calm(item)), 0)
            self.dropped += self._count_of(self._items[index])
        self.size -= self._size_of(self._items[index])
        del self._items[index]


class Waiting(NamedTuple):
    series: list[tuple[int, SeriesKey]]
    batches: list[Batch]
    #: the rows of ``schema.batch`` for the batches
    rows: list[dict[str, Any]]
    events: list[dict[str, Any]]
    writes: list[Write]

    def __bool__(self) -> bool:
        return any(self)


class Buffer(Protocol):
    """What the writer of a database gets its rows from."""

    #: id of the host of these rows in the database
    host_id: int
    waiting_place: str

    def look_up(self, connection: Connection) -> bool:
        """Assign numbers to new series: those in the database, else free ones; return whether there were any."""

    def waiting(self, ticks: int) -> Waiting:
        """Return about ``ticks`` ticks without removing them; while any series lacks an id, none."""

    def committed(self, done: Waiting) -> None: ...

    def synced(self) -> None:
        """Drop committed items: they are on disk."""

    def again(self) -> None:
        """Queue everything again that may not be on disk."""

    def sealable_row(self, host_id: int) -> int:
        """Return the last id of a host's batches that may be sealed."""

    def in_use(self) -> set[int]:
        """Return the ids of the series that are being read."""

    @property
    def empty(self) -> bool: ...


class WriteBuffer:
    """Keeps the series in use, and rows until the writer has committed them.

    The writer looks up the number of a series when it is first read, so that memory holds only those in use, not all
    that the database has ever had.
    """

    waiting_place = "in memory"

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._lock = threading.Lock()
        #: id of the host of these rows
        self.host_id = 0
        self._series = SeriesInUse()
        self._open = OpenBatch()
        # the seconds before an exhaustion of memory are the purpose of the history
        self.pending: Backlog[Batch] = Backlog(
            buffer_bytes, lambda batch: batch.bytes, lambda batch: batch.ticks, lambda batch: not batch.urgent
        )
        self.events: Backlog[dict[str, Any]] = Backlog(BUFFER_EVENTS)
        #: must never be lost
        self.writes: Backlog[Write] = Backlog(BUFFER_WRITES)
        self._backlogs: tuple[Backlog[Any], ...] = self.pending, self.events, self.writes
        self._next_row = PROVISIONAL
        self._shift = 0
        self._committed_row = 0
        self._synced_row = 0
        #: id of a host in the file -> last id of its batches that a central database has; None without one
        self._copied_rows: dict[int, int] | None = None
        self.rejected_values = 0

    def attach(self, host_id: int, last_row: int, *, same_file: bool = False) -> None:
        """Adopt the state of an opened database: our host's id, the last row id in use.

        Called again with each new connection. For a new file, queued rows are renumbered; for the same one they must
        not be, because a failed commit may have happened nevertheless.
        """
        with self._lock:
            self._close_batch()
            self.host_id = host_id
            self._series.adopt(host_id)
            free = last_row + 1
            if self._next_row >= PROVISIONAL:
                self._shift = free - PROVISIONAL
                self._next_row += self._shift
            self._next_row = max(self._next_row, free)
            if not same_file:
                self._committed_row = self._synced_row = last_row
                self.pending.replace(lambda batch: batch._replace(id=self._row_id()))
                self.events.replace(lambda event: {**event, "id": self._row_id()})

    def look_up(self, connection: Connection) -> bool:
        """Assign numbers to new series: those in the database, else free ones; return whether there were any."""
        with self._lock:
            keys = {series.key for series in self._series.unnumbered()}
        if keys:
            with connection.begin():
                known = find(connection, self.host_id, keys)
            with self._lock:
                self.rejected_values += self._series.number(keys, known)
        return bool(keys)

    def in_use(self) -> set[int]:
        with self._lock:
            return {*self._series.numbers().values()}

    def put(self, snapshot: Snapshot, *, urgent: bool) -> None:
        ms = round(snapshot.wall * 1000)
        readings: dict[str, Number] = {}
        processes: list[list[Any]] | None = None
        with self._lock:
            if not self.pending.size:  # includes committed rows: they may have to be written again
                self._series.turn(snapshot.mono)
            for sample in (report.sample for report in snapshot.reports if report.fresh):
                self._scale(sample.readings, readings)
                if sample.processes:
                    processes = [
                        *([p.pid, p.start_ticks, p.name, *_kib(p.rss_bytes, p.swap_bytes)] for p in sample.processes),
                        *([g.uuid, p.pid, p.name, *_kib(p.used_bytes)] for g in snapshot.gpus for p in g.processes),
                    ]
                for event in sample.events:
                    fields = json.dumps(dict(event.fields), ensure_ascii=False)
                    row = {"ms": round(event.wall * 1000), "kind": event.kind, "text": event.text, "fields": fields}
                    self.events.put({**row, "id": self._row_id()})
            if readings or processes:
                if urgent or not self._open.takes(ms):
                    self._close_batch()
                self._open.add(ms, readings, processes)
                self._open.urgent = urgent
                if urgent:
                    self._close_batch()

    def waiting(self, ticks: int) -> Waiting:
        """Return about ``ticks`` ticks without removing them; while any series lacks an id, none."""
        with self._lock:
            events, writes = self.events.waiting(), self.writes.waiting()
            if self._series.unnumbered():
                return Waiting([], [], [], events, writes)
            self._close_batch()
            pending, numbers, series = self.pending.waiting(), self._series.numbers(), list(self._series.unsaved)
        before = accumulate((batch.ticks for batch in pending), initial=0)
        batches = [batch for batch, ticks_before in zip(pending, before, strict=False) if ticks_before < ticks]
        return Waiting(series, batches, [batch.row(numbers) for batch in batches], events, writes)

    def committed(self, done: Waiting) -> None:
        with self._lock:
            del self._series.unsaved[: len(done.series)]
            self.pending.committed(done.batches)
            if done.batches:
                self._committed_row = done.batches[-1].id
            self.events.committed(done.events)
            self.writes.committed(done.writes)

    def synced(self) -> None:
        """Drop committed items: they are on disk."""
        with self._lock:
            for backlog in self._backlogs:
                backlog.synced()
            self._synced_row = self._committed_row

    def again(self) -> None:
        """Queue everything again that may not be on disk."""
        with self._lock:
            for backlog in self._backlogs:
                backlog.again()

    def sealable_row(self, host_id: int) -> int:
        """Return the last id of a host's batches known to be on disk, and in a central database.

        Later ones may have to be committed again, and sealed ones would be duplicated.
        """
        synced = self._synced_row if host_id == self.host_id else row_range(host_id)[1]
        return synced if self._copied_rows is None else min(synced, self._copied_rows.get(host_id, 0))

    def wait_for_copies(self) -> None:
        """Seal nothing that a central database does not have yet, see ``copied``."""
        self._copied_rows = {}

    def copied(self, host_id: int, row: int) -> None:
        """Record up to which id a central database has the batches of a host in the file."""
        if self._copied_rows is not None:
            self._copied_rows[host_id] = row

    @property
    def queue(self) -> tuple[int, int]:
        """Queued ticks, and the approximate bytes of all ticks that may not be on disk."""
        with self._lock:  # shared with the writer
            return sum(batch.ticks for batch in self.pending.waiting()) + len(self._open.times), self.pending.size

    @property
    def empty(self) -> bool:
        return not (self._open.times or self._series.unsaved or any(self._backlogs))

    def insert(self, table: Table, row: Mapping[str, Any], **references: int | None) -> int:
        """Queue a row and return its id; ``references`` are columns that hold ids of other rows."""

        def insert(connection: Connection) -> None:
            ids = {name: other and self.final_row(other) for name, other in references.items()}
            insert_new(connection, table, [{**row, **ids, "id": self.final_row(number)}])

        with self._lock:  # rows of a table reach the file in the order of their ids
            number = self._row_id()
            self.writes.put(insert)
        return number

    def write(self, write: Write) -> None:
        with self._lock:
            self.writes.put(write)

    def next_row(self) -> int:
        with self._lock:
            return self._row_id()

    def final_row(self, number: int) -> int:
        """Return the database's id of a row numbered by ``next_row``, perhaps before the database was open."""
        return number + self._shift if number >= PROVISIONAL else number

    def _row_id(self) -> int:
        self._next_row += 1
        return self._next_row - 1

    def _close_batch(self) -> None:
        if self._open.times:
            self.pending.put(self._open.closed(self._row_id()))
            self._open = OpenBatch()

    def _scale(self, readings: Iterable[Reading], into: dict[str, Number]) -> None:
        """Convert readings to integers by name of their series."""
        known = self._series.known
        for spec, value, labels in readings:
            if not spec.stored:
                continue
            series = known.get((spec.name, labels)) or self._series.learn(spec, labels)
            name = series.name
            number = _scaled(value, series.key.divisor) if name else None
            if number is None:
                self.rejected_values += 1
            elif spec.names and name in into:
                into[name] += number
            else:
                into[name] = number


def _scaled(value: float, divisor: int) -> int | None:
    """Return ``value * divisor`` as an integer; None if not finite or too large."""
    scaled = value * divisor
    return round(scaled) if -MAX_VALUE < scaled < MAX_VALUE else None


def _kib(*sizes: int | None) -> list[int | None]:
    return [size and size // 1024 for size in sizes]
