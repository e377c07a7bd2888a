"""Samples as they lie in the file: batches as deflated JSON, sealed ones as blocks, summaries by minute and hour.

The newest ticks are batches (see ``schema.batch``), written as they come.

A block holds integers: the first one and the differences that follow, byte plane by byte plane, deflated; most
differences are small, so most planes are runs of zeros.

All blocks of one chunk are stored in one blob, a sheet: a row for each would waste a fifth of the file on half-full
pages. Series with values at exactly the same ticks share a block of times. A sheet begins with the number of its
series and an entry for each; then come the blocks.

What reads any of these raises one of ``errors.DAMAGE`` where it is damaged.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain, groupby
from math import gcd
from operator import sub
from typing import Any, NamedTuple

from wslgpud.metrics import MetricSpec
from wslgpud.model import GpuSample, Number, ProcessSample
from wslgpud.store import schema
from wslgpud.store.errors import gap
from wslgpud.store.schema import MAX_VALUE, PERIOD_MS, Tier, dumps
from wslgpud.words import say

_COUNT, _ENTRY = struct.Struct("<I"), struct.Struct("<IIIIIqq")
#: blocks of times that are cached, as plots read several series: a day, and 1 MB
_CACHED_TIMES = 128


def encode(numbers: Sequence[int]) -> bytes:
    """Return integers below 2**62 as a block."""
    steps = struct.pack(f"<{len(numbers)}q", *map(sub, numbers, chain((0,), numbers)))
    return zlib.compress(b"".join(steps[i::8] for i in range(8)), 9)


def decode(block: bytes) -> list[int]:
    """Undo ``encode``."""
    planes = inflate(block, 8 * schema.MAX_READ_TICKS)
    count, rest = divmod(len(planes), 8)
    if rest:
        raise ValueError(say("truncated"))
    steps = bytearray(len(planes))
    for i in range(8):
        steps[i::8] = planes[i * count : (i + 1) * count]
    return list(accumulate(struct.unpack(f"<{count}q", steps)))


@lru_cache(_CACHED_TIMES)
def _times(block: bytes) -> array[int]:
    return array("q", decode(block))


def inflate(data: bytes, max_bytes: int) -> bytes:
    """Inflate ``data``; ValueError: it is more than ``max_bytes``, of which no more were ever in memory."""
    engine = zlib.decompressobj()
    inflated = engine.decompress(data, max_bytes + 1)
    if len(inflated) > max_bytes:
        raise ValueError(say("it inflates to more than {most_bytes}", most_bytes=max_bytes))
    if not engine.eof:
        raise ValueError(say("truncated"))
    return inflated


def pack_text(text: str) -> bytes:
    """Deflate a text; a lone surrogate, as in a foreign name, becomes a question mark instead of ending all writing."""
    return zlib.compress(text.encode(errors="replace"), 9)


def unpack_text(data: bytes | str) -> str:
    """Undo ``pack_text``, ignoring trailing data; a server stores plain text."""
    return data if isinstance(data, str) else inflate(data, schema.MAX_BATCH_BYTES).decode()


#: number (without the host's bits), times (ms) and values of a series, both in order of arrival
Samples = tuple[int, Sequence[int], Sequence[int]]


class SheetEntry(NamedTuple):
    """A series in a sheet: where the blocks of its times and values begin, their bytes, and its last sample."""

    number: int
    times_at: int
    times_bytes: int
    values_at: int
    values_bytes: int
    last_ms: int
    last: int


def pack_sheet(series: Sequence[Samples]) -> bytes:
    """Return the samples of some series as a sheet."""
    places: dict[bytes, int] = {}
    entries, end = [], _COUNT.size + len(series) * _ENTRY.size
    for number, times, values in series:
        where = []
        for block in (encode(times), encode(values)):
            if block not in places:
                places[block] = end
                end += len(block)
            where += [places[block], len(block)]
        entries.append(_ENTRY.pack(number, *where, times[-1], values[-1]))
    return b"".join((_COUNT.pack(len(entries)), *entries, *places))


def entries_of(sheet: bytes) -> Iterator[SheetEntry]:
    (count,) = _COUNT.unpack_from(sheet)
    end = _COUNT.size + count * _ENTRY.size
    if len(sheet) < end:
        raise ValueError(say("truncated"))
    return map(SheetEntry._make, _ENTRY.iter_unpack(sheet[_COUNT.size : end]))


def samples_of(sheet: bytes, entry: SheetEntry) -> Samples:
    """Return the samples of one series in a sheet."""
    times = _times(sheet[entry.times_at : entry.times_at + entry.times_bytes])
    values = decode(sheet[entry.values_at : entry.values_at + entry.values_bytes])
    if len(times) != len(values):
        raise ValueError(say("{number} values instead of {count}", number=len(values), count=len(times)))
    return entry.number, times, values


def samples_in(sheet: bytes, number: int) -> Samples | None:
    """Return the samples of one series, if present."""
    entry = next((entry for entry in entries_of(sheet) if entry.number == number), None)
    return None if entry is None else samples_of(sheet, entry)


@dataclass(slots=True)
class Series:
    """A series in use: its row without id and host, and whether users choose its labels."""

    #: what queued ticks call it
    key: int
    row: dict[str, Any]
    limited: bool
    #: whether the open database was asked for its id, and the id, None where it takes no more of the metric
    asked: bool = False
    number: int | None = None

    @classmethod
    def of(cls, key: int, spec: MetricSpec, labels: tuple[str, ...]) -> Series:
        text = dumps(dict(zip(spec.labels, labels, strict=False)))
        row = {"metric": spec.name, "kind": spec.kind, "labels": text, "divisor": 10**spec.decimals}
        return cls(key, row, any(names.chosen(spec, labels) is not None for names in spec.names))

    def scaled(self, value: float) -> int | None:
        """Return ``value * divisor`` as an integer; None if not finite, too large, or not taken by the database."""
        number, refused = value * self.row["divisor"], self.asked and self.number is None
        return round(number) if not refused and -MAX_VALUE < number < MAX_VALUE else None


def process_rows(processes: Iterable[ProcessSample], gpus: Iterable[GpuSample]) -> list[list[Any]]:
    """Return the processes of a tick as they are stored, see ``schema.batch``."""
    return [
        *([p.pid, p.start_ticks, p.name, *_kib(p.rss_bytes, p.swap_bytes)] for p in processes),
        *([g.uuid, p.pid, p.name, *_kib(p.used_bytes)] for g in gpus for p in g.processes),
    ]


def _kib(*sizes: int | None) -> list[int | None]:
    return [size and size // 1024 for size in sizes]


#: memory of a batch besides its text
_OVERHEAD_BYTES = 800
_PAGE = 4096
#: bytes of data with which a row fills a page
_PAGE_DATA = 4030


@dataclass(slots=True)
class Batch:
    """Some ticks as JSON, with readings by the names of their series."""

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
        """Return its row without the slot, whose data fills pages, so that others find room in its place."""
        data = pack_text(renumbered(json.loads(self.data), numbers))
        size = _PAGE_DATA if len(data) <= _PAGE_DATA else -len(data) // _PAGE * -_PAGE
        return {"id": self.id, "ms": self.ms, "ticks": self.ticks, "data": data.ljust(size, b"\0")}


def renumbered(known: Mapping[str, Any], numbers: Mapping[str, int]) -> str:
    """Return the JSON of a batch with numbers for names of series, without those that have none."""
    values = {numbers[name]: values for name, values in known["values"].items() if name in numbers}
    return dumps({**known, "values": values})


@dataclass(slots=True)
class OpenBatch:
    """Ticks of a batch under construction; time increases within one period."""

    times: list[int] = field(default_factory=list)
    #: name of a series -> its value at each tick
    columns: dict[int, list[Number | None]] = field(default_factory=dict)
    processes: list[tuple[int, list[list[Any]]]] = field(default_factory=list)

    def takes(self, ms: int) -> bool:
        times = self.times
        return not times or (
            ms // PERIOD_MS == times[0] // PERIOD_MS and ms > times[-1] and len(times) < schema.MAX_BATCH
        )

    def add(self, ms: int, readings: Mapping[int, Number], processes: list[list[Any]] | None) -> None:
        before = len(self.times)
        self.times.append(ms)
        for name, value in readings.items():
            column = self.columns.setdefault(name, [])
            if len(column) < before:
                column += [None] * (before - len(column))
            column.append(value)
        if processes:
            self.processes.append((ms - self.times[0], processes))

    def closed(self, row_id: int, *, urgent: bool) -> Batch:
        start, ticks = self.times[0], len(self.times)
        values = {
            name: column[0] if column.count(column[0]) == ticks else column + [None] * (ticks - len(column))
            for name, column in self.columns.items()
        }
        offsets = [ms - start for ms in self.times]
        data = dumps({"offsets": offsets, "values": values, "processes": self.processes})
        return Batch(row_id, start, ticks, data, urgent)


class Ticks(NamedTuple):
    """The content of a batch, in order of time."""

    #: series, without the host's bits -> times (ms) and values
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
        raise ValueError("not an integer, or too large")
    return numbers


_INT64_MAX = (1 << 63) - 1


class Summary(NamedTuple):
    """The summary of a series over one step; ``last`` is the latest to arrive."""

    n: int
    low: int
    high: int
    total: int
    last: int

    def then(self, later: Summary) -> Summary:
        """Return the summary of both; ``later`` arrived later."""
        return Summary(
            self.n + later.n, min(self.low, later.low), max(self.high, later.high), self.total + later.total, later.last
        )


#: summaries by the beginnings of their steps
Steps = dict[int, Summary]


def add(steps: Steps, later: Iterable[tuple[int, Summary]], step: int = 1) -> None:
    """Add summaries that arrived later to clock-aligned steps of ``step``."""
    for begin, group in groupby(later, lambda one: one[0] - one[0] % step):
        n, low, high, total, last = zip(*(known for _, known in group), strict=True)
        known = Summary(sum(n), min(low), max(high), sum(total), last[-1])
        steps[begin] = steps[begin].then(known) if begin in steps else known


def summary(values: Sequence[Any]) -> Summary:
    return Summary(len(values), min(values), max(values), sum(values), values[-1])


def summarise(times: Sequence[int], values: Sequence[Any], step: int) -> Steps:
    """Return a summary for each clock-aligned ``step`` with values; ``times`` are in order of arrival."""
    steps: Steps = {}
    first, count = 0, len(times)
    while first < count:
        begin = times[first] // step * step
        end = first + 1
        while end < count and begin <= times[end] < begin + step:
            end += 1
        add(steps, [(begin, summary(values[first:end]))])
        first = end
    return steps


def packed(tier: Tier, part: int, number: int, known: Mapping[int, Summary]) -> dict[str, Any]:
    """Return summaries by their beginnings (s) as a row, see ``schema``."""
    base = min(s.last for s in known.values())
    distances = {t: (s.last - base, s.last - s.low, s.high - s.last, s.total - s.n * s.low) for t, s in known.items()}
    unit = gcd(*chain.from_iterable(distances.values())) or 1
    row: dict[str, Any] = dict.fromkeys(tier.table.c.keys())
    row |= {"part": part, "series": number, "unit": unit, "base": base}
    for time, summary_ in known.items():
        # a clamped distance is better than no row
        numbers = (summary_.n, *(min(distance // unit, _INT64_MAX) for distance in distances[time]))
        step = (time - part) // tier.step_seconds
        row |= {f"{name}_{step}": value for name, value in zip(schema.ROLLED_UP, numbers, strict=True)}
    return row


def unpacked(tier: Tier, row: Sequence[Any]) -> list[tuple[int, Summary]]:
    """Return the summaries in a row with their beginnings (s), by time; none for a damaged one."""
    part, series, unit, base, *numbers = row
    with gap("%s of series %d from %d on", tier.table.name, series, part):
        steps = [i for i in range(tier.steps) if numbers[i]]
        n, last, below, above, over = ([numbers[at + i] for i in steps] for at in range(0, len(numbers), tier.steps))
        ends = [base + distance * unit for distance in last]
        low = [end - distance * unit for end, distance in zip(ends, below, strict=True)]
        high = [end + distance * unit for end, distance in zip(ends, above, strict=True)]
        total = [count * lowest + more * unit for count, lowest, more in zip(n, low, over, strict=True)]
        times = [part + i * tier.step_seconds for i in steps]
        return list(zip(times, map(Summary._make, zip(n, low, high, total, ends, strict=True)), strict=True))
    return []
