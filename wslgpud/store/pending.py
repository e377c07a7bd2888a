"""Ticks on their way to the disk: gathered column by column, cut into rows when they are committed."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wslgpud.model import Number
from wslgpud.store.limits import MAX_BATCH, PERIOD_MS

#: what a row costs in memory beside its text
_ROW_OVERHEAD = 400

dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class Row(NamedTuple):
    """A row of the table ``batch``, not yet numbered."""

    ms: int
    offsets: str
    readings: str
    processes: str | None


class Batch(NamedTuple):
    """Some ticks as rows; ``id`` is that of the first row, the others follow."""

    id: int
    rows: tuple[Row, ...]
    ticks: int
    urgent: bool

    @property
    def size(self) -> int:
        """Bytes it takes in memory, about."""
        return sum(len(r.readings) + len(r.processes or "") + _ROW_OVERHEAD for r in self.rows)


@dataclass(slots=True)
class OpenBatch:
    """Ticks that are still being gathered; time grows from each to the next within one period."""

    times: list[int] = field(default_factory=list)
    #: series id -> [values, bits of the ticks they belong to]
    columns: dict[str, list[Any]] = field(default_factory=dict)
    processes: list[tuple[int, list[list[Any]]]] = field(default_factory=list)
    urgent: bool = False

    def takes(self, ms: int) -> bool:
        """Tell whether a tick at ``ms`` may join."""
        if not self.times:
            return True
        same = ms // PERIOD_MS == self.times[0] // PERIOD_MS
        return same and ms > self.times[-1] and len(self.times) < MAX_BATCH

    def add(self, ms: int, readings: dict[str, Number], processes: list[list[Any]] | None) -> None:
        """Let a tick join."""
        bit = 1 << len(self.times)
        self.times.append(ms)
        columns = self.columns
        for key, value in readings.items():
            column = columns.get(key)
            if column is None:
                columns[key] = [[value], bit]
            else:
                column[0].append(value)
                column[1] |= bit
        if processes:
            self.processes.append((ms - self.times[0], processes))

    def rows(self) -> tuple[Row, ...]:
        """Return the series in groups that have values at the very same ticks, fullest group first."""
        groups: dict[int, dict[str, Any]] = {}
        if self.processes:
            # kept with all ticks, so that the offsets of the first row cover them
            groups[(1 << len(self.times)) - 1] = {}
        for key, (values, bits) in self.columns.items():
            first = values[0]
            # of doubles 0.0 == -0.0, so they are written out
            same = type(first) is int and values.count(first) == len(values)
            groups.setdefault(bits, {})[key] = first if same else values
        start, seen = self.times[0], dumps(self.processes) if self.processes else None
        rows = []
        for bits, readings in sorted(groups.items(), key=lambda g: -g[0].bit_count()):
            offsets = [ms - start for i, ms in enumerate(self.times) if bits >> i & 1]
            rows.append(Row(start, dumps(offsets), dumps(readings), seen))
            seen = None
        return tuple(rows)


class Pending:
    """Batches that wait, within a bound of memory."""

    def __init__(self, limit_bytes: int) -> None:
        """Keep at most about ``limit_bytes``."""
        self._limit = limit_bytes
        self._batches: deque[Batch] = deque()
        self.bytes = 0
        self.ticks = 0
        self.dropped_ticks = 0

    def __len__(self) -> int:
        """Count the batches."""
        return len(self._batches)

    def put(self, batch: Batch) -> None:
        """Keep a batch; if that is too much, give up calm ones first, oldest first.

        The seconds before an exhaustion of memory are what the history is for.
        """
        self._batches.append(batch)
        self.bytes += batch.size
        self.ticks += batch.ticks
        while self.bytes > self._limit and len(self._batches) > 1:
            index = next((i for i, b in enumerate(self._batches) if not b.urgent), 0)
            self._forget(self._batches[index])
            self.dropped_ticks += self._batches[index].ticks
            del self._batches[index]

    def first(self, ticks: int) -> list[Batch]:
        """Return the oldest batches up to about so many ticks."""
        found: list[Batch] = []
        for batch in self._batches:
            if ticks <= 0:
                break
            found.append(batch)
            ticks -= batch.ticks
        return found

    def written(self, last_id: int) -> None:
        """Forget the batches up to this one."""
        while self._batches and self._batches[0].id <= last_id:
            self._forget(self._batches.popleft())

    def replace(self, batches: list[Batch]) -> None:
        """Have other batches wait instead: the same under new numbers."""
        self._batches = deque(batches)

    def __iter__(self) -> Any:
        """Iterate over what waits, oldest first."""
        return iter(self._batches)

    def _forget(self, batch: Batch) -> None:
        self.bytes -= batch.size
        self.ticks -= batch.ticks
