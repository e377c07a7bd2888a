"""Summaries of stretches of time: n, min, max, sum, last. Pure; what holds for parts holds for the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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


def merge(parts: Iterable[tuple[int, Summary]], step: int) -> dict[int, Summary]:
    """Return the summaries of longer steps from those of shorter ones, given in order of arrival."""
    found: dict[int, Summary] = {}
    for time, part in parts:
        begin = time // step * step
        found[begin] = found[begin].then(part) if begin in found else part
    return found
