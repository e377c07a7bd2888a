"""The newest ticks: batches under construction, their JSON (see ``schema.batch``), its readers, and their places."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, select

from wslgpud.model import Number
from wslgpud.store import postgresql, schema
from wslgpud.store.codec import pack_text, unpack_text
from wslgpud.store.schema import MAX_BATCH, MAX_VALUE, PERIOD_MS, dumps

#: memory of a batch besides its text
_OVERHEAD_BYTES = 800
_PAGE = 4096
#: bytes of data with which a row fills a page
_PAGE_DATA = 4030
#: free slots to keep; a machine that syncs every second for a quarter of an hour needs 900 for a while
MAX_FREE = 300


class Batch(NamedTuple):
    """Some ticks as JSON, with readings by the names of ``SeriesInUse``."""

    id: int
    ms: int
    ticks: int
    data: str
    urgent: bool

    @property
    def bytes(self) -> int:
        return len(self.data) + _OVERHEAD_BYTES

    def row(self, numbers: Mapping[str, int]) -> dict[str, Any]:
        data = renumbered(json.loads(self.data), numbers)
        return {"id": self.id, "ms": self.ms, "ticks": self.ticks, "data": data}


def renumbered(known: Mapping[str, Any], numbers: Mapping[str, int]) -> str:
    """Return the JSON of a batch with numbers for names of series, without those that have none."""
    ticks = [
        [offsets, {numbers[name]: values for name, values in readings.items() if name in numbers}]
        for offsets, readings in known["ticks"]
    ]
    return dumps({**known, "ticks": ticks})


@dataclass(slots=True)
class OpenBatch:
    """Ticks of a batch under construction; time increases within one period."""

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
        """Return the series in groups with values at exactly the same ticks, fullest group first."""
        groups: dict[int, dict[str, Any]] = {}
        if self.processes:
            # with all ticks, so that the offsets of the first group cover them
            groups[(1 << len(self.times)) - 1] = {}
        for name, (values, bits) in self.columns.items():
            first = values[0]
            groups.setdefault(bits, {})[name] = first if values.count(first) == len(values) else values
        start, ticks = self.times[0], []
        for bits, readings in sorted(groups.items(), key=lambda g: -g[0].bit_count()):
            ticks.append([[ms - start for i, ms in enumerate(self.times) if bits >> i & 1], readings])
        data = dumps({"ticks": ticks, "processes": self.processes})
        return Batch(number, start, len(self.times), data, self.urgent)


class Ticks(NamedTuple):
    """The content of a batch, in order of time."""

    #: times (ms) and values by series, of those that have values at exactly the same ticks
    groups: list[tuple[list[int], dict[int, list[int]]]]
    #: [ms, rows as in ``schema.batch``]
    processes: list[Any]


def parsed(start_ms: int, data: bytes | str) -> Ticks:
    """Return the ticks in a row of ``schema.batch``, or raise one of ``errors.DAMAGE``."""
    known = json.loads(unpack_text(data))
    groups = []
    for offsets, readings in known["ticks"]:
        times = _checked([start_ms + offset for offset in offsets], len(offsets))
        groups.append((times, {int(number): _checked(given, len(times)) for number, given in readings.items()}))
    return Ticks(groups, [[start_ms + offset, rows] for offset, rows in known["processes"]])


def _checked(given: Any, count: int) -> list[int]:
    """Return the numbers of ``count`` ticks, of which one stands for all if they are equal."""
    values = given if isinstance(given, list) else [given] * count
    if len(values) != count or {*map(type, values)} != {int} or max(map(abs, values)) >= MAX_VALUE:
        raise ValueError("values that are none")
    return values


class Slots:
    """Places for the newest batches of a host in their table: each overwrites a sealed one.

    Overwriting a row with one of its size changes only its page. Inserting one and deleting it later changes three to
    six pages with each commit, and each page is written twice, into the log and from there into the file.
    """

    def __init__(self) -> None:
        #: id of an unsealed batch from before the connection -> (bytes, slot)
        self._taken: dict[int, tuple[int, int]] = {}
        self._free: list[tuple[int, int]] = []
        self._host = self._newest = 0

    def load(self, connection: Connection, host: int) -> None:
        """Look up the slots of a newly opened database."""
        of, self._host = schema.batch.c, host
        query = select(of.id, func.length(of.data), of.slot, schema.unsealed)
        rows = connection.execute(query.where(schema.of_host(schema.batch, host))).all()
        self._taken = {number: (size, slot) for number, size, slot, unsealed in rows if unsealed}
        self._free = [(size, slot) for _, size, slot, unsealed in rows if not unsealed]
        self._newest = max([schema.row_range(host)[0], *(slot for *_, slot, _ in rows)])

    def write(self, connection: Connection, rows: Iterable[dict[str, Any]]) -> int:
        """Write batches, again after a failed commit that may have happened; return their bytes."""
        deflated = not postgresql.is_server(connection)
        placed = [self._placed(row, pack_text(row["data"]) if deflated else row["data"]) for row in rows]
        schema.put(connection, schema.batch, placed)
        return sum(len(row["data"]) for row in placed)

    def free(self, connection: Connection, sealed: int) -> None:
        """Free the slots of batches up to id ``sealed``, and delete surplus ones."""
        of, of_host = schema.batch.c, schema.of_host(schema.batch, self._host)
        query = select(func.length(of.data), of.slot).where(of_host, of.id <= sealed)
        slots = [(size, slot) for size, slot in connection.execute(query)]
        self._free = slots[:MAX_FREE]
        if surplus := [slot for _, slot in slots[MAX_FREE:]]:
            connection.execute(delete(schema.batch).where(of.slot.in_(surplus)))

    def _placed(self, row: dict[str, Any], data: bytes | str) -> dict[str, Any]:
        size = _PAGE_DATA if len(data) <= _PAGE_DATA else -len(data) // _PAGE * -_PAGE
        place = self._taken.get(row["id"]) or next((free for free in self._free if free[0] == size), None)
        if place is None:
            self._newest += 1
            place = size, self._newest
        elif place in self._free:
            self._free.remove(place)
        size, slot = place
        return {**row, "slot": slot, "data": data.ljust(size, b"\0") if isinstance(data, bytes) else data}
