"""From snapshots to rows waiting to be written: bounded, and without a wait for any disk."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from wslgpud.metrics import MetricSpec
from wslgpud.model import Event, ProcessSample, Snapshot
from wslgpud.store import schema

#: what may wait in memory while the disk is full or gone: three quarters of an hour of 250 series
BUFFER_BYTES = 8 * 1024 * 1024
#: events that may wait
BUFFER_EVENTS = 2000
#: series one host may have; the label values of the sources are bounded far below
MAX_SERIES = 1 << schema.SERIES_BITS
#: what a tick costs in memory beside its text
_TICK_OVERHEAD = 300
_INT64 = 1 << 63

_dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class SeriesKey(NamedTuple):
    """What makes a series; ``labels`` is the JSON object the table keeps."""

    metric: str
    kind: str
    labels: str
    divisor: int


class TickRow(NamedTuple):
    """One tick as it waits and as it is written."""

    id: int
    ms: int
    readings: str
    processes: str | None
    urgent: bool

    @property
    def size(self) -> int:
        """Bytes it takes in memory, about."""
        return len(self.readings) + len(self.processes or "") + _TICK_OVERHEAD


class EventRow(NamedTuple):
    """One event as it waits and as it is written."""

    id: int
    ms: int
    kind: str
    text: str
    fields: str


@dataclass(slots=True)
class Counters:
    """What was lost on the way in."""

    dropped_ticks: int = 0
    dropped_events: int = 0
    rejected_values: int = 0


class Batch(NamedTuple):
    """What one transaction will write."""

    series: list[tuple[int, SeriesKey]]
    ticks: list[TickRow]
    events: list[EventRow]

    def __bool__(self) -> bool:
        """Tell whether there is anything to write."""
        return bool(self.series or self.ticks or self.events)


class Intake:
    """Knows the series by heart and keeps rows until the writer has committed them."""

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        """Begin empty; ``attach`` tells what the database already has."""
        self._lock = threading.Lock()
        self._buffer_bytes = buffer_bytes
        self._host_id = 0
        self._ids: dict[SeriesKey, int] = {}
        self._known: dict[str, dict[tuple[str, ...], tuple[str, int]]] = {}
        self._unsaved: list[tuple[int, SeriesKey]] = []
        self._ticks: deque[TickRow] = deque()
        self._events: deque[EventRow] = deque()
        self._bytes = 0
        self._next_row = 1
        self.counters = Counters()

    def attach(self, host_id: int, series: Mapping[int, SeriesKey], last_row: int) -> None:
        """Adopt what an opened database holds: our host's id, its series, the last row id in use.

        Called again when the file was replaced under us: rows that wait are renumbered for the new file.
        """
        with self._lock:
            old = {number: key for key, number in self._ids.items()}
            self._host_id = host_id
            self._ids = {key: number for number, key in series.items()}
            self._known.clear()
            self._unsaved.clear()
            renamed = {number: self._series_id(key) for number, key in old.items()}
            self._next_row = max(last_row + 1, (host_id << schema.ROW_BITS) + 1)
            moved = any(a != b for a, b in renamed.items())
            self._ticks = deque(
                t._replace(
                    id=self._row_id(), readings=_renumber(t.readings, renamed) if moved else t.readings
                )
                for t in self._ticks
            )
            self._events = deque(e._replace(id=self._row_id()) for e in self._events)

    def put(self, snapshot: Snapshot, *, urgent: bool) -> None:
        """Keep the fresh, stored readings, the processes and the events of a tick."""
        ms = round(snapshot.wall * 1000)
        readings: dict[str, int | float] = {}
        processes: str | None = None
        events: tuple[Event, ...] = ()
        with self._lock:
            for report in snapshot.reports:
                if not report.fresh:
                    continue
                sample = report.sample
                for spec, value, labels in sample.readings:
                    if not spec.stored:
                        continue
                    found = self._known.get(spec.name, {}).get(labels) or self._learn(spec, labels)
                    if found is None:
                        continue
                    key, divisor = found
                    number = _scaled(value, divisor)
                    if number is None:
                        self.counters.rejected_values += 1
                    else:
                        readings[key] = number
                if sample.processes:
                    processes = _dumps(_process_rows(sample.processes))
                events += sample.events
            if readings or processes:
                self._keep(TickRow(self._row_id(), ms, _dumps(readings), processes, urgent))
            for event in events:
                self._keep_event(event)

    def batch(self, limit: int) -> Batch:
        """Return what waits, at most ``limit`` ticks of it, without taking it away."""
        with self._lock:
            ticks = [t for t, _ in zip(self._ticks, range(limit), strict=False)]
            return Batch(list(self._unsaved), ticks, list(self._events))

    def written(self, batch: Batch) -> None:
        """Forget what was committed."""
        with self._lock:
            del self._unsaved[: len(batch.series)]
            last = batch.ticks[-1].id if batch.ticks else 0
            while self._ticks and self._ticks[0].id <= last:
                self._bytes -= self._ticks.popleft().size
            last = batch.events[-1].id if batch.events else 0
            while self._events and self._events[0].id <= last:
                self._events.popleft()

    @property
    def host_id(self) -> int:
        """Id of the host whose rows these are."""
        return self._host_id

    @property
    def waiting(self) -> tuple[int, int]:
        """Ticks that wait, and their bytes."""
        return len(self._ticks), self._bytes

    @property
    def empty(self) -> bool:
        """Tell whether everything is written."""
        return not (self._ticks or self._events or self._unsaved)

    def next_row(self) -> int:
        """Return a row id nobody has."""
        with self._lock:
            return self._row_id()

    def _row_id(self) -> int:
        self._next_row += 1
        return self._next_row - 1

    def _learn(self, spec: MetricSpec, labels: tuple[str, ...]) -> tuple[str, int] | None:
        divisor = 0 if spec.decimals is None else 10**spec.decimals
        text = _dumps(dict(zip(spec.labels, labels, strict=False)))
        number = self._series_id(SeriesKey(spec.name, spec.kind, text, divisor))
        if number is None:
            self.counters.rejected_values += 1
            return None
        found = (str(number), divisor)
        self._known.setdefault(spec.name, {})[labels] = found
        return found

    def _series_id(self, key: SeriesKey) -> int | None:
        number = self._ids.get(key)
        if number is None:
            if len(self._ids) >= MAX_SERIES:
                return None
            number = max(self._ids.values(), default=self._host_id << schema.SERIES_BITS) + 1
            self._ids[key] = number
            self._unsaved.append((number, key))
        return number

    def _keep(self, row: TickRow) -> None:
        self._ticks.append(row)
        self._bytes += row.size
        while self._bytes > self._buffer_bytes and len(self._ticks) > 1:
            # calm seconds go first: those before an exhaustion of memory are what the file is for
            index = next((i for i, t in enumerate(self._ticks) if not t.urgent), 0)
            self._bytes -= self._ticks[index].size
            del self._ticks[index]
            self.counters.dropped_ticks += 1

    def _keep_event(self, event: Event) -> None:
        if len(self._events) >= BUFFER_EVENTS:
            self._events.popleft()
            self.counters.dropped_events += 1
        fields = json.dumps(dict(event.fields), ensure_ascii=False)
        self._events.append(
            EventRow(self._row_id(), round(event.wall * 1000), event.kind, event.text, fields)
        )


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


def _renumber(readings: str, renamed: Mapping[int, int | None]) -> str:
    """Return a tick's readings under other series ids."""
    pairs = ((renamed.get(int(key)), value) for key, value in json.loads(readings).items())
    return _dumps({str(key): value for key, value in pairs if key is not None})
