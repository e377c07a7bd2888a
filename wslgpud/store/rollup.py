"""Summaries of stretches of time: n, min, max, sum, last. Pure; what holds for parts holds for the whole."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import truediv
from typing import NamedTuple

from wslgpud.model import Number


class Summary(NamedTuple):
    """What is known of one series over one step of time; ``last`` is the latest to arrive."""

    n: int
    low: Number
    high: Number
    total: Number
    last: Number

    def then(self, later: Summary) -> Summary:
        """Return the summary of both, ``later`` having arrived later."""
        return Summary(
            self.n + later.n,
            min(self.low, later.low),
            max(self.high, later.high),
            self.total + later.total,
            later.last,
        )


class Steps(NamedTuple):
    """Summaries by time, column by column: a year has 9,000 hours, and no call is made for each."""

    times: Sequence[int]
    n: Sequence[int]
    low: Sequence[Number]
    high: Sequence[Number]
    total: Sequence[Number]
    last: Sequence[Number]

    def rows(self) -> Iterable[tuple[int, Summary]]:
        """Return (beginning of the step, what is known of it)."""
        new = partial(tuple.__new__, Summary)  # NamedTuple's own runs as Python
        return zip(self.times, map(new, zip(*self[1:], strict=True)), strict=True)

    @property
    def means(self) -> Iterable[float]:
        """Return the mean of each."""
        return map(truediv, self.total, self.n)

    def between(self, start: int, end: int) -> Steps:
        """Return those that begin from ``start`` to ``end``, both included."""
        first, last = bisect_left(self.times, start), bisect_right(self.times, end)
        if (first, last) == (0, len(self.times)):
            return self
        return Steps(self.times[first:last], self.n[first:last], *(c[first:last] for c in self[2:]))

    def then(self, later: Steps) -> Steps:
        """Return these and what arrived later, which may belong to the same steps."""
        if not self.times or not later.times:
            return later if later.times else self
        place = bisect_left(self.times, later.times[0])
        end = dict(self.between(later.times[0], self.times[-1]).rows())
        for time, known in later.rows() if end else ():
            end[time] = end[time].then(known) if time in end else known
        end_columns = columns(end) if end else later
        before = Steps(self.times[:place], self.n[:place], *(column[:place] for column in self[2:]))
        values = ([*mine, *theirs] for mine, theirs in zip(before[2:], end_columns[2:], strict=True))
        return Steps([*before.times, *end_columns.times], [*before.n, *end_columns.n], *values)


def columns(known: Mapping[int, Summary]) -> Steps:
    """Return summaries by their beginnings as columns, by time."""
    times = sorted(known)
    return Steps(times, *zip(*(known[time] for time in times), strict=True)) if times else NONE


NONE = Steps([], [], [], [], [], [])


def summary(values: Sequence[Number]) -> Summary:
    """Summarise values (at least one) in order of arrival."""
    return Summary(len(values), min(values), max(values), sum(values), values[-1])


def summarise(times: Sequence[int], values: Sequence[Number], step: int) -> dict[int, Summary]:
    """Return a summary for each clock-aligned ``step`` that has values, by its beginning.

    ``times`` are in order of arrival, which need not be that of the clock.
    """
    found: dict[int, Summary] = {}
    for begin, first, end in stretches(times, step):
        part = summary(values[first:end])
        found[begin] = found[begin].then(part) if begin in found else part
    return found


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
    """Return the summaries of longer steps from those of shorter ones."""
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
