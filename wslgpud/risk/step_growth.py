"""Memory that a training keeps with each step, estimated from its use after each one. Pure.

Between two steps a program holds its weights, optimizer states and gradients, and nothing of the work on a batch. That
floor stays where it is for as long as the training lasts, unless something is kept that should not be: a leak shows
there hundreds of steps before the allocator takes more from the card, because its cache takes up the first gigabyte.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

#: Rises in a row that make growth: with even noise seven blocks come in rising order once in 5,040.
RISES = 6
#: less is the noise of small tensors, and of Python's own memory on the host
LEAST_BYTES = 16 << 20
#: The floors must rise by so many times their spread within a block, so that batches of varying length, whose last
#: outputs are still held, are no growth whatever order they come in.
SPREADS = 2.0
#: no single step up may account for more of the growth: a second model, or averaging of weights that begins
MOST_AT_ONCE_RATIO = 0.5
#: Where the peak rises faster than the floor, it is the work that grows (longer sequences), not what is kept.
MOST_PEAK_RISES = 2.0


class StepBlock(NamedTuple):
    """Several readings: the last one's step, the least and the most in use, the peak up to then (0: unknown)."""

    step: int
    least: int
    most: int
    peak: int


class StepGrowth(NamedTuple):
    """Bytes kept more with each step, and how many over how many steps that has made so far."""

    step_bytes: float
    grown_bytes: int
    steps: int


def step_growth(scales: Sequence[Sequence[StepBlock]]) -> StepGrowth | None:
    """Return how what is kept grows, None where it does not; ``scales`` from the finest blocks to the coarsest.

    The coarsest scale that shows it counts: it has seen most of it.
    """
    known = [block for blocks in scales for block in blocks]
    newest = scales[0][-1] if scales and scales[0] else None
    # What has been given back since then is kept no more, however long the coarsest block takes to show that.
    held = ([block for block in blocks if newest and newest.most >= block.least] for blocks in reversed(scales))
    found = (_of(blocks, known) for blocks in held)
    return next((growth for growth in found if growth is not None), None)


def _of(blocks: Sequence[StepBlock], known: Sequence[StepBlock]) -> StepGrowth | None:
    seen = blocks[-RISES - 1 :]
    rises = [after.least - before.least for before, after in pairwise(seen)]
    if len(rises) < RISES or min(rises) <= 0 or seen[-1].step <= seen[0].step:
        return None
    first, last = seen[0], seen[-1]
    grown = last.least - first.least
    spread = median(block.most - block.least for block in seen)
    even = grown >= max(LEAST_BYTES, SPREADS * spread) and max(rises) <= MOST_AT_ONCE_RATIO * grown
    work_grows = last.peak - first.peak > MOST_PEAK_RISES * grown
    # What was in use before without harm: an epoch's results are collected, and dropped, again and again.
    before = any(block.step < first.step and block.most >= last.least for block in known)
    if not even or work_grows or before:
        return None
    each = grown / (last.step - first.step)
    for block in sorted(known, reverse=True):  # it may have gone on like this for longer than these blocks reach
        if block.step < first.step and 0.5 <= (first.least - block.least) / each / (first.step - block.step) <= 2:
            first = block
    return StepGrowth(each, last.least - first.least, last.step - first.step)
