"""Messages about active runs: a line for each, and the names of their phases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wslgpud.words import TEMPLATES, Message, MessageLike, say, says

#: the phases that a note may name, see ``wslgpud.stress.worker``; a guarded command has none
PHASES: Mapping[str, str] = TEMPLATES["phase"]


def phase(word: str) -> MessageLike:
    """Return the name of a phase; an unknown one unchanged."""
    return Message(PHASES[word]) if word in PHASES else word


def headline(document: Mapping[str, Any]) -> Message:
    """Return the line about an active run in ``status``."""
    stress = document["kind"] == "stress"
    facts = {"what": document["what"], "details": tuple(_details(document, stress=stress))}
    if document["kind"] == "training":
        return say("training: {what}: {details}", **facts)
    return say("stress run of {what}: {details}", **facts) if stress else say("guarded: {what}: {details}", **facts)


def _details(document: Mapping[str, Any], *, stress: bool) -> Iterator[MessageLike]:
    if "steps" in document:
        yield from _of_training(document)
    elif stress or not document["phase"]:
        yield phase(document["phase"])
    if (share := document.get("done_ratio")) is not None:
        yield say("{done_ratio} done", done_ratio=share)
    yield say("for {elapsed_seconds}", elapsed_seconds=document["elapsed_seconds"])
    if (left := document.get("left_seconds")) is not None:
        about = say("about {left_seconds} left", left_seconds=left) if stress else None
        yield about or say("time limit in {left_seconds}", left_seconds=left)
    if peak := document.get("peak_bytes"):
        yield say("peak {peak_bytes}", peak_bytes=peak)
    if compilers := document.get("waiting"):
        yield waiting(int(compilers))


def _of_training(document: Mapping[str, Any]) -> Iterator[MessageLike]:
    yield says("{count} step", "{count} steps", count=int(document["steps"]))
    if (seconds := document.get("step_seconds")) is not None and seconds < 1:
        yield say("{number} steps per second", number=f"{1 / seconds:.1f}")
    elif seconds is not None:
        yield say("{step_seconds} each", step_seconds=seconds)
    if (kept := document.get("kept_bytes")) is not None:
        yield say("keeps {kept_bytes}", kept_bytes=kept)
    if (growth := document.get("step_growth_bytes")) is not None:
        yield say("{step_bytes} more with each step", step_bytes=growth)
    if (batch := document.get("batch")) is not None and document.get("largest_batch") == batch:
        yield say("batch {batch}, a larger one will not fit", batch=int(batch))


def waiting(compilers: int) -> Message:
    """Return the message about compilers that wait for memory."""
    return says("{count} compiler waits", "{count} compilers wait", count=compilers)
