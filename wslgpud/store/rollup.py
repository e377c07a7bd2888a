"""Summaries of stretches of time: n, min, max, sum, last. Pure; what holds for parts holds for the whole."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
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

    @property
    def constant(self) -> bool:
        """Tell whether all values were the same."""
        return self.low == self.high


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

    def between(self, start: int, end: int) -> Steps:
        """Return those that begin from ``start`` to ``end``, both included."""
        first, last = bisect_left(self.times, start), bisect_right(self.times, end)
        if (first, last) == (0, len(self.times)):
            return self
        return Steps(self.times[first:last], self.n[first:last], *(c[first:last] for c in self[2:]))

    def then(self, later: Steps) -> Steps:
        """Return these and later ones."""
        values = ([*mine, *theirs] for mine, theirs in zip(self[2:], later[2:], strict=True))
        return Steps([*self.times, *later.times], [*self.n, *later.n], *values)


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


def merge(steps: Steps, step: int) -> dict[int, Summary]:
    """Return the summaries of longer steps from those of shorter ones."""
    _, n, low, high, total, last = steps
    return {
        begin: Summary(
            sum(n[first:end]), min(low[first:end]), max(high[first:end]), sum(total[first:end]), last[end - 1]
        )
        for begin, first, end in stretches(steps.times, step)
    }
