"""The newest ticks: batches under construction, their JSON (see ``schema.batch``), and its readers."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wslgpud.model import Number
from wslgpud.store.codec import unpack_text
from wslgpud.store.schema import MAX_BATCH, PERIOD_MS, dumps

#: memory of a batch besides its text
_OVERHEAD_BYTES = 800
_value_at = json.JSONDecoder().raw_decode


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
    groups: list[tuple[list[int], dict[int, array[int]]]]
    #: [ms, rows as in ``schema.batch``]
    processes: list[Any]


def parsed(start_ms: int, data: bytes | str) -> Ticks:
    """Return the ticks in a row of ``schema.batch``, or raise one of ``errors.DAMAGE``."""
    known, groups = json.loads(unpack_text(data)), []
    for offsets, readings in known["ticks"]:
        columns = {int(number): array("q", _values(given, len(offsets))) for number, given in readings.items()}
        groups.append(([start_ms + offset for offset in offsets], columns))
    return Ticks(groups, [[start_ms + offset, rows] for offset, rows in known["processes"]])


def of_series(start_ms: int, data: bytes | str, series: int) -> tuple[list[int], list[int]]:
    """Return times (ms) and values of one series in such a row, or raise one of ``errors.DAMAGE``.

    They are found by position: parsing all of it would take several times as long.
    """
    text, name = unpack_text(data), f'"{series}":'
    place = text.find(name)  # quotes within a text are escaped
    if place < 0:
        return [], []
    offsets, _ = _value_at(text, text.rindex("[", 0, text.rindex("{", 0, place)))
    given, _ = _value_at(text, place + len(name))
    return [start_ms + offset for offset in offsets], _values(given, len(offsets))


def _values(given: Any, count: int) -> list[int]:
    """Return the values of ``count`` ticks, of which one stands for all if they are equal."""
    values = given if isinstance(given, list) else [given] * count
    if len(values) != count or {*map(type, values)} != {int}:
        raise ValueError("values that are none")
    return values
