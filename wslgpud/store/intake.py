"""From snapshots to rows waiting to be written: bounded, and without a wait for any disk."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from wslgpud.event import Event
from wslgpud.model import GpuSample, Number, ProcessSample, Reading, Snapshot
from wslgpud.store import schema
from wslgpud.store.backlog import Backlog
from wslgpud.store.numbers import Found, SeriesKey
from wslgpud.store.pending import Batch, OpenBatch, Pending, dumps
from wslgpud.store.series_in_use import SeriesInUse

#: what may wait in memory while the disk is full or gone: three quarters of an hour of 250 series
BUFFER_BYTES = 8 * 1024 * 1024
#: events that may wait
BUFFER_EVENTS = 2000
#: ids of rows from here on stand for those they get when the database is opened for the first time
PROVISIONAL = 1 << 50
_INT64 = 1 << 63


class EventRow(NamedTuple):
    """One event as it waits and as it is written."""

    id: int
    ms: int
    kind: str
    text: str
    fields: str


class Waiting(NamedTuple):
    """What one transaction will write."""

    series: list[tuple[int, SeriesKey]]
    batches: list[Batch]
    events: list[EventRow]

    def __bool__(self) -> bool:
        """Tell whether there is anything to write."""
        return bool(self.series or self.batches or self.events)


class Intake:
    """Knows the series in use and keeps rows until the writer has committed them.

    The number of a series is looked up by the writer when the series is first read, so that memory holds
    those in use and not all that the database has ever seen.
    """

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        """Begin empty; ``attach`` tells what the database already has."""
        self._lock = threading.Lock()
        self._host_id = 0
        self._series = SeriesInUse()
        self._open = OpenBatch()
        self._pending = Pending(buffer_bytes)
        self._events: Backlog[EventRow] = Backlog()
        self._next_row = PROVISIONAL
        self._shift = 0
        self._committed_row = 0
        self._synced_row = 0
        self.dropped_events = 0
        self.rejected_values = 0

    def attach(self, host_id: int, found: Found, last_row: int, *, same_file: bool = False) -> None:
        """Adopt what an opened database holds: our host's id, the series in use, the last row id in use.

        Called again with each new connection. For another file than before what waits is renumbered; for
        the same it must not be, because a commit that failed may have happened all the same.
        """
        with self._lock:
            self._close_batch()
            self._host_id = host_id
            moved = self._series.adopt(host_id, found)
            free = max(last_row, schema.row_range(host_id)[0]) + 1
            if self._next_row >= PROVISIONAL:
                self._shift = free - PROVISIONAL
                self._next_row += self._shift
            self._next_row = max(self._next_row, free)
            if not same_file:
                self._committed_row = self._synced_row = last_row
                self._pending.renumber(lambda batch: self._renumbered(batch, moved))
                self._events = Backlog(e._replace(id=self._row_ids(1)) for e in self._events)

    def keys(self) -> list[SeriesKey]:
        """Return the series in use that have a number."""
        with self._lock:
            return self._series.keys()

    def unnumbered(self) -> list[SeriesKey]:
        """Return the series that wait for ``number``."""
        with self._lock:
            return self._series.unnumbered()

    def number(self, keys: Iterable[SeriesKey], found: Found) -> None:
        """Give series of ``unnumbered`` their numbers: those found, else free ones as long as there are."""
        with self._lock:
            moved = self._series.number(set(keys), found)
            self.rejected_values += list(moved.values()).count(None)
            self._open.rename({str(old): None if now is None else str(now) for old, now in moved.items()})
            self._pending.replace(lambda batch: _numbered(batch, moved))

    def uses(self, number: int) -> bool:
        """Tell whether readings of a series came lately."""
        with self._lock:
            return self._series.uses(number)

    def put(self, snapshot: Snapshot, *, urgent: bool) -> None:
        """Keep the fresh, stored readings, the processes and the events of a tick."""
        ms = round(snapshot.wall * 1000)
        readings: dict[str, Number] = {}
        processes: list[list[Any]] | None = None
        with self._lock:
            if not len(self._pending):
                self._series.turn(snapshot.mono)
            for report in snapshot.reports:
                if not report.fresh:
                    continue
                sample = report.sample
                self._scale(sample.readings, readings)
                if sample.processes:
                    processes = [*_process_rows(sample.processes), *_gpu_process_rows(snapshot.gpus)]
                for event in sample.events:
                    self._keep_event(event)
            if readings or processes:
                if urgent or not self._open.takes(ms):
                    self._close_batch()
                self._open.add(ms, readings, processes)
                self._open.urgent = urgent
                if urgent:
                    self._close_batch()

    def waiting(self, ticks: int) -> Waiting:
        """Return what waits, about ``ticks`` ticks of it at most, without taking it away.

        Only events while series wait for their numbers.
        """
        with self._lock:
            if self._series.unnumbered():
                return Waiting([], [], list(self._events))
            self._close_batch()
            return Waiting(list(self._series.unsaved), self._pending.first(ticks), list(self._events))

    def committed(self, done: Waiting) -> None:
        """Note what was committed."""
        with self._lock:
            del self._series.unsaved[: len(done.series)]
            self._pending.committed(done.batches)
            if done.batches:
                newest = done.batches[-1]
                self._committed_row = newest.id + len(newest.rows) - 1
            self._events.committed(done.events)

    def synced(self) -> None:
        """Forget what is committed: the disk has it."""
        with self._lock:
            self._pending.synced()
            self._synced_row = self._committed_row
            self._events.synced()

    def again(self) -> None:
        """Have everything committed again that the disk may not have."""
        with self._lock:
            self._pending.again()
            self._events.again()

    @property
    def host_id(self) -> int:
        """Id of the host whose rows these are."""
        return self._host_id

    @property
    def synced_row(self) -> int:
        """Last id of our ticks that the disk is known to have: only such may be sealed.

        Those after it may have to be committed once more, and what is sealed already would be there twice.
        """
        return self._synced_row

    @property
    def queue(self) -> tuple[int, int]:
        """Ticks that wait, and the bytes they take, about."""
        with self._lock:  # the writer takes from it meanwhile
            return self._pending.ticks + len(self._open.times), self._pending.bytes

    @property
    def dropped_ticks(self) -> int:
        """Ticks given up so far."""
        return self._pending.dropped_ticks

    @property
    def empty(self) -> bool:
        """Tell whether everything is written."""
        return not (self._open.times or len(self._pending) or self._events or self._series.unsaved)

    def next_row(self) -> int:
        """Return a row id nobody has."""
        with self._lock:
            return self._row_ids(1)

    def final_row(self, number: int) -> int:
        """Return the id in the database of what ``next_row`` has numbered, perhaps before that was open."""
        return number + self._shift if number >= PROVISIONAL else number

    def _row_ids(self, count: int) -> int:
        """Return the first of ``count`` new row ids."""
        self._next_row += count
        return self._next_row - count

    def _close_batch(self) -> None:
        if self._open.times:
            rows = self._open.rows()
            number = self._row_ids(len(rows))
            self._pending.put(Batch(number, rows, len(self._open.times), self._open.urgent))
            self._open = OpenBatch()

    def _renumbered(self, batch: Batch, moved: Mapping[int, int | None]) -> Batch:
        rows = batch.rows
        if moved:
            rows = tuple(r._replace(readings=_renamed(r.readings, moved)) for r in rows)
        return batch._replace(id=self._row_ids(len(rows)), rows=rows)

    def _scale(self, readings: Iterable[Reading], into: dict[str, Number]) -> None:
        """Put readings under their series' ids as whole numbers of their last decimal."""
        known = self._series.known
        for spec, value, labels in readings:
            if not spec.stored:
                continue
            of_metric = known.get(spec.name)
            found = of_metric.get(labels) if of_metric is not None else None
            if found is None:
                found = self._series.learn(spec, labels)
            number = _scaled(value, found[1]) if found[0] else None
            if number is None:
                self.rejected_values += 1
            elif spec.names and found[0] in into:
                into[found[0]] += number
            else:
                into[found[0]] = number

    def _keep_event(self, event: Event) -> None:
        if len(self._events) >= BUFFER_EVENTS:
            self.dropped_events += self._events.give_up()[1]
        fields = json.dumps(dict(event.fields), ensure_ascii=False)
        self._events.put(EventRow(self._row_ids(1), round(event.wall * 1000), event.kind, event.text, fields))


