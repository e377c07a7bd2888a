"""What waits to be written: snapshots as rows, bounded, and without blocking on a disk."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection, Table, func, select, text, update

from wslgpud.metrics import MAX_SERIES_OF_NAMES, MetricSpec
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
#: the place of a batch that is there already (a commit that failed may have happened nevertheless), else that of a
#: sealed one of its size
_PLACE = text("""
    SELECT slot FROM batch WHERE slot BETWEEN :low AND :high
        AND (id = :id OR (length(data) = :size AND id <= (SELECT sealed FROM host WHERE host.id = :host)))
    ORDER BY id = :id DESC LIMIT 1""")

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

    @property
    def empty(self) -> bool: ...


@dataclass(slots=True)
class Series:
    """A series in use; ``number`` is its id without the host's bits."""

    number: int
    metric: str
    kind: str
    labels: str
    divisor: int
    #: has labels that users choose
    limited: bool
    #: None until the open database was asked whether it takes it
    stored: bool | None = None

    @classmethod
    def of(cls, spec: MetricSpec, labels: tuple[str, ...]) -> Series:
        text_, divisor = schema.dumps(dict(zip(spec.labels, labels, strict=False))), 10**spec.decimals
        limited = any(names.chosen(spec, labels) is not None for names in spec.names)
        number = schema.series_number(spec.name, text_, divisor)
        return cls(number, spec.name, spec.kind, text_, divisor, limited)

    def row(self, host: int, wall: float) -> dict[str, Any]:
        key = {"host": host, "metric": self.metric, "labels": self.labels, "divisor": self.divisor}
        number = schema.series_range(host)[0] | self.number
        return {"id": number, **key, "kind": self.kind, "seen_ms": round(wall * 1000)}


def register(connection: Connection, row: Mapping[str, Any], *, limited: bool = False) -> bool:
    """Note that a series, a row of its table, is read; False: the database has another of its id, or too many.

    Too many is ``MAX_SERIES_OF_NAMES`` of a metric, and only for ``limited`` ones.
    """
    of_row, key = _series.id == row["id"], ("host", "metric", "labels", "divisor")
    here = connection.execute(select(*(_series[name] for name in key)).where(of_row)).first()
    if here is not None:  # the kind of a metric may have changed
        now = {"kind": row["kind"], "seen_ms": row["seen_ms"]}
        connection.execute(update(schema.series).where(of_row).values(now))
        return all(row[name] == known for name, known in zip(key, here, strict=True))
    if limited:
        of_metric = _series.host == row["host"], _series.metric == row["metric"]
        if (connection.scalar(select(func.count()).where(*of_metric)) or 0) >= MAX_SERIES_OF_NAMES:
            return False
    insert_new(connection, schema.series, [dict(row)])
    return True


def write_batch(connection: Connection, host: int, batch: Batch) -> int:
    """Write a batch over a sealed one of its size; return its bytes.

    That changes one page. To insert a row and delete it later changes three to six with each commit, and each page is
    written twice, into the log and from there into the file.
    """
    data = pack_text(batch.data)
    size = _PAGE_DATA if len(data) <= _PAGE_DATA else -len(data) // _PAGE * -_PAGE
    (low, high), of = schema.row_range(host), schema.batch.c
    place = connection.scalar(_PLACE, {"low": low, "high": high, "id": batch.id, "size": size, "host": host})
    if place is None:
        newest = connection.scalar(select(func.max(of.slot)).where(of.slot.between(low, high)))
        place = (low if newest is None else newest) + 1
    row = {"slot": place, "id": batch.id, "ms": batch.ms, "ticks": batch.ticks, "data": data.ljust(size, b"\0")}
    schema.put(connection, schema.batch, [row])
    return size


class WriteBuffer:
    """Keeps the series in use, and rows until the writer has committed them, which is: until they are on the disk."""

    waiting_place = "in memory"

    def __init__(self, wall: Callable[[], float], buffer_bytes: int = BUFFER_BYTES) -> None:
        self._lock = threading.Lock()
        self._wall = wall
        #: id of the host of these rows
        self.host_id = 0
        self.sealable_row = schema.row_range(0)[1]
        #: metric and label values -> a series that was read since the hour began
        self._series: dict[tuple[str, tuple[str, ...]], Series] = {}
        self._forgotten_wall = 0.0
        self._open = OpenBatch()
        self._queue: list[Batch | Row] = []
        self._max_bytes, self._bytes = buffer_bytes, 0
        self._next_row = 0
        self.dropped_ticks = self.dropped_records = self.rejected_values = 0

    def attach(self, connection: Connection, host_id: int) -> None:
        """Adopt an opened database: called again with each new connection, whatever file it leads to now."""
        last_row = engines.last_row(connection, host_id)
        sealed = connection.scalar(select(schema.host.c.sealed).where(schema.host.c.id == host_id)) or 0
        with self._lock:
            self.host_id = host_id
            self._next_row = max(self._next_row, last_row + 1)
            for item in self._queue:
                if isinstance(item, Batch) and item.id <= sealed:  # another file: it would count as sealed
                    item.id = self._row_id()

    def detached(self) -> None:
        with self._lock:
            for series in self._series.values():
                series.stored = None

    def put(self, snapshot: Snapshot, *, urgent: bool) -> None:
        ms = round(snapshot.wall * 1000)
        readings: dict[int, Number] = {}
        processes: list[list[Any]] | None = None
        with self._lock:
            if not self._open.times and not any(item.ticks for item in self._queue):
                self._forget_hourly(snapshot.wall)
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
            new = [series for series in self._series.values() if series.stored is None]
        for series in new:
            series.stored = register(connection, series.row(self.host_id, self._wall()), limited=series.limited)
        written = 0
        for item in waiting:
            if isinstance(item, Batch):
                written += write_batch(connection, self.host_id, item)
            else:
                item.write(connection)
        return written

    def committed(self, done: Sequence[Batch | Row]) -> None:
        gone = {*map(id, done)}
        with self._lock:
            self._queue = [item for item in self._queue if id(item) not in gone]
            self._bytes = sum(item.bytes for item in self._queue)

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

    def _forget_hourly(self, wall: float) -> None:
        """Drop all series once an hour.

        At once if the clock jumps as far: after a long sleep the upkeep would take those in use for unseen.
        """
        if abs(wall - self._forgotten_wall) >= FORGET_SECONDS:
            self._forgotten_wall, self._series = wall, {}

    def _scale(self, readings: Iterable[Reading], into: dict[int, Number]) -> None:
        """Convert readings to integers by numbers of their series."""
        for spec, value, labels in readings:
            if not spec.stored:
                continue
            series = self._series.get((spec.name, labels))
            if series is None:
                series = self._series[spec.name, labels] = Series.of(spec, labels)
            number = None if series.stored is False else _scaled(value, series.divisor)
            if number is None:
                self.rejected_values += 1
            else:
                into[series.number] = number


def _scaled(value: float, divisor: int) -> int | None:
    """Return ``value * divisor`` as an integer; None if not finite or too large."""
    scaled = value * divisor
    return round(scaled) if -MAX_VALUE < scaled < MAX_VALUE else None


def _kib(*sizes: int | None) -> list[int | None]:
    return [size and size // 1024 for size in sizes]
