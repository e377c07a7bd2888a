"""Measures of trainings that run under ``wslgpud inside``, see ``wslgpud.training``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wslgpud.alerts.measures import MeasureContext, Signal
from wslgpud.risk import training_metrics as metrics
from wslgpud.sources import windows
from wslgpud.words import Fact

#: Windows keeps up to some hundred megabytes of each card in its own memory in any case.
SPILLED_BYTES = 1 << 30


def leaks(context: MeasureContext) -> Iterator[Signal]:
    """Return the memory leaked by a training, as a share of the room left when the leak began."""
    context.trained |= {labels[2] for labels in context.snapshot.family(metrics.KEPT)}
    found = []
    for labels, left in context.snapshot.family(metrics.STEPS_LEFT).items():
        pid, program, resource = labels
        grown, per_step = (context.snapshot.family(spec)[labels] for spec in (metrics.GROWN, metrics.PER_STEP))
        facts: dict[str, Fact] = {"program": program, "pid": int(pid), "steps_left": int(float(f"{left:.2g}"))}
        facts |= {"step_bytes": per_step, "grown_bytes": grown}
        if (seconds := context.snapshot.value(metrics.TIME_LEFT, *labels)) is not None:
            facts["eta_seconds"] = seconds
        found.append(Signal(resource, grown / (grown + left * per_step), facts))
    return _largest(found, context.trained)


def retries(context: MeasureContext) -> Iterator[Signal]:
    """Cards so full that PyTorch's allocator has to free its cache for new allocations."""
    before = context.last.family(metrics.RETRIES)
    for labels, count in context.snapshot.family(metrics.RETRIES).items():
        if count > before.get(labels, count):
            pid, program, resource = labels
            facts: dict[str, Fact] = {"program": program, "pid": int(pid), "count": count - before[labels]}
            if (pieces := context.snapshot.value(metrics.PIECES, *labels)) is not None:
                facts["pieces_bytes"] = pieces
            yield Signal(resource, 1.0, facts)


def lengths(context: MeasureContext) -> Iterator[Signal]:
    """Return the memory that a batch of the longest allowed sequences will lack, judging by the longest so far."""
    lacking = (
        Signal(resource, lacks, {"program": program, "pid": int(pid), "lacking_bytes": lacks})
        for (pid, program, resource), lacks in context.snapshot.family(metrics.MAX_LACKS).items()
    )
    return _largest(lacking, context.trained)


def slowed(context: MeasureContext) -> Iterator[Signal]:
    """Return the slowdown of steps relative to the fastest minute, while a card spills into Windows' memory."""
    now, found = context.snapshot, list[Signal]()
    family = now.family
    spilled = {
        f"gpu{gpu.index}": gpu.demoted_bytes
        if gpu.demoted_bytes is not None
        else now.value(windows.GPU_SHARED, gpu.name) or 0
        for gpu in now.gpus
    }
    times, usual = family(metrics.STEP_TIME), family(metrics.USUAL_STEP_TIME)
    for pid, program, resource in family(metrics.KEPT):
        each, once = times.get((pid, program)), usual.get((pid, program))
        if each and once and spilled.get(resource, 0) >= SPILLED_BYTES:
            facts: dict[str, Fact] = {"program": program, "pid": int(pid), "shared_bytes": spilled[resource]}
            facts |= {"times": f"{each / once:.1f}", "number": f"{1 / each:.2g}", "usual": f"{1 / once:.2g}"}
            found.append(Signal(resource, each / once, facts))
    return _largest(found, context.trained)


def _largest(found: Iterable[Signal], trained: Iterable[str]) -> Iterator[Signal]:
    """Yield the largest signal of each card; 0 where there is none: a training that has ended holds nothing."""
    largest = {signal.resource: signal for signal in sorted(found, key=lambda one: one.value)}
    yield from (largest.get(name) or Signal(name, 0.0) for name in sorted(trained))
