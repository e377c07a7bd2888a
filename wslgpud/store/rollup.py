"""Rollups by minute and hour: n, min, max, sum, last; and the sealing of ticks, which writes them.

One period is one transaction, exactly once: the ticks are freed in the same transaction that adds their blocks and
rollups, so a crash or restart neither loses nor repeats any. Ticks left from before a downtime are sealed as soon as
newer ones arrive.
"""

from __future__ import annotations

import json
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from math import gcd
from operator import truediv
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, select, update

from wslgpud.store import schema
from wslgpud.store.batches import parsed
from wslgpud.store.codec import Samples, pack_sheet
from wslgpud.store.errors import gap
from wslgpud.store.schema import HOURS, MAX_TICKS, MINUTES, PERIOD_MS, ROLLED_UP, Tier

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


class Steps(NamedTuple):
    """Summaries by time, in columns: a year has 9,000 hours, too many for a call each."""

    times: Sequence[Any]
    n: Sequence[Any]
    low: Sequence[int]
    high: Sequence[int]
    total: Sequence[int]
    last: Sequence[int]

    def rows(self) -> Iterable[tuple[int, Summary]]:
        """Return (beginning of the step, summary)."""
        new = partial(tuple.__new__, Summary)  # NamedTuple's own is Python code
        return zip(self.times, map(new, zip(*self[1:], strict=True)), strict=True)

    @property
    def means(self) -> Iterable[float]:
        return map(truediv, self.total, self.n)

    def between(self, start: int, end: int) -> Steps:
        """Return those that begin between ``start`` and ``end``, both included."""
        first, last = bisect_left(self.times, start), bisect_right(self.times, end)
        if (first, last) == (0, len(self.times)):
            return self
        return Steps(*(column[first:last] for column in self))

    def then(self, later: Steps) -> Steps:
        """Return these combined with later arrivals, which may belong to the same steps."""
        if not self.times or not later.times:
            return later if later.times else self
        place = bisect_left(self.times, later.times[0])
        end = dict(self.between(later.times[0], self.times[-1]).rows())
        for time, known in later.rows() if end else ():
            _add(end, time, known)
        pairs = zip(self, columns(end) if end else later, strict=True)
        return Steps(*([*mine[:place], *theirs] for mine, theirs in pairs))


def columns(known: Mapping[int, Summary]) -> Steps:
    """Return summaries by their beginnings as columns, by time."""
    times = sorted(known)
    return Steps(times, *zip(*(known[time] for time in times), strict=True)) if times else NONE


NONE = Steps([], [], [], [], [], [])


def summary(values: Sequence[Any]) -> Summary:
    return Summary(len(values), min(values), max(values), sum(values), values[-1])


def summarise(times: Sequence[int], values: Sequence[Any], step: int) -> dict[int, Summary]:
    """Return a summary for each clock-aligned ``step`` with values; ``times`` are in order of arrival."""
    summaries: dict[int, Summary] = {}
    for begin, first, end in stretches(times, step):
        _add(summaries, begin, summary(values[first:end]))
    return summaries


def _add(summaries: dict[int, Summary], key: int, later: Summary) -> None:
    summaries[key] = summaries[key].then(later) if key in summaries else later


def stretches(times: Sequence[int], step: int) -> Iterator[tuple[int, int, int]]:
    """Return (beginning of the step, index of the first, index after the last) of runs within one step."""
    first, count = 0, len(times)
    while first < count:
        begin = times[first] // step * step
        end = first + 1
        while end < count and begin <= times[end] < begin + step:
            end += 1
        yield begin, first, end
        first = end


def merge(steps: Steps, step: int) -> Steps:
    times, n, low, high, total, last = steps
    runs = list(stretches(times, step))
    return Steps(
        [begin for begin, _, _ in runs],
        [sum(n[first:end]) for _, first, end in runs],
        [min(low[first:end]) for _, first, end in runs],
        [max(high[first:end]) for _, first, end in runs],
        [sum(total[first:end]) for _, first, end in runs],
        [last[end - 1] for _, _, end in runs],
    )


def write_summaries(connection: Connection, tier: Tier, new: Mapping[tuple[int, int], Summary]) -> None:
    """Merge summaries, by beginning (s) and series, into those that are there.

    A minute exists already if the clock went back or a chunk was closed within it, an hour from its first chunk on.
    """
    by_row: dict[tuple[int, int], dict[int, Summary]] = {}
    for (time, number), known in new.items():
        part = time // tier.part_seconds * tier.part_seconds
        by_row.setdefault((part, number), {})[time] = known
    if not by_row:
        return
    of, numbers = tier.table.c, {number for _, number in by_row}
    these = of.part.in_({part for part, _ in by_row}), of.series.between(min(numbers), max(numbers))
    for row in connection.execute(select(tier.table).where(*these)):
        known_steps = by_row.get((row.part, row.series), {})
        for time, earlier in unpacked(tier, row).rows() if known_steps else ():
            known_steps[time] = earlier.then(known_steps[time]) if time in known_steps else earlier
    rows = [packed(tier, part, number, steps) for (part, number), steps in sorted(by_row.items())]
    schema.put(connection, tier.table, rows)