def _scaled(value: float, divisor: int) -> int | float | None:
    """Return ``value * divisor`` as a whole number, or None where 64 bits or a file cannot hold it."""
    if type(value) is int:
        number = value * divisor if divisor else float(value)
    elif value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - the test for NaN
        return None
    elif divisor:
        number = round(value * divisor)
    else:
        return float(value)
    return number if -_INT64 <= number < _INT64 else None


def _process_rows(processes: Iterable[ProcessSample]) -> list[list[Any]]:
    return [[p.pid, p.start_ticks, p.name, p.rss_bytes // 1024, p.swap_bytes // 1024] for p in processes]


def _gpu_process_rows(gpus: Iterable[GpuSample]) -> Iterator[list[Any]]:
    for gpu in gpus:
        for p in gpu.processes:
            yield [gpu.uuid, p.pid, p.name, None if p.used_bytes is None else p.used_bytes // 1024]


def _numbered(batch: Batch, moved: Mapping[int, int | None]) -> Batch:
    """Return a batch with the series' own numbers for their provisional ones, which are negative."""
    if not any('"-' in row.readings for row in batch.rows):
        return batch
    rows = (r._replace(readings=_renamed(r.readings, moved)) for r in batch.rows)
    return batch._replace(rows=tuple(rows))


def _renamed(readings: str, moved: Mapping[int, int | None]) -> str:
    """Return the readings of a row under other series ids."""
    pairs = ((moved.get(int(key), int(key)), values) for key, values in json.loads(readings).items())
    return dumps({str(key): values for key, values in pairs if key is not None})
