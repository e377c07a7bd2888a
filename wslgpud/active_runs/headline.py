"""Says what runs: a stress run or a guarded command, how far it is and how long it may still take. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wslgpud.words import Message, Said, say, says, template

#: what the words of a note stand for, see ``wslgpud.stress.worker``; a guarded command has no phases
PHASES: Mapping[str, str] = {
    "": template("starting"),
    "begin": template("waking the GPU"),
    "ladder": template("trying sizes"),
    "fragmentation": template("testing for fragments"),
    "fill": template("filling"),
    "bandwidth": template("measuring bandwidth"),
    "patterns": template("checking data"),
    "beyond": template("going past the limit"),
    "soak": template("soaking"),
    "release": template("giving memory back"),
}


def phase(word: str) -> Said:
    """Return what a phase is called; one that is not known as it calls itself."""
    return Message(PHASES[word]) if word in PHASES else word


def headline(document: Mapping[str, Any]) -> Message:
    """Return in one line what one of ``running`` says, see ``wslgpud.active_runs.reader``."""
    stress = document["kind"] == "stress"
    facts = {"what": document["what"], "details": tuple(_details(document, stress=stress))}
    return say("stress run of {what}: {details}", **facts) if stress else say("guarded: {what}: {details}", **facts)


def _details(document: Mapping[str, Any], *, stress: bool) -> Iterator[Said]:
    if stress or not document["phase"]:
        yield phase(document["phase"])
    if (share := document.get("done_ratio")) is not None:
        yield say("{done_ratio} done", done_ratio=share)
    yield say("for {elapsed_seconds}", elapsed_seconds=document["elapsed_seconds"])
    if (left := document.get("left_seconds")) is not None:
        about = say("about {left_seconds} left", left_seconds=left) if stress else None
        yield about or say("time is up in {left_seconds}", left_seconds=left)
    if peak := document.get("peak_bytes"):
        yield say("peak {peak_bytes}", peak_bytes=peak)
    if compilers := document.get("waiting"):
        yield waiting(int(compilers))


def waiting(compilers: int) -> Message:
    """Say how many compilers wait for memory."""
    return says("{count} compiler waits", "{count} compilers wait", count=compilers)
