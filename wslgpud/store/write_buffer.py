"""What waits to be written: snapshots as rows, bounded, and without blocking on a disk."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection, Table, delete, func, select, update

from wslgpud.metrics import MAX_SERIES_OF_NAMES, OTHER, MetricSpec
from wslgpud.model import Number, Reading, Snapshot
from wslgpud.store import engines, schema
from wslgpud.store.codec import Batch, OpenBatch, pack_text
from wslgpud.store.schema import MAX_VALUE, insert_new

#: limit of the queue while the disk is full or gone: three quarters of an hour of 250 series
BUFFER_BYTES = 8 * 1024 * 1024
#: memory of a queued row besides its text
_ROW_BYTES = 700
#: ids a second, for rows from before the database is open: theirs come from the clock, and those in it stay below
_IDS_A_SECOND = 4

#: all series are looked up anew this often, which says in the database that they are still read, and drops the others
FORGET_SECONDS = 3600.0
_series = schema.series.c
_PAGE = 4096
#: bytes of data with which a row fills a page
_PAGE_DATA = 4030
#: slots to keep when they are free; a machine that commits every second for a quarter of an hour takes 900 for a while
MAX_SLOTS = 300

Write = Callable[[Connection], object]


class Row(NamedTuple):
    """A queued statement; ``spare`` ones are dropped first."""

    write: Write
    bytes: int
    spare: bool
    ticks: int = 0


class Buffer(Protocol):
    """What the writer of a database gets its rows from."""

    #: id of the host of these rows in the database
    host_id: int
    waiting_place: str
    #: id of the last batch that may be sealed
    sealable_row: int

    def waiting(self, ticks: int) -> Sequence[Any]:
        """Return about ``ticks`` ticks, and other rows, without removing them."""

    def write(self, connection: Connection, waiting: Sequence[Any]) -> int:
        """Write what ``waiting`` returned within a transaction; return the bytes of its batches."""

    def committed(self, done: Sequence[Any]) -> None: ...

    def detached(self) -> None:
        """Forget what was known of the database: its connection is closed, and its last transaction may have failed."""

    def free(self, connection: Connection, sealed: int) -> None:
        """Free the places of batches up to id ``sealed``."""

    @property
    def empty(self) -> bool: ...


class SeriesKey(NamedTuple):
    """The key of a series; ``labels`` is the JSON object in the table."""

    metric: str
    kind: str
    labels: str
    divisor: int


def find_or_add(connection: Connection, host: int, key: SeriesKey, wall: float, *, limited: bool = False) -> int | None:
    """Return the id of a series, a new one if the database has none.

    ``limited``: None instead of a new one where its metric has ``MAX_SERIES_OF_NAMES``.
    """
    first, last = schema.series_range(host)
    of_metric, of_host = (_series.host == host, _series.metric == key.metric), _series.id.between(first, last)
    # a row that another program has put under our name is not ours
    same = *of_metric, of_host, _series.labels == key.labels, _series.divisor == key.divisor
    known: int | None = connection.scalar(select(_series.id).where(*same))
    now = {"kind": key.kind, "seen_ms": round(wall * 1000)}
    if known is not None:  # the kind of a metric may have changed
        connection.execute(update(schema.series).where(_series.id == known).values(now))
        return known
    if limited and (connection.scalar(select(func.count()).where(*of_metric)) or 0) >= MAX_SERIES_OF_NAMES:
        return None
    number = (connection.scalar(select(func.max(_series.id)).where(of_host)) or first) + 1
    schema.insert_new(connection, schema.series, [{"id": number, "host": host, **key._asdict(), **now}])
    return number


@dataclass(slots=True)
class Series:
    """A series in use. Queued samples refer to it by ``name``, which is empty for one that is not stored."""

    name: str
    key: SeriesKey
    spec: MetricSpec
    labels: tuple[str, ...]
    #: id in the open database; None until it is looked up
    number: int | None = None

    @property
    def limited(self) -> bool:
        return any(names.chosen(self.spec, self.labels) is not None for names in self.spec.names)


class SeriesInUse:
    """Series from their first reading until an hour later at most."""

    def __init__(self) -> None:
        #: metric and label values -> series
        self.known: dict[tuple[str, tuple[str, ...]], Series] = {}
        #: those without an id of their own, for as long as they are read: each new attempt would lose samples
        self._replaced: set[tuple[str, tuple[str, ...]]] = set()
        self._forgotten_wall = 0.0
        self._learned = 0

    def learn(self, spec: MetricSpec, labels: tuple[str, ...]) -> Series:
        """Return the new entry of a series, or that which replaces it."""
        own = schema.dumps(dict(zip(spec.labels, labels, strict=False)))
        self._learned += 1
        key = SeriesKey(spec.name, spec.kind, own, 10**spec.decimals)
        series = Series(str(self._learned), key, spec, labels)
        self.known[spec.name, labels] = series
        if (spec.name, labels) in self._replaced:
            self.replace(series)
        return self.known[spec.name, labels]

    def forget_hourly(self, wall: float) -> None:
        """Drop all series once an hour; no queued sample may refer to one.

        At once if the clock jumps as far: after a long sleep the upkeep would take those in use for unseen.
        """
        if abs(wall - self._forgotten_wall) >= FORGET_SECONDS:
            self._replaced = {key for key, one in self.known.items() if one.labels != key[1] or not one.name}
            self._forgotten_wall, self.known = wall, {}

    def every(self) -> Collection[Series]:
        return {s.name: s for s in self.known.values() if s.name}.values()

    def replace(self, series: Series) -> None:
        """Map a series without an id of its own to that of all others, or to none."""
        spec, chosen = series.spec, {names.label for names in series.spec.names}
        other = tuple(
            OTHER if label in chosen else value for label, value in zip(spec.labels, series.labels, strict=False)
        )
        if other == series.labels or not all(names.summed for names in spec.names):
            series.name = ""
            return
        instead = self.known.get((spec.name, other)) or self.learn(spec, other)
        self.known[spec.name, series.labels] = instead


class Slots:
    """Places for the newest batches of a file in their table: each overwrites a sealed one.

    Overwriting a row with one of its size changes only its page. Inserting one and deleting it later changes three to
    six pages with each commit, and each page is written twice, into the log and from there into the file.
    """

    def __init__(self) -> None:
        #: id of an unsealed batch -> its slot; a commit that failed may have happened nevertheless
        self._taken: dict[int, int] = {}
        self._free: list[tuple[int, int]] = []
        self._newest = 0

    def load(self, connection: Connection, host: int) -> None:
        """Look up the slots."""
        of = schema.batch.c
        query = select(of.id, func.length(of.data), of.slot, schema.unsealed)
        rows = connection.execute(query.where(schema.of_host(schema.batch, host))).all()
        self._taken = {number: slot for number, _, slot, unsealed in rows if unsealed}
        self._free = [(size, slot) for _, size, slot, unsealed in rows if not unsealed]
        self._newest = max([schema.row_range(host)[0], *(slot for *_, slot, _ in rows)])

    def write(self, connection: Connection, row: Mapping[str, Any]) -> int:
        """Write a batch; return its bytes."""
        data = pack_text(row["data"])
        size = _PAGE_DATA if len(data) <= _PAGE_DATA else -len(data) // _PAGE * -_PAGE
        slot = self._taken.get(row["id"])
        if slot is None:
            free = next((place for place in self._free if place[0] == size), (size, self._newest + 1))
            if free in self._free:
                self._free.remove(free)
            slot = self._taken[row["id"]] = free[1]
            self._newest = max(self._newest, slot)
        schema.put(connection, schema.batch, [{**row, "slot": slot, "data": data.ljust(size, b"\0")}])
        return size

    def free(self, connection: Connection, host: int, sealed: int) -> None:
        """Free the slots of batches up to id ``sealed``, and delete surplus ones."""
        of, (first, _) = schema.batch.c, schema.row_range(host)
        gone = schema.of_host(schema.batch, host), of.id <= sealed, of.slot > first + MAX_SLOTS
        connection.execute(delete(schema.batch).where(*gone))
        self.load(connection, host)


class WriteBuffer:
    """Keeps the series in use, and rows until the writer has committed them, which is: until they are on the disk."""

    waiting_place = "in memory"

    def __init__(self, wall: Callable[[], float], buffer_bytes: int = BUFFER_BYTES) -> None:
        self._lock = threading.Lock()
        self._wall = wall
        #: id of the host of these rows
        self.host_id = 0
        self.sealable_row = schema.row_range(0)[1]
        self._series, self._slots = SeriesInUse(), Slots()
        self._open = OpenBatch()
        self._queue: list[Batch | Row] = []
        self._max_bytes, self._bytes = buffer_bytes, 0
        self._next_row = 0
        self.dropped_ticks = self.dropped_records = self.rejected_values = 0

    def attach(self, connection: Connection, host_id: int) -> None:
        """Adopt an opened database: called again with each new connection, whatever file it leads to now."""
        last_row = engines.last_row(connection, host_id)
        sealed = connection.scalar(select(schema.host.c.sealed).where(schema.host.c.id == host_id)) or 0
        self._slots.load(connection, host_id)
        with self._lock:
            self.host_id = host_id
            self._next_row = max(self._next_row, last_row + 1)
            for item in self._queue:
                if isinstance(item, Batch) and item.id <= sealed:  # another file: it would count as sealed
                    item.id = self._row_id()

    def detached(self) -> None:
        with self._lock:
            for series in self._series.every():
                series.number = None

    def put(self, snapshot: Snapshot, *, urgent: bool) -> None:
        ms = round(snapshot.wall * 1000)
        readings: dict[str, Number] = {}
        processes: list[list[Any]] | None = None
        with self._lock:
            if not self._open.times and not any(item.ticks for item in self._queue):
                self._series.forget_hourly(snapshot.wall)
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
                    self._insert(schema.event, row, spare=True)
            if readings or processes:
                if urgent or not self._open.takes(ms):
                    self._close_batch()
                self._open.add(ms, readings, processes)
                if urgent:
                    self._close_batch(urgent=True)

    def insert(self, table: Table, row: Mapping[str, Any]) -> int:
        """Queue a row and return its id."""
        with self._lock:  # rows of a table reach the file in the order of their ids
            return self._insert(table, row)

    def later(self, write: Write) -> None:
        """Queue a change of rows."""
        with self._lock:
            self._queue_up(Row(write, _ROW_BYTES, spare=False))

    def next_row(self) -> int:
        with self._lock:
            return self._row_id()

    def waiting(self, ticks: int) -> Sequence[Batch | Row]:
        with self._lock:
            self._close_batch()
            before = accumulate((item.ticks for item in self._queue), initial=0)
            return [item for item, ticks_before in zip(self._queue, before, strict=False) if ticks_before < ticks]

    def write(self, connection: Connection, waiting: Sequence[Batch | Row]) -> int:
        with self._lock:
            series = [series for series in self._series.every() if series.number is None]
        for one in series:
            one.number = find_or_add(connection, self.host_id, one.key, self._wall(), limited=one.limited)
            if one.number is None:
                with self._lock:
                    self.rejected_values += 1
                    self._series.replace(one)
        with self._lock:
            numbers = {one.name: one.number for one in self._series.every() if one.number is not None}
        written = 0
        for item in waiting:
            if isinstance(item, Batch):
                written += self._slots.write(connection, item.row(numbers))
            else:
                item.write(connection)
        return written

    def committed(self, done: Sequence[Batch | Row]) -> None:
        gone = {*map(id, done)}
        with self._lock:
            self._queue = [item for item in self._queue if id(item) not in gone]
            self._bytes = sum(item.bytes for item in self._queue)

    def free(self, connection: Connection, sealed: int) -> None:
        self._slots.free(connection, self.host_id, sealed)

    @property
    def queue(self) -> tuple[int, int]:
        """Queued ticks, and their approximate bytes."""
        with self._lock:  # shared with the writer
            return sum(item.ticks for item in self._queue) + len(self._open.times), self._bytes

    @property
    def empty(self) -> bool:
        return not (self._open.times or self._queue)

    def _insert(self, table: Table, row: Mapping[str, Any], *, spare: bool = False) -> int:
        row = {**row, "id": self._row_id()}
        text_bytes = sum(len(value) for value in row.values() if isinstance(value, str))
        self._queue_up(Row(lambda connection: insert_new(connection, table, [row]), _ROW_BYTES + text_bytes, spare))
        return int(row["id"])

    def _queue_up(self, item: Batch | Row) -> None:
        """Queue an item; beyond the limit, drop the oldest, spare ones first."""
        self._queue.append(item)
        self._bytes += item.bytes
        while self._bytes > self._max_bytes and len(self._queue) > 1:
            gone = self._queue.pop(next((i for i, old in enumerate(self._queue) if old.spare), 0))
            self._bytes -= gone.bytes
            self.dropped_ticks += gone.ticks
            self.dropped_records += not gone.ticks

    def _row_id(self) -> int:
        self._next_row = (self._next_row or round(self._wall() * _IDS_A_SECOND)) + 1
        return self._next_row - 1

    def _close_batch(self, *, urgent: bool = False) -> None:
        if self._open.times:
            self._queue_up(self._open.closed(self._row_id(), urgent=urgent))
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
