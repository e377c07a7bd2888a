"""Staircases: rises between plateaus, whose next step may not fit.

Doubling batch sizes, workers that start one after the other, epochs that retain something: between two steps nothing
grows, so a slope shows nothing; size and regularity of the steps do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise, takewhile
from typing import NamedTuple

from wslgpud.risk.levels import Danger

# Numbers without a source of their own are tuned on the recordings (README.md).
#: Steps remembered, and how many make a staircase: three alike come by chance.
MAX_STEPS, MIN_STEPS = 8, 4
#: Parts of the smallest step: a block that rises by the first is part of one, a fall by the second ends the staircase.
RISING, FALLING = 0.5, 1.5
#: Blocks without a rise that make a plateau: one may be a pause within a step.
PLATEAU_BLOCKS = 2
#: Least ratio of a step to the one before (the largest is ``MAX_GROWTH``); and by how much the next one is expected to
#: grow at most: batches and buffers double.
MIN_RATIO, MAX_RATIO = 0.6, 2.5
#: A step this many times as high as the one before is no step of this staircase: batches double.
MAX_GROWTH = 3.5
#: Largest ratio of the longest to the shortest wait between regular steps.
PUNCTUAL = 2.2
#: The same with waits in proportion to the steps' sizes, where they come later and later: a starting training's do not.
IN_PROPORTION = 1.5
#: The next step is due from the first part of the mean wait on, until the second of the longest.
DUE, LATE_WAITS = 0.2, 3.0
#: Part of what the steps gained that may come on the plateaus: more is growth, which has its own rule.
MAX_CREEP = 0.3
#: Steps ahead that are counted: so many are too far away to matter.
MAX_AHEAD = 50.0
#: An alarm waits for this many times the time of the steps so far.
PATIENCE = 2.5
#: Smallest rise in a stack: large allocations, one on top of another, at any time.
STACKED = 0.04
#: A stack counts when less than this is left.
STACK_HEADROOM = 0.25
#: Probability that another allocation follows that is as large as two of the last four.
STACK_BELIEF = 0.5
#: Smallest ratio of two steps of about the same size.
ALIKE = 0.8
LEDGER_SCALES = (0, 2, 4, 6, 8, 10)


class _Step(NamedTuple):
    began: float
    ended: float
    size: float
    height: float


class _Next(NamedTuple):
    """A step that is expected: how surely, when, its usual wait, after how many steps since when, and its size."""

    likely: float
    eta: float
    wait: float
    steps: int
    size: float
    began: float


class StepLedger:
    """The last steps at one time scale, from the maxima of its blocks."""

    def __init__(self, least: float) -> None:
        """Take the smallest rise that counts as a step, as a share of the capacity."""
        self._least = least
        self._steps: deque[_Step] = deque(maxlen=MAX_STEPS)
        self._last: float | None = None
        self._run_from: float | None = None
        self._t = self._run_t = self._run_end = 0.0
        self._flat = 0

    def feed(self, t: float, used: float) -> None:
        """Add the next block."""
        last, before = self._last, self._t
        self._last, self._t = used, t
        if last is None:
            return
        rise = used - last
        if rise <= -FALLING * self._least:
            self._steps.clear()
            self._run_from = None
        elif rise >= RISING * self._least:
            if self._run_from is None:
                self._run_from, self._run_t = last, before
            self._flat, self._run_end = 0, t
        elif self._run_from is not None:
            self._flat += 1
            if self._flat < PLATEAU_BLOCKS:
                return
            size = last - self._run_from
            if size >= self._least:
                self._steps.append(_Step(self._run_t, self._run_end, size, last))
            self._run_from = None

    def danger(self, t: float, headroom: float, belief: Callable[[float, float], float]) -> Danger | None:
        """Return the danger of the current staircase, or stack, at ``t`` with this share left; None without one.

        ``belief`` returns the certainty for a height and the time at which the climb to it began.
        """
        if len(self._steps) < MIN_STEPS or self._run_from is not None:
            return None
        regular = self._regular(t, 1.0 - headroom)
        awaited = self._next(t, headroom, regular) if regular else self._next_of_stack(t, headroom)
        if awaited is None:
            return None
        believed = belief(1.0 - headroom, awaited.began)
        return Danger(
            "steps",
            awaited.likely * believed,
            awaited.eta,
            awaited.wait,
            early_seconds=max(awaited.eta, awaited.wait),
            still_seconds=PATIENCE * awaited.steps * awaited.wait,
            next_step=awaited.size,
            last_step=self._steps[-1].size,
            alike=all(ALIKE * awaited.size <= step.size <= awaited.size / ALIKE for step in [*self._steps][-2:]),
            belief=believed,
        )

    def _next(self, t: float, headroom: float, regular: int) -> _Next:
        """Return the next of so many ``regular`` steps."""
        steps = self._steps
        sizes = [step.size for step in steps]
        interval = (steps[-1].began - steps[-4].began) / 3.0
        ratio = 1.0
        if sizes[-1] > sizes[-2] > sizes[-3]:
            ratio = min(MAX_RATIO, (sizes[-1] / sizes[-3]) ** 0.5)
        if not self._punctual():  # a buffer that doubles takes as long again to fill
            interval = ratio * (steps[-1].began - steps[-2].began)
        size = following = sizes[-1] * ratio
        left, count = headroom, 0.0
        while left > size and count < MAX_AHEAD:
            left -= size
            count += 1.0
            size *= ratio
        count += min(1.0, left / size)
        climbed = sum(sizes[-regular - 1 :])
        likely = min(regular / (regular + count), climbed / (climbed + headroom))
        eta = max(0.0, interval * max(1.0, count) - (t - steps[-1].ended))
        return _Next(likely, eta, interval, regular + 1, following, steps[-regular - 1].began)

    def _next_of_stack(self, t: float, headroom: float) -> _Next | None:
        """Return the next of irregular allocations that pile up, once another would not fit; else None.

        Models, trials of a search, buffers: they are kept, and nothing shows when the next one comes.
        """
        last = [*self._steps][-MIN_STEPS:]
        sizes = sorted(step.size for step in last)
        following = sizes[-2]  # the largest may be a program's final pool
        waits = [b.began - a.began for a, b in pairwise(last)]
        still, on_top = t - last[-1].ended, 1.0 - headroom - last[-1].height
        few = headroom >= STACK_HEADROOM or sizes[0] < STACKED
        if few or following <= headroom or on_top >= STACKED or still > LATE_WAITS * max(waits):
            return None
        wait = sum(waits) / len(waits)
        return _Next(STACK_BELIEF, max(0.0, wait - still), wait, len(self._steps), following, last[0].began)

    def _punctual(self) -> bool:
        """Return whether the last steps came at about equal intervals."""
        last = [b.began - a.began for a, b in pairwise([*self._steps][-4:])]
        return max(last) <= PUNCTUAL * min(last)

    def _regular(self, t: float, used: float) -> int:
        """Return how many of the last steps were regular in time and size; 0 if this is no staircase."""
        steps = self._steps
        if used - steps[-1].height > MAX_GROWTH * steps[-1].size:
            return 0  # the latest rise is no step
        gaps, sizes = [b.began - a.began for a, b in pairwise(steps)], [step.size for step in steps]
        punctual = self._punctual()
        if not punctual:
            # For a buffer that doubles when full, each step is in proportion to the wait before it.
            gaps = [gap * sizes[-1] / size for gap, size in zip(gaps, sizes[1:], strict=True)]
        shortest, longest = min(gaps[-3:]), max(gaps[-3:])
        still = t - steps[-1].ended
        due = DUE * sum(gaps[-3:]) / 3.0 <= still <= LATE_WAITS * longest
        alike = MIN_RATIO <= sizes[-1] / sizes[-2] <= MAX_GROWTH
        creep = steps[-1].height - steps[0].height - sum(sizes[1:])
        spread = PUNCTUAL if punctual else IN_PROPORTION
        if longest > spread * shortest or not due or not alike or creep > MAX_CREEP * sum(sizes[1:]):
            return 0
        alike_before = takewhile(lambda gap: shortest / PUNCTUAL <= gap <= longest * PUNCTUAL, reversed(gaps[:-3]))
        return 3 + len([*alike_before])
