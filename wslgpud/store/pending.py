"""Ticks on their way to the disk: gathered column by column, cut into rows when they are committed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any, Generic, NamedTuple, TypeVar

from wslgpud.model import Number
from wslgpud.store.limits import MAX_BATCH, PERIOD_MS
from wslgpud.store.rollup import dumps

#: what a row costs in memory beside its text
_ROW_OVERHEAD = 400
_T = TypeVar("_T")


class Backlog(Generic[_T]):
    """What is to be written, oldest first: committed items, then those that wait.

    Items stay, though they are committed, until the disk is known to have them: a commit in calm only hands
    rows to the kernel. If the disk then fails to take them, Linux says so once and forgets them, and only we
    still have them.
    """

    def __init__(self, most: int | None = None) -> None:
        self._lock = threading.RLock()
        self._items: deque[_T] = deque()
        self._committed = 0
        self._most = most
        #: how many were given up that were never committed
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._items) - self._committed

    def waiting(self) -> list[_T]:
        """Return the items that wait, without taking them away."""
        with self._lock:
            return [*islice(self._items, self._committed, None)]

    def put(self, item: _T) -> None:
        """Let an item wait."""
        with self._lock:
            if self._most is not None and len(self) >= self._most:
                self.dropped += self._give_up()[1]
            self._items.append(item)

    def replace(self, changed: Callable[[_T], _T]) -> None:
        """Put others in place of the items."""
        with self._lock:
            self._items = deque(map(changed, self._items))

    def committed(self, items: Iterable[_T]) -> None:
        """Note which items were committed, in order; again that changes nothing."""
        with self._lock:
            for item in items:
                if len(self) and self._items[self._committed] is item:
                    self._committed += 1

    def synced(self) -> None:
        """Forget what is committed: the disk has it."""
        with self._lock:
            while self._committed:
                self._give_up()

    def again(self) -> None:
        """Have everything committed again that the disk may not have."""
        with self._lock:
            self._committed = 0

    def _give_up(self, index: int = 0) -> tuple[_T, bool]:
        """Drop one of the items that wait, or the oldest committed one; return it and whether it waited."""
        waited = not self._committed
        index = index if waited else 0
        item = self._items[index]
        del self._items[index]
        self._committed -= not waited
        return item, waited


class Batch(NamedTuple):
    """Some ticks as rows, readings by the names of ``SeriesInUse``; ``id`` is that of the first, the others follow."""

    id: int
    rows: tuple[dict[str, Any], ...]
    ticks: int
    urgent: bool

    @property
    def size(self) -> int:
        """Bytes it takes in memory, about."""
        return sum(len(r["readings"]) + len(r["processes"] or "") + _ROW_OVERHEAD for r in self.rows)


@dataclass(slots=True)
class OpenBatch:
    """Ticks that are still being gathered; time grows from each to the next within one period."""

    times: list[int] = field(default_factory=list)
    #: name of a series -> [values, bits of the ticks they belong to]
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
        for name, value in readings.items():
            column = columns.get(name)
            if column is None:
                columns[name] = [[value], bit]
            else:
                column[0].append(value)
                column[1] |= bit
        if processes:
            self.processes.append((ms - self.times[0], processes))

    def rows(self) -> tuple[dict[str, Any], ...]:
        """Return the series in groups that have values at the very same ticks, fullest group first."""
        groups: dict[int, dict[str, Any]] = {}
        if self.processes:
            # kept with all ticks, so that the offsets of the first row cover them
            groups[(1 << len(self.times)) - 1] = {}
        for name, (values, bits) in self.columns.items():
            first = values[0]
            # of doubles 0.0 == -0.0, so they are written out
            same = type(first) is int and values.count(first) == len(values)
            groups.setdefault(bits, {})[name] = first if same else values
        start, seen = self.times[0], dumps(self.processes) if self.processes else None
        rows = []
        for bits, readings in sorted(groups.items(), key=lambda g: -g[0].bit_count()):
            offsets = [ms - start for i, ms in enumerate(self.times) if bits >> i & 1]
            rows.append({"ms": start, "offsets": dumps(offsets), "readings": dumps(readings), "processes": seen})
            seen = None
        return tuple(rows)


class Pending(Backlog[Batch]):
    """Batches on their way to the disk, within a bound of memory: about ``limit_bytes``."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self._limit = limit_bytes
        self.bytes = 0
        self.dropped_ticks = 0

    @property
    def ticks(self) -> int:
        """Ticks that wait to be committed."""
        return sum(batch.ticks for batch in self.waiting())

    def put(self, item: Batch) -> None:
        """Keep a batch; if that is too much, give up committed ones, then calm ones, oldest first.

        The seconds before an exhaustion of memory are what the history is for.
        """
        super().put(item)
        self.bytes += item.size
        while self.bytes > self._limit and len(self) > 1:
            calm = next((i for i, batch in enumerate(self.waiting()) if not batch.urgent), 0)
            given_up, waited = self._give_up(calm)
            self.bytes -= given_up.size
            self.dropped_ticks += given_up.ticks if waited else 0

    def first(self, ticks: int) -> list[Batch]:
        """Return the oldest batches that wait, up to about so many ticks."""
        waiting = self.waiting()
        before = accumulate((batch.ticks for batch in waiting), initial=0)
        return [batch for batch, ticks_before in zip(waiting, before, strict=False) if ticks_before < ticks]

    def synced(self) -> None:
        """Forget what is committed: the disk has it."""
        super().synced()
        self.bytes = sum(batch.size for batch in self.waiting())
