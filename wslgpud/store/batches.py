"""The newest ticks: batches under construction, their JSON (see ``schema.batch``), its readers, and their places."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, select

from wslgpud.model import Number
from wslgpud.store import schema
from wslgpud.store.codec import pack_text, unpack_text
from wslgpud.store.schema import MAX_BATCH, MAX_VALUE, PERIOD_MS, dumps

#: memory of a batch besides its text
_OVERHEAD_BYTES = 800
_PAGE = 4096
#: bytes of data with which a row fills a page
_PAGE_DATA = 4030
#: slots to keep when they are free; a machine that commits every second for a quarter of an hour takes 900 for a while
MAX_SLOTS = 300


@dataclass(slots=True)
class Batch:
    """Some ticks as JSON, with readings by the names of ``SeriesInUse``."""

    id: int
    ms: int
    ticks: int
    data: str
    urgent: bool

    @property
    def spare(self) -> bool:
        return not self.urgent  # the seconds before an exhaustion of memory are the purpose of the history

    @property
    def bytes(self) -> int:
        return len(self.data) + _OVERHEAD_BYTES

    def row(self, numbers: Mapping[str, int]) -> dict[str, Any]:
        data = renumbered(json.loads(self.data), numbers)
        return {"id": self.id, "ms": self.ms, "ticks": self.ticks, "data": data}


def renumbered(known: Mapping[str, Any], numbers: Mapping[str, int]) -> str:
    """Return the JSON of a batch with numbers for names of series, without those that have none."""
    values = {numbers[name]: values for name, values in known["values"].items() if name in numbers}
    return dumps({**known, "values": values})


@dataclass(slots=True)
class OpenBatch:
    """Ticks of a batch under construction; time increases within one period."""

    times: list[int] = field(default_factory=list)
    #: name of a series -> its value at each tick
    columns: dict[str, list[Number | None]] = field(default_factory=dict)
    processes: list[tuple[int, list[list[Any]]]] = field(default_factory=list)

    def takes(self, ms: int) -> bool:
        times = self.times
        return not times or (ms // PERIOD_MS == times[0] // PERIOD_MS and ms > times[-1] and len(times) < MAX_BATCH)

    def add(self, ms: int, readings: dict[str, Number], processes: list[list[Any]] | None) -> None:
        before = len(self.times)
        self.times.append(ms)
        for name, value in readings.items():
            column = self.columns.setdefault(name, [])
            if len(column) < before:
                column += [None] * (before - len(column))
            column.append(value)
        if processes:
            self.processes.append((ms - self.times[0], processes))

    def closed(self, number: int, *, urgent: bool) -> Batch:
        start, ticks = self.times[0], len(self.times)
        values = {
            name: column[0] if column.count(column[0]) == ticks else column + [None] * (ticks - len(column))
            for name, column in self.columns.items()
        }
        offsets = [ms - start for ms in self.times]
        data = dumps({"offsets": offsets, "values": values, "processes": self.processes})
        return Batch(number, start, ticks, data, urgent)


class Ticks(NamedTuple):
    """The content of a batch, in order of time."""

    #: series -> times (ms) and values
    series: dict[int, tuple[Sequence[int], Sequence[int]]]
    #: [ms, rows as in ``schema.batch``]
    processes: list[Any]


def parsed(start_ms: int, data: bytes | str) -> Ticks:
    """Return the ticks in a row of ``schema.batch``, or raise one of ``errors.DAMAGE``."""
    known = json.loads(unpack_text(data))
    times = _checked([start_ms + offset for offset in known["offsets"]])
    series = {int(number): _samples(times, values) for number, values in known["values"].items()}
    return Ticks(series, [[start_ms + offset, rows] for offset, rows in known["processes"]])


def _samples(times: list[int], given: Any) -> tuple[Sequence[int], Sequence[int]]:
    values = given if isinstance(given, list) else [given] * len(times)
    if None in values:
        times = [ms for ms, value in zip(times, values, strict=True) if value is not None]
    kept = _checked([value for value in values if value is not None])
    if len(kept) != len(times):
        raise ValueError("values of other ticks")
    return times, kept


def _checked(numbers: list[int]) -> list[int]:
    if {*map(type, numbers)} - {int} or max(map(abs, numbers), default=0) >= MAX_VALUE:
        raise ValueError("numbers that are none")
    return numbers


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
