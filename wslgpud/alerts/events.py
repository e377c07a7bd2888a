"""What an event of the history says, from its facts; lines of the kernel and its drivers stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wslgpud.model import Event
from wslgpud.risk.attribution import full_name
from wslgpud.risk.wording import filled
from wslgpud.words import Fact, Said, template

_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "oom_kill": (
        template("the kernel killed {who} ({size_bytes}): the memory limit of {limited} was used up"),
        template("the kernel killed {who} ({size_bytes}): all memory was used up"),
    ),
    "vram_exhausted": (
        template("an allocation on {resource} has probably failed at {used_bytes}: {program} ended"),
        template("an allocation on {resource} has probably failed at {used_bytes}: much was free again"),
    ),
    "clock_jump": (
        template("the clock jumped forward by {forward_seconds}"),
        template("the clock jumped back by {back_seconds}"),
    ),
}


def told(event: Event) -> Said:
    """Return what happened; as it was written down where its facts do not say."""
    facts: dict[str, Fact] = dict(event.fields)
    if event.kind == "oom_kill" and "pid" in facts and "constraint" in facts:
        facts["who"] = full_name(str(facts.get("victim", "")), int(event.fields["pid"]))
        facts["limited"] = str(facts.get("cgroup", "")) if facts["constraint"] == "CONSTRAINT_MEMCG" else ""
    if event.kind == "clock_jump" and "seconds" in facts:
        facts["forward_seconds" if float(event.fields["seconds"]) > 0 else "back_seconds"] = facts["seconds"]
    known = {name: value for name, value in facts.items() if value != ""}
    return filled(_TEXTS.get(event.kind, ()), known) or event.text
