"""Notes of active runs in a tick: the growth to expect, and the rows of ``status``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from wslgpud.active_runs.notes import Noted
from wslgpud.model import Expected, ProcessSample
from wslgpud.sources.identity import Trust

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
