"""Metrics that trainings report (see ``wslgpud.training``), and the memory retained with each step. Pure.

Between two steps a program holds its weights, optimizer states and gradients, and nothing of the work on a batch. That
floor is constant for the whole training unless something leaks: a leak shows there hundreds of steps before the
allocator takes more from the card, because its cache absorbs the first gigabyte.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from wslgpud.metrics import NameLimit, counter, gauge

#: a name is a process: each run is a separate series, up to a limit
PROCESSES = NameLimit("training", "pid", 32)
_gauge = partial(gauge, names=(PROCESSES,))
_counter = partial(counter, names=(PROCESSES,))
_OF_MEMORY = ("pid", "program", "resource")

STEPS = _counter("training_steps", "Optimizer steps of a training.", "pid", "program")
STEP_TIME = _gauge("training_step_seconds", "Time of a step, over the last minute.", "pid", "program", decimals=4)
USUAL_STEP_TIME = _gauge(
    "training_usual_step_seconds", "Time of a step in the fastest minute so far.", "pid", "program", decimals=4
)
TOKENS = _counter(
    "training_tokens",
    "Tokens processed by a training, including padding; only with Hugging Face's Trainer.",
    "pid",
    "program",
)
PINNED = _gauge("training_pinned_bytes", "Host memory pinned by PyTorch.", "pid", "program")
KEPT = _gauge("training_kept_bytes", "Memory in use after a training's step: retained memory.", *_OF_MEMORY)
PEAK = _gauge("training_peak_bytes", "Peak use of PyTorch's allocator.", *_OF_MEMORY)
RESERVED = _gauge("training_reserved_bytes", "Memory reserved on the card by PyTorch's allocator.", *_OF_MEMORY)
PIECES = _gauge(
    "training_fragmented_bytes", "Unused parts of blocks in use, which are lost to other allocations.", *_OF_MEMORY
)
RETRIES = _counter(
    "training_allocation_retries",
    "Times that the card was full and PyTorch's allocator had to free its cache first.",
    *_OF_MEMORY,
)
FAILURES = _counter("training_allocation_failures", "Allocations that failed for lack of VRAM.", *_OF_MEMORY)
PER_STEP = _gauge(
    "training_growth_per_step_bytes",
    "Memory that a training retains with each step; absent while nothing grows.",
    *_OF_MEMORY,
)
GROWN = _gauge(
    "training_growth_bytes", "Total growth of retained memory since its start, as far back as known.", *_OF_MEMORY
)
STEPS_LEFT = _gauge("training_steps_to_full", "Steps until the memory is full at this rate.", *_OF_MEMORY)
MAX_BATCH = _gauge(
    "training_largest_batch",
    "Samples that fit in a batch, given the peak per sample; only with Hugging Face's Trainer.",
    *_OF_MEMORY,
)
MAX_LACKS = _gauge(
    "training_longest_lacks_bytes",
    "Memory missing for a batch of the longest allowed sequences; 0 if it fits.",
    *_OF_MEMORY,
)
TIME_LEFT = _gauge("training_time_to_full_seconds", "Time until then, at the pace of the last minute.", *_OF_MEMORY)

METRICS = (
    *(STEPS, STEP_TIME, USUAL_STEP_TIME, TOKENS, PINNED, KEPT, PEAK, RESERVED, PIECES),
    *(RETRIES, FAILURES, PER_STEP, GROWN, STEPS_LEFT, TIME_LEFT, MAX_BATCH, MAX_LACKS),
)

#: Consecutive rises that count as growth: by chance, seven blocks are in rising order once in 5,040.
RISES = 6
#: below this it is noise from small tensors, and from Python's own memory on the host
MIN_BYTES = 16 << 20
#: The floors must rise by this many times their spread within a block, so that batches of varying length, whose last
#: outputs are still held, are no growth in whatever order they come.
SPREADS = 2.0
#: no single step up may account for more of the growth: a second model, or averaging of weights that begins
MAX_AT_ONCE_RATIO = 0.5
#: Where the peak rises faster than the floor, the work grows (longer sequences), not the retained memory.
MAX_PEAK_RISES = 2.0


class StepBlock(NamedTuple):
    """A block of readings: the step of the last one, minimum and maximum use, the peak so far (0: unknown)."""

    step: int
    least: int
    most: int
    peak: int


class StepGrowth(NamedTuple):
    """Bytes retained per step, and the total so far over how many steps."""

    step_bytes: float
    grown_bytes: int
    steps: int


def step_growth(scales: Sequence[Sequence[StepBlock]]) -> StepGrowth | None:
    """Return the growth of retained memory, None without any; ``scales`` from the finest blocks to the coarsest.

    The coarsest scale that shows growth counts: it has seen most of it.
    """
    known = [block for blocks in scales for block in blocks]
    newest = scales[0][-1] if scales and scales[0] else None
    # Memory freed since then is no longer retained, however long the coarsest block takes to show that.
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
    even = grown >= max(MIN_BYTES, SPREADS * spread) and max(rises) <= MAX_AT_ONCE_RATIO * grown
    work_grows = last.peak - first.peak > MAX_PEAK_RISES * grown
    # Use seen before without harm: an epoch's results are collected, and dropped, again and again.
    before = any(block.step < first.step and block.most >= last.least for block in known)
    if not even or work_grows or before:
        return None
    each = grown / (last.step - first.step)
    for block in sorted(known, reverse=True):  # growth may have started before the first of these blocks
        if block.step < first.step and 0.5 <= (first.least - block.least) / each / (first.step - block.step) <= 2:
            first = block
    return StepGrowth(each, last.least - first.least, last.step - first.step)
