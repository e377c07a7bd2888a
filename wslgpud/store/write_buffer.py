"""From snapshots to rows that wait to be written: gathered by column, bounded, and without a wait for any disk."""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Table

from wslgpud.model import Number, Reading, Snapshot
from wslgpud.store.schema import MAX_BATCH, PERIOD_MS, dumps, insert_new, row_range
from wslgpud.store.series_ids import SeriesInUse, SeriesKey, find

#: what may wait in memory while the disk is full or gone: three quarters of an hour of 250 series
BUFFER_BYTES = 8 * 1024 * 1024
#: events that may wait
BUFFER_EVENTS = 2000
#: other statements that may wait; a transition and its deliveries are a handful of them
BUFFER_WRITES = 20_000
#: ids of rows from here on stand for those they get when the database is opened for the first time
PROVISIONAL = 1 << 50
_INT64 = 1 << 63
#: what a batch costs in memory beside its text
_BATCH_OVERHEAD = 800
#: a series of a group: its name, and a number or a list of them
_READING = re.compile(r'"(\d+)":(\[[^]]*\]|[^,}]+)')
_T = TypeVar("_T")

Write = Callable[[Connection], object]


class Backlog(Generic[_T]):
    """What is to be written, oldest first: committed items, then those that wait.

    Items stay, though they are committed, until the disk is known to have them: a commit in calm only hands
    rows to the kernel. If the disk then fails to take them, Linux says so once and forgets them, and only we
    still have them.
    """

    def __init__(
        self,
        most: int,
        size: Callable[[_T], int] = lambda _: 1,
        count: Callable[[_T], int] = lambda _: 1,
        calm: Callable[[_T], bool] = lambda _: True,
    ) -> None:
        """Hold items whose sizes come to ``most``; of those that wait the ``calm`` ones are given up first."""
        self._most, self._size_of, self._count_of, self._calm = most, size, count, calm
        self._items: deque[_T] = deque()
        self._committed = 0
        #: of all items
        self.size = 0
        #: how many were given up that were never committed
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._items) - self._committed

    def waiting(self) -> list[_T]:
        return [*islice(self._items, self._committed, None)]

    def put(self, item: _T) -> None:
        """Let an item wait; if that is too much, give up committed ones, then those that wait, oldest first."""
        self._items.append(item)
        self.size += self._size_of(item)
        while self.size > self._most and len(self) > 1:
            self._give_up()

    def replace(self, changed: Callable[[_T], _T]) -> None:
        """Put others of the same sizes in place of the items."""
        self._items = deque(map(changed, self._items))

    def committed(self, items: Iterable[_T]) -> None:
        """Note which items were committed, in order; again that changes nothing."""
        for item in items:
            if len(self) and self._items[self._committed] is item:
                self._committed += 1

    def synced(self) -> None:
        """Forget what is committed: the disk has it."""
        while self._committed:
            self._give_up()

    def again(self) -> None:
        """Have everything committed again that the disk may not have."""
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


class Batch(NamedTuple):
    """Some ticks as JSON, see ``schema.batch``, with readings by the names of ``SeriesInUse``."""

    id: int
    ms: int
    ticks: int
    #: (offsets, readings) of the series that have values at the very same ticks
    groups: tuple[tuple[str, str], ...]
    processes: str
    urgent: bool

    @property
    def size(self) -> int:
        return sum(len(text) for group in self.groups for text in group) + len(self.processes) + _BATCH_OVERHEAD

    def row(self, numbers: Mapping[str, int]) -> dict[str, Any]:
        groups = ",".join(f"[{offsets},{_numbered(readings, numbers)}]" for offsets, readings in self.groups)
        data = f'{{"ticks":[{groups}],"processes":{self.processes}}}'
        return {"id": self.id, "ms": self.ms, "ticks": self.ticks, "data": data}


