"""From snapshots to rows waiting to be written: bounded, and without a wait for any disk."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from wslgpud.event import Event
from wslgpud.model import GpuSample, Number, ProcessSample, Reading, Snapshot
from wslgpud.store import schema
from wslgpud.store.numbers import Found, SeriesKey
from wslgpud.store.pending import Backlog, Batch, OpenBatch, Pending
from wslgpud.store.rollup import dumps
from wslgpud.store.series_in_use import SeriesInUse

#: what may wait in memory while the disk is full or gone: three quarters of an hour of 250 series
BUFFER_BYTES = 8 * 1024 * 1024
#: events that may wait
BUFFER_EVENTS = 2000
#: ids of rows from here on stand for those they get when the database is opened for the first time
PROVISIONAL = 1 << 50
_INT64 = 1 << 63


class Waiting(NamedTuple):
    """What one transaction will write."""

    series: list[tuple[int, SeriesKey]]
    batches: list[Batch]
    #: those of ``schema.batch`` that the batches are
    rows: list[dict[str, Any]]
    events: list[dict[str, Any]]

    def __bool__(self) -> bool:
        return bool(self.series or self.batches or self.events)


class Intake:
    """Knows the series in use and keeps rows until the writer has committed them.

    The number of a series is looked up by the writer when the series is first read, so that memory holds
    those in use and not all that the database has ever seen.
    """

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._lock = threading.Lock()
        #: of the host whose rows these are
        self.host_id = 0
        self._series = SeriesInUse()
        self._open = OpenBatch()
        self.pending = Pending(buffer_bytes)
        self.events: Backlog[dict[str, Any]] = Backlog(BUFFER_EVENTS)
        self._next_row = PROVISIONAL
        self._shift = 0
        self._committed_row = 0
        #: last id of our ticks that the disk is known to have: only such may be sealed. Those after it may have to
        #: be committed once more, and what is sealed already would be there twice
        self.synced_row = 0
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
            free = max(last_row, schema.row_range(host_id)[0]) + 1
            if self._next_row >= PROVISIONAL:
                self._shift = free - PROVISIONAL
                self._next_row += self._shift
            self._next_row = max(self._next_row, free)
            if not same_file:
                self._committed_row = self.synced_row = last_row
                self.pending.replace(lambda batch: batch._replace(id=self._row_ids(len(batch.rows))))
                self.events.replace(lambda event: {**event, "id": self._row_ids(1)})

    def unnumbered(self) -> list[SeriesKey]:
        """Return the series that wait for ``number``."""
        with self._lock:
            return [series.key for series in self._series.unnumbered()]

    def number(self, keys: Iterable[SeriesKey], found: Found) -> None:
        """Give series of ``unnumbered`` their numbers: those found, else free ones as long as there are."""
        with self._lock:
            self.rejected_values += self._series.number(set(keys), found)

    def in_use(self) -> set[int]:
        """Return the numbers of the series whose readings came lately."""
        with self._lock:
            return {*self._series.numbers().values()}

    def put(self, snapshot: Snapshot, *, urgent: bool) -> None:
        """Keep the fresh, stored readings, the processes and the events of a tick."""
        ms = round(snapshot.wall * 1000)
        readings: dict[str, Number] = {}
        processes: list[list[Any]] | None = None
        with self._lock:
            if not self.pending.bytes:  # of what is committed, too: it may have to be written again
                self._series.turn(snapshot.mono)
            for report in snapshot.reports:
                if not report.fresh:
                    continue
                sample = report.sample
                self._scale(sample.readings, readings)
                if sample.processes:
                    processes = [*_process_rows(sample.processes, snapshot.gpus)]
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
        """Return about ``ticks`` ticks of what waits, without taking it away; only events while numbers are missing."""
        with self._lock:
            if self._series.unnumbered():
                return Waiting([], [], [], self.events.waiting())
            self._close_batch()
            batches, numbers = self.pending.first(ticks), self._series.numbers()
            series, events = list(self._series.unsaved), self.events.waiting()
        rows = [
            {**row, "id": batch.id + i, "batch": batch.id, "readings": _numbered(row["readings"], numbers)}
            for batch in batches
            for i, row in enumerate(batch.rows)
        ]
        return Waiting(series, batches, rows, events)

    def committed(self, done: Waiting) -> None:
        """Note what was committed."""
        with self._lock:
            del self._series.unsaved[: len(done.series)]
            self.pending.committed(done.batches)
            if done.batches:
                newest = done.batches[-1]
                self._committed_row = newest.id + len(newest.rows) - 1
            self.events.committed(done.events)

    def synced(self) -> None:
        """Forget what is committed: the disk has it."""
        with self._lock:
            self.pending.synced()
            self.synced_row = self._committed_row
            self.events.synced()

    def again(self) -> None:
        """Have everything committed again that the disk may not have."""
        with self._lock:
            self.pending.again()
            self.events.again()

    @property
    def queue(self) -> tuple[int, int]:
        """Ticks that wait, and the bytes they take, about."""
        with self._lock:  # the writer takes from it meanwhile
            return self.pending.ticks + len(self._open.times), self.pending.bytes

    @property
    def empty(self) -> bool:
        """Tell whether everything is written."""
        return not (self._open.times or self.pending or self.events or self._series.unsaved)

    def next_row(self) -> int:
        """Return a row id nobody has."""
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
            rows = self._open.rows()
            number = self._row_ids(len(rows))
            self.pending.put(Batch(number, rows, len(self._open.times), self._open.urgent))
            self._open = OpenBatch()

    def _scale(self, readings: Iterable[Reading], into: dict[str, Number]) -> None:
        """Put readings under the names of their series as whole numbers of their last decimal."""
        known = self._series.known
        for spec, value, labels in readings:
            if not spec.stored:
                continue
            of_metric = known.get(spec.name)
            found = of_metric.get(labels) if of_metric is not None else None
            if found is None:
                found = self._series.learn(spec, labels)
            name = found.name
            number = _scaled(value, found.divisor) if name else None
            if number is None:
                self.rejected_values += 1
            elif spec.names and name in into:
                into[name] += number
            else:
                into[name] = number

    def _keep_event(self, event: Event) -> None:
        fields = json.dumps(dict(event.fields), ensure_ascii=False)
        row = {"id": self._row_ids(1), "ms": round(event.wall * 1000), "kind": event.kind, "text": event.text}
        self.events.put({**row, "fields": fields})


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


def _process_rows(processes: Iterable[ProcessSample], gpus: Iterable[GpuSample]) -> Iterator[list[Any]]:
    for p in processes:
        yield [p.pid, p.start_ticks, p.name, p.rss_bytes // 1024, p.swap_bytes // 1024]
    for gpu in gpus:
        for on in gpu.processes:
            yield [gpu.uuid, on.pid, on.name, None if on.used_bytes is None else on.used_bytes // 1024]


def _numbered(readings: str, numbers: Mapping[str, int]) -> str:
    return dumps({str(numbers[name]): values for name, values in json.loads(readings).items() if name in numbers})
