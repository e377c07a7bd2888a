"""Rollups by minute and hour: n, min, max, sum, last; and the sealing of ticks, which writes them.

One period is one transaction, exactly once: the ticks are freed in the same transaction that adds their blocks and
rollups, so a crash or restart neither loses nor repeats any. Ticks left from before a downtime are sealed as soon as
newer ones arrive.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, groupby
from math import gcd
from typing import Any, NamedTuple

from sqlalchemy import Connection, select, update

from wslgpud.store import schema
from wslgpud.store.codec import Samples, pack_sheet, parsed
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


def write_summaries(connection: Connection, tier: Tier, new: Mapping[tuple[int, int], Summary]) -> None:
    """Merge summaries, by beginning (s) and series, into those that are there.

    A minute exists already if the clock went back or a chunk was closed within it, an hour from its first chunk on.
    """
    by_row: dict[tuple[int, int], Steps] = {}
    for (time, number), known in new.items():
        part = time // tier.part_seconds * tier.part_seconds
        by_row.setdefault((part, number), {})[time] = known
    if not by_row:
        return
    of, numbers = tier.table.c, {number for _, number in by_row}
    these = of.part.in_({part for part, _ in by_row}), of.series.between(min(numbers), max(numbers))
    for row in connection.execute(select(tier.table).where(*these)):
        if later := by_row.get((row.part, row.series)):
            earlier = dict(unpacked(tier, row))
            add(earlier, later.items())
            by_row[row.part, row.series] = earlier
    rows = [packed(tier, part, number, steps) for (part, number), steps in sorted(by_row.items())]
    schema.put(connection, tier.table, rows)


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
        "samples": sum(len(times) for _, times, _ in series),
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