@dataclass(slots=True)
class OpenBatch:
    """Ticks that are still being gathered; time grows from each to the next within one period."""

    times: list[int] = field(default_factory=list)
    #: name of a series -> [values, bits of the ticks they belong to]
    columns: dict[str, list[Any]] = field(default_factory=dict)
    processes: list[tuple[int, list[list[Any]]]] = field(default_factory=list)
    urgent: bool = False

    def takes(self, ms: int) -> bool:
        times = self.times
        return not times or (ms // PERIOD_MS == times[0] // PERIOD_MS and ms > times[-1] and len(times) < MAX_BATCH)

    def add(self, ms: int, readings: dict[str, Number], processes: list[list[Any]] | None) -> None:
        bit = 1 << len(self.times)
        self.times.append(ms)
        for name, value in readings.items():
            column = self.columns.setdefault(name, [[], 0])
            column[0].append(value)
            column[1] |= bit
        if processes:
            self.processes.append((ms - self.times[0], processes))

    def closed(self, number: int) -> Batch:
        """Return the series in groups that have values at the very same ticks, fullest group first."""
        groups: dict[int, dict[str, Any]] = {}
        if self.processes:
            # kept with all ticks, so that the offsets of the first group cover them
            groups[(1 << len(self.times)) - 1] = {}
        for name, (values, bits) in self.columns.items():
            first = values[0]
            groups.setdefault(bits, {})[name] = first if values.count(first) == len(values) else values
        start, found = self.times[0], []
        for bits, readings in sorted(groups.items(), key=lambda g: -g[0].bit_count()):
            offsets = [ms - start for i, ms in enumerate(self.times) if bits >> i & 1]
            found.append((dumps(offsets), dumps(readings)))
        return Batch(number, start, len(self.times), tuple(found), dumps(self.processes), self.urgent)


class Waiting(NamedTuple):
    series: list[tuple[int, SeriesKey]]
    batches: list[Batch]
    #: those of ``schema.batch`` that the batches are
    rows: list[dict[str, Any]]
    events: list[dict[str, Any]]
    writes: list[Write]

    def __bool__(self) -> bool:
        return any(self)


class WriteBuffer:
    """Knows the series in use and keeps rows until the writer has committed them.

    The number of a series is looked up by the writer when the series is first read, so that memory holds
    those in use and not all that the database has ever seen.
    """

    where_it_waits = "in memory"

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._lock = threading.Lock()
        #: of the host whose rows these are
        self.host_id = 0
        self._series = SeriesInUse()
        self._open = OpenBatch()
        # the seconds before an exhaustion of memory are what the history is for
        self.pending: Backlog[Batch] = Backlog(
            buffer_bytes, lambda batch: batch.size, lambda batch: batch.ticks, lambda batch: not batch.urgent
        )
        self.events: Backlog[dict[str, Any]] = Backlog(BUFFER_EVENTS)
        #: what must never be lost
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
        """Adopt what an opened database holds: our host's id, the last row id in use.

        Called again with each new connection. For another file than before what waits is renumbered; for
        the same it must not be, because a commit that failed may have happened all the same.
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
                self.pending.replace(lambda batch: batch._replace(id=self._row_ids(1)))
                self.events.replace(lambda event: {**event, "id": self._row_ids(1)})

    def look_up(self, connection: Connection) -> bool:
        """Give new series their numbers: those of the database, else free ones; tell whether there were any."""
        with self._lock:
            keys = {series.key for series in self._series.unnumbered()}
        if keys:
            with connection.begin():
                found = find(connection, self.host_id, keys)
            with self._lock:
                self.rejected_values += self._series.number(keys, found)
        return bool(keys)

    def in_use(self) -> set[int]:
        with self._lock:
            return {*self._series.numbers().values()}

    def put(self, snapshot: Snapshot, *, urgent: bool) -> None:
        ms = round(snapshot.wall * 1000)
        readings: dict[str, Number] = {}
        processes: list[list[Any]] | None = None
        with self._lock:
            if not self.pending.size:  # of what is committed, too: it may have to be written again
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
                    self.events.put({**row, "id": self._row_ids(1)})
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
        """Forget what is committed: the disk has it."""
        with self._lock:
            for backlog in self._backlogs:
                backlog.synced()
            self._synced_row = self._committed_row

    def again(self) -> None:
        """Have everything committed again that the disk may not have."""
        with self._lock:
            for backlog in self._backlogs:
                backlog.again()

    def sealable_row(self, host_id: int) -> int:
        """Return the last id of a host's batches that the disk is known to have, and a central database.

        Those after it may have to be committed once more, and what is sealed already would be there twice.
        """
        synced = self._synced_row if host_id == self.host_id else row_range(host_id)[1]
        return synced if self._copied_rows is None else min(synced, self._copied_rows.get(host_id, 0))

    def wait_for_copies(self) -> None:
        """Have nothing sealed that a central database has not got, see ``copied``."""
        self._copied_rows = {}

    def copied(self, host_id: int, row: int) -> None:
        """Note up to which id a central database has the batches of a host in the file."""
        if self._copied_rows is not None:
            self._copied_rows[host_id] = row

    @property
    def queue(self) -> tuple[int, int]:
        """Ticks that wait, and the bytes that all ticks take which the disk may not have, about."""
        with self._lock:  # the writer takes from it meanwhile
            return sum(batch.ticks for batch in self.pending.waiting()) + len(self._open.times), self.pending.size

    @property
    def empty(self) -> bool:
        return not (self._open.times or self._series.unsaved or any(self._backlogs))

    def insert(self, table: Table, row: Mapping[str, Any], **references: int | None) -> int:
        """Have a row written and return its id; ``references`` are columns that hold ids of other rows."""

        def insert(connection: Connection) -> None:
            ids = {name: other and self.final_row(other) for name, other in references.items()}
            insert_new(connection, table, [{**row, **ids, "id": self.final_row(number)}])

        with self._lock:  # rows of one table reach the file in the order of their ids
            number = self._row_ids(1)
            self.writes.put(insert)
        return number

    def write(self, write: Write) -> None:
        with self._lock:
            self.writes.put(write)

    def next_row(self) -> int:
        with self._lock:
            return self._row_ids(1)

    def final_row(self, number: int) -> int:
        """Return the id in the database of what ``next_row`` has numbered, perhaps before that was open."""
        return number + self._shift if number >= PROVISIONAL else number

    def _row_ids(self, count: int) -> int:
        self._next_row += count
        return self._next_row - count

    def _close_batch(self) -> None:
        if self._open.times:
            self.pending.put(self._open.closed(self._row_ids(1)))
            self._open = OpenBatch()

    def _scale(self, readings: Iterable[Reading], into: dict[str, Number]) -> None:
        """Put readings under the names of their series as whole numbers of their last decimal."""
        known = self._series.known
        for spec, value, labels in readings:
            if not spec.stored:
                continue
            found = known.get((spec.name, labels)) or self._series.learn(spec, labels)
            name = found.name
            number = _scaled(value, found.key.divisor) if name else None
            if number is None:
                self.rejected_values += 1
            elif spec.names and name in into:
                into[name] += number
            else:
                into[name] = number


def _scaled(value: float, divisor: int) -> int | None:
    """Return ``value * divisor`` as a whole number; None of what is no number, or none that 64 bits hold."""
    scaled = value * divisor
    return round(scaled) if -_INT64 <= scaled < _INT64 else None


def _kib(*sizes: int | None) -> list[int | None]:
    return [size and size // 1024 for size in sizes]


def _numbered(readings: str, numbers: Mapping[str, int]) -> str:
    """Put numbers in place of the names of series and leave out those that have none."""
    # what stands there is not parsed: a commit would take several times as long
    kept = (f'"{numbers[name]}":{values}' for name, values in _READING.findall(readings) if name in numbers)
    return f"{{{','.join(kept)}}}"
