"""Metrics that trainings report; see ``wslgpud.training``."""

from __future__ import annotations

from functools import partial

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
