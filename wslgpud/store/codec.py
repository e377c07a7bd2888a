"""Samples as they lie in the file: batches as JSON, and sealed ones compressed, with the standard library only.

The newest ticks are batches (see ``schema.batch``), written as they come.

A block holds integers: the first one and the differences that follow, byte plane by byte plane, deflated; most
differences are small, so most planes are runs of zeros.

All blocks of one chunk are stored in one blob, a sheet: a row for each would waste a fifth of the file on half-full
pages. Series with values at exactly the same ticks share a block of times. A sheet begins with the numbers of its
blocks of times and of its series, and an entry for each, times first, then series in order of their numbers; then come
the blocks.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain
from operator import sub
from typing import Any, NamedTuple

from wslgpud.model import Number
from wslgpud.store.schema import MAX_BATCH, MAX_BATCH_BYTES, MAX_READ_TICKS, MAX_VALUE, PERIOD_MS, dumps
from wslgpud.words import cause, say

_COUNTS = struct.Struct("<HI")
_ENTRY = struct.Struct("<IHqI")
#: blocks of times that are cached, as plots read several series: a day, and 1 MB
_CACHED_TIMES = 128


def encode(numbers: Sequence[int]) -> bytes:
    """Return integers below 2**62 as a block."""
    steps = struct.pack(f"<{len(numbers)}q", *map(sub, numbers, chain((0,), numbers)))
    return zlib.compress(b"".join(steps[i::8] for i in range(8)), 9)


def decode(block: bytes) -> list[int]:
    """Undo ``encode``, or raise ValueError: the block is damaged."""
    try:
        planes = inflate(block, 8 * MAX_READ_TICKS)
    except (zlib.error, ValueError) as error:
        raise ValueError(say("damaged block: {why}", why=cause(error))) from error
    count, rest = divmod(len(planes), 8)
    if rest:
        raise ValueError(say("damaged block: {why}", why=say("truncated")))
    steps = bytearray(len(planes))
    for i in range(8):
        steps[i::8] = planes[i * count : (i + 1) * count]
    return list(accumulate(struct.unpack(f"<{count}q", steps)))


@lru_cache(_CACHED_TIMES)
def _times(block: bytes) -> array[int]:
    return array("q", decode(block))


def inflate(data: bytes, max_bytes: int) -> bytes:
    """Inflate ``data``; zlib.error: it is damaged.

    ValueError: it is more than ``max_bytes``; no more were ever in memory.
    """
    engine = zlib.decompressobj()
    inflated = engine.decompress(data, max_bytes + 1)
    if len(inflated) > max_bytes:
        raise ValueError(say("it inflates to more than {most_bytes}", most_bytes=max_bytes))
    if not engine.eof:
        raise zlib.error(say("truncated"))
    return inflated


def pack_text(text: str) -> bytes:
    return zlib.compress(text.encode(), 9)


def unpack_text(data: bytes | str) -> str:
    """Undo ``pack_text``, ignoring trailing data; a server stores plain text. Raises ValueError, or zlib.error."""
    return data if isinstance(data, str) else inflate(data, MAX_BATCH_BYTES).decode()


#: number (32 bits), times (ms) and values of a series, both in order of arrival
Samples = tuple[int, Sequence[int], Sequence[int]]


class _Entry(NamedTuple):
    """A block; for one of times, number and times are 0. ``end`` is where it ends among all blocks."""

    number: int
    #: the index of its block of times
    times: int
    #: the last of its numbers
    last: int
    end: int


def pack_sheet(series: Iterable[Samples]) -> bytes:
    """Return the samples of some series as a sheet."""
    groups: dict[bytes, tuple[int, int]] = {}
    entries = []
    blocks = []
    for number, times, values in sorted(series, key=lambda one: one[0]):
        group, _ = groups.setdefault(encode(times), (len(groups), times[-1]))
        entries.append((number, group, values[-1]))
        blocks.append(encode(values))
    every = [*((0, 0, last) for _, last in groups.values()), *entries]
    ends = accumulate(map(len, (*groups, *blocks)))
    packed = (_ENTRY.pack(*entry, end) for entry, end in zip(every, ends, strict=True))
    return b"".join((_COUNTS.pack(len(groups), len(blocks)), *packed, *groups, *blocks))


class Sheet:
    """Reads a sheet; each of its methods raises ValueError where it is damaged."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        if len(data) < _COUNTS.size:
            raise ValueError(say("damaged sheet: {why}", why=say("truncated")))
        self._groups, series = _COUNTS.unpack_from(data)
        self._count = self._groups + series
        self._begin = _COUNTS.size + self._count * _ENTRY.size
        if len(data) < self._begin:
            raise ValueError(say("damaged sheet: {why}", why=say("truncated")))

    @property
    def numbers(self) -> list[int]:
        return [self._entry(i).number for i in range(self._groups, self._count)]

    def find(self, number: int) -> Samples | None:
        """Return the samples of one series, if present."""
        i = bisect_left(range(self._count), number, self._groups, key=lambda i: self._entry(i).number)
        return self._samples(i) if i < self._count and self._entry(i).number == number else None

    def last(self) -> Iterator[tuple[int, int, int]]:
        """Yield number, time (ms) and value of the last sample of each series."""
        for i in range(self._groups, self._count):
            entry = self._entry(i)
            yield entry.number, self._entry(entry.times).last, entry.last

    def _samples(self, i: int) -> Samples:
        entry = self._entry(i)
        times, values = _times(self._block(entry.times)), decode(self._block(i))
        if len(times) != len(values):
            raise ValueError(
                say("damaged block: {number} values instead of {count}", number=len(values), count=len(times))
            )
        return entry.number, times, values

    def _entry(self, i: int) -> _Entry:
        return _Entry(*_ENTRY.unpack_from(self._data, _COUNTS.size + i * _ENTRY.size))

    def _block(self, i: int) -> bytes:
        start = self._entry(i - 1).end if i else 0
        return self._data[self._begin + start : self._begin + self._entry(i).end]


#: memory of a batch besides its text
_OVERHEAD_BYTES = 800


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
