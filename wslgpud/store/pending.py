"""Ticks on their way to the disk: gathered column by column, cut into rows when they are committed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wslgpud.model import Number
from wslgpud.store.backlog import Backlog
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

    def rename(self, numbers: Mapping[str, str | None]) -> None:
        """Put series under other numbers; those without one are left out."""
        for before, now in numbers.items():
            column = self.columns.pop(before, None)
            if column is not None and now is not None:
                self.columns[now] = column

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
    """Batches on their way to the disk, within a bound of memory."""

    def __init__(self, limit_bytes: int) -> None:
        """Keep at most about ``limit_bytes``."""
        self._limit = limit_bytes
        self._batches: Backlog[Batch] = Backlog()
        self.bytes = 0
        self.dropped_ticks = 0

    def __len__(self) -> int:
        """Count the batches that wait to be committed."""
        return len(self._batches)

    @property
    def ticks(self) -> int:
        """Ticks that wait to be committed."""
        return sum(batch.ticks for batch in self._batches)

    def put(self, batch: Batch) -> None:
        """Keep a batch; if that is too much, give up committed ones, then calm ones, oldest first.

        The seconds before an exhaustion of memory are what the history is for.
        """
        self._batches.put(batch)
        self.bytes += batch.size
        while self.bytes > self._limit and len(self._batches) > 1:
            calm = next((i for i, b in enumerate(self._batches) if not b.urgent), 0)
            given_up, waited = self._batches.give_up(calm)
            self.bytes -= given_up.size
            self.dropped_ticks += given_up.ticks if waited else 0

    def first(self, ticks: int) -> list[Batch]:
        """Return the oldest batches that wait, up to about so many ticks."""
        found: list[Batch] = []
        for batch in self._batches:
            if ticks <= 0:
                break
            found.append(batch)
            ticks -= batch.ticks
        return found

    def committed(self, batches: Iterable[Batch]) -> None:
        """Note which were committed."""
        self._batches.committed(batches)

    def synced(self) -> None:
        """Forget what is committed: the disk has it."""
        self._batches.synced()
        self.bytes = sum(batch.size for batch in self._batches)

    def again(self) -> None:
        """Have everything committed again that the disk may not have."""
        self._batches.again()

    def replace(self, changed: Callable[[Batch], Batch]) -> None:
        """Put others in place of the batches that wait."""

        def weighed(batch: Batch) -> Batch:
            now = changed(batch)
            self.bytes += now.size - batch.size
            return now

        self._batches.replace(weighed)

    def renumber(self, renumbered: Callable[[Batch], Batch]) -> None:
        """Have the same batches wait under new numbers."""
        self._batches = Backlog(map(renumbered, self._batches))
