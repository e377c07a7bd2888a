"""What active runs announce, in a tick: the growth to expect, the figures of trainings, and the rows of ``status``.

What a run says counts only for its own process: all it can cause is a warning that this one leaks, or will grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from wslgpud.active_runs import Noted
from wslgpud.model import Expected, Forecast, GpuProcess, GpuSample, Number, ProcessSample, Reading, Sample, Snapshot
from wslgpud.risk import training_metrics as metrics
from wslgpud.risk.training_metrics import StepBlock, step_growth
from wslgpud.sources.procfs import Trust

#: limit of a note's memory: more than any machine has
_MAX_MEMORY_BYTES = 1 << 50
#: fields of a note that ``status`` shows unchanged; metrics show more of a training
_SHOWN = ("kind", "what", "phase", "pid", "done_ratio", "verified_bytes", "peak_bytes", "waiting")
_SHOWN_OF_TRAININGS = ("steps", "step_seconds", "batch")


def running(
    notes: Iterable[Noted], trusted: Trust, now_mono: float, trainings: Mapping[int, Mapping[str, Any]] = {}
) -> list[dict[str, Any]]:
    """Return the active runs for ``status``; stress runs only of trusted users.

    ``trainings`` adds details of each training, by pid.
    """
    counted = (note for note in notes if note.document["kind"] != "stress" or trusted.covers(note.who))
    return [{**_shown(note.document, now_mono), **trainings.get(note.who.pid, {})} for note in counted]


def _shown(document: Mapping[str, Any], now: float) -> dict[str, Any]:
    names = (*_SHOWN, *_SHOWN_OF_TRAININGS) if document["kind"] == "training" else _SHOWN
    shown = {name: document[name] for name in names if name in document}
    shown["elapsed_seconds"] = round(max(0.0, now - document["began_mono"]), 1)
    if "ends_mono" in document:
        shown["left_seconds"] = round(max(0.0, document["ends_mono"] - now), 1)
    return shown


def expected(notes: Iterable[Noted], processes: Iterable[ProcessSample]) -> tuple[Expected, ...]:
    """Return the peaks that guarded commands are expected to reach.

    A claim covers processes of its own user only (root may run others' for them) and replaces the daemon's own
    experience with them. So no user can hide another's growth; an excessive claim costs a false warning that names the
    claimant.
    """
    owners = {process.pid: process.uid for process in processes}
    expectations = []
    for note in notes:
        (user,) = note.who.uids
        pids = tuple(
            pid for pid in note.document.get("pids", ()) if pid in owners and (not user or owners[pid] == user)
        )
        used = note.document.get("used", {})
        who = f"{note.document['who']} (guard {note.who.pid})"
        expectations += [
            Expected(str(name), who, peak, taken, pids)
            for name, peak in note.document.get("peaks", {}).items()
            if 0 < peak < _MAX_MEMORY_BYTES and 0 <= (taken := used.get(name, 0)) < _MAX_MEMORY_BYTES
        ]
    return tuple(expectations)


#: limit of steps, and of seconds until memory is full; no training runs longer
_MAX_LEFT = 1e8
_RUN = {
    "steps": metrics.STEPS,
    "step_seconds": metrics.STEP_TIME,
    "usual_step_seconds": metrics.USUAL_STEP_TIME,
    "tokens": metrics.TOKENS,
    "pinned": metrics.PINNED,
}
_PLAIN = {
    "used": metrics.KEPT,
    "peak": metrics.PEAK,
    "reserved": metrics.RESERVED,
    "pieces": metrics.PIECES,
    "retries": metrics.RETRIES,
    "failures": metrics.FAILURES,
}


def readings(notes: Iterable[Noted], snapshot: Snapshot, forecasts: Iterable[Forecast]) -> Iterator[Reading]:
    """Yield the figures of trainings, and how long the memory of each lasts given the forecasts' headroom."""
    headroom = {forecast.resource: forecast.headroom_bytes for forecast in forecasts}
    resources = {"ram": "ram"} | {name: f"gpu{gpu.index}" for name, gpu in _by_name(snapshot.gpus).items()}
    for note in notes:
        if note.document["kind"] != "training":
            continue
        process = (str(note.who.pid), str(note.document["what"]))
        yield from (Reading(spec, note.document[name], process) for name, spec in _RUN.items() if name in note.document)
        for memory in note.document["memory"]:
            if resource := resources.get(memory["name"]):
                yield from _of(memory, (*process, resource), headroom.get(resource), note.document)


def _by_name(gpus: tuple[GpuSample, ...]) -> dict[str, GpuSample]:
    """Return the GPUs by the names that trainings have for them; a training need not name the only one."""
    return {gpu.uuid: gpu for gpu in gpus} | ({"": gpus[0]} if len(gpus) == 1 else {})


def claimed(notes: Iterable[Noted], gpus: tuple[GpuSample, ...]) -> tuple[GpuSample, ...]:
    """Return the GPUs with the memory that trainings report for themselves; none can report for another process."""
    cards = _by_name(gpus)
    programs: dict[str, list[GpuProcess]] = {}
    for note in notes:
        for memory in note.document["memory"] if note.document["kind"] == "training" else ():
            if (card := cards.get(memory["name"])) and "reserved" in memory:
                program = GpuProcess(note.who.pid, str(note.document["what"]), memory["reserved"])
                programs.setdefault(card.uuid, []).append(program)
    return tuple(replace(gpu, self_reported=tuple(programs[gpu.uuid])) if gpu.uuid in programs else gpu for gpu in gpus)


def _of(
    memory: Mapping[str, Any], labels: tuple[str, ...], headroom: int | None, run: Mapping[str, Any]
) -> Iterator[Reading]:
    known = {name: value for name, value in memory.items() if name in _PLAIN and (value or name != "peak")}
    yield from (Reading(_PLAIN[name], value, labels) for name, value in known.items())
    # Memory that the allocator has reserved and never used is room, too.
    room = None if headroom is None else headroom + max(0, memory.get("reserved", 0) - memory["peak"])
    work = memory["peak"] - memory["used"]
    if room is not None and work > 0:
        if batch := run.get("batch"):
            yield Reading(metrics.MAX_BATCH, batch + room * batch // work, labels)
        if (length := run.get("length")) and (longest := run.get("longest", 0)) >= length:
            # Activations, logits, and attention that does not keep its scores all grow in proportion.
            yield Reading(metrics.MAX_LACKS, max(0, work * (longest - length) // length - room), labels)
    scales = [[StepBlock(*block) for block in blocks] for blocks in memory["scales"]]
    if (growth := step_growth(scales)) is None:
        return
    yield Reading(metrics.PER_STEP, round(growth.step_bytes), labels)
    yield Reading(metrics.GROWN, growth.grown_bytes, labels)
    if room is not None:
        left, step_seconds = room / growth.step_bytes, run.get("step_seconds")
        if left <= _MAX_LEFT:
            yield Reading(metrics.STEPS_LEFT, round(left), labels)
        if step_seconds is not None and left * step_seconds <= _MAX_LEFT:
            yield Reading(metrics.TIME_LEFT, round(left * step_seconds), labels)


def shown(trained: Sample) -> dict[int, dict[str, Number]]:
    """Return, by pid, the figures of a training for ``status``: on the GPU where it holds most, else in RAM."""
    fullest: dict[int, tuple[str, ...]] = {}
    families = {name: trained.families.get(spec.name, {}) for name, spec in _FIGURES.items()}
    for labels, kept in sorted(families["kept_bytes"].items(), key=lambda one: (one[0][2] != "ram", one[1])):
        if kept:
            fullest[int(labels[0])] = labels
    return {
        pid: {name: values[labels] for name, values in families.items() if labels in values}
        for pid, labels in fullest.items()
    }


_FIGURES = {
    "kept_bytes": metrics.KEPT,
    "peak_bytes": metrics.PEAK,
    "step_growth_bytes": metrics.PER_STEP,
    "largest_batch": metrics.MAX_BATCH,
}