def rows_of(connection: Connection, tier: Tier, where: ColumnElement[bool]) -> Iterator[tuple[int, int, Summary]]:
    """Yield (time in seconds, series, summary)."""
    for row in connection.execute(select(tier.table).where(where)):
        for time, known in unpacked(tier, row).rows():
            yield time, row.series, known


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
        row |= {f"{name}_{step}": value for name, value in zip(ROLLED_UP, numbers, strict=True)}
    return row


def unpacked(tier: Tier, row: Sequence[Any]) -> Steps:
    """Return the summaries in a row by their beginnings (s); none for a damaged one."""
    part, series, unit, base, *numbers = row
    with gap("%s of series %d from %d on", tier.table.name, series, part):
        steps = [i for i in range(tier.steps) if numbers[i]]
        n, last, below, above, over = ([numbers[at + i] for i in steps] for at in range(0, len(numbers), tier.steps))
        ends = [base + distance * unit for distance in last]
        low = [end - distance * unit for end, distance in zip(ends, below, strict=True)]
        high = [end + distance * unit for end, distance in zip(ends, above, strict=True)]
        total = [count * lowest + more * unit for count, lowest, more in zip(n, low, over, strict=True)]
        return Steps([part + i * tier.step_seconds for i in steps], n, low, high, total, ends)
    return NONE


def due(connection: Connection, host: int, last: int) -> int | None:
    """Return the last id of the oldest batches of a host, up to id ``last``, whose period is over, if any."""
    of = schema.batch.c
    condition = schema.of_host(schema.batch, host), schema.unsealed, of.id <= last
    query = select(of.id, of.ms, of.ticks).where(*condition).order_by(of.id).limit(MAX_TICKS)
    complete = period = None
    ticks = 0
    for number, ms, count in connection.execute(query).all():
        period = ms // PERIOD_MS if period is None else period
        if ms // PERIOD_MS != period or ticks >= MAX_TICKS:
            return complete
        complete, ticks = number, ticks + count
    return None


def seal(connection: Connection, host: int, last: int, free: Callable[[Connection, int], None]) -> None:
    """Seal the batches of a host up to id ``last`` into a chunk of that id, and ``free`` their places."""
    with connection.begin():
        series, processes = _samples(connection, host, last)
    # computed outside of a transaction, so that no one waits for it
    write = chunk_writer(last, series, processes) if series or processes else None
    with connection.begin():
        if write is not None:
            write(connection)
        connection.execute(update(schema.host).where(schema.host.c.id == host).values(sealed=last))
        free(connection, last)


def chunk_writer(number: int, series: Collection[Samples], processes: Sequence[Any]) -> Callable[[Connection], None]:
    """Return a function that writes samples as chunk ``number`` with their rollups within a transaction."""
    moments = [ms for _, times, _ in series for ms in (min(times), max(times))] + [ms for ms, _ in processes]
    row = {
        "id": number,
        "low_ms": min(moments),
        "high_ms": max(moments),
        "data": pack_sheet((which & schema.OWN_SERIES, times, values) for which, times, values in series),
        "processes": zlib.compress(json.dumps(processes).encode(), 9) if processes else None,
    }
    summaries = {
        tier: {
            (begin // 1000, which): known
            for which, times, values in series
            for begin, known in summarise(times, values, tier.step_seconds * 1000).items()
        }
        for tier in (MINUTES, HOURS)
    }

    def write(connection: Connection) -> None:
        connection.execute(schema.chunk.insert(), row)
        for tier, of_tier in summaries.items():
            write_summaries(connection, tier, of_tier)

    return write


def _samples(connection: Connection, host: int, last: int) -> tuple[list[Samples], list[Any]]:
    """Return the samples of each series in order of arrival, and the processes."""
    of = schema.batch.c
    query = select(of.id, of.ms, of.data).where(schema.of_host(schema.batch, host), schema.unsealed, of.id <= last)
    series: dict[int, tuple[array[int], array[int]]] = {}
    processes = []
    for number, ms, data in connection.execute(query.order_by(of.id)):
        with gap("ticks %d", number):
            ticks = parsed(ms, data)
            processes += ticks.processes
            for which, (times, more) in ticks.series.items():
                all_times, values = series.setdefault(which, (array("q"), array("q")))
                all_times.extend(times)
                values.extend(more)
    return [(which, *samples) for which, samples in series.items()], processes
