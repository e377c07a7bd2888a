"""How an incident ended, in a message: a fold over its rows has all that this needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from wslgpud.alerts.incidents import RECOVERED_SHARE, Incident, story
from wslgpud.alerts.rules import MEMORY, UNCLEAN_END, is_momentary
from wslgpud.model import Forecast, ProcessSample, Transition
from wslgpud.words import Fact, Message, Said, filled, say, template

_KILLED = template("killed {killed_clock}[, last {last_clock}], [warned {lead_seconds} before|not warned]")
#: by what ``end_facts`` has found
_ENDS = {
    "exited": template("program ended"),
    "gone": template("ended with {resource}"),
    "freed": template("memory given back, {room_bytes} left"),
    "stopped": template("stopped by itself, {room_bytes} left"),
}


def outcome(incident: Incident) -> Message | None:
    """Return how an incident ended, or that it has not; None of what only happens at a moment."""
    if incident.kill is None and (incident.rule == UNCLEAN_END or is_momentary(incident.rule)):
        return None
    if incident.kill is None and incident.closed_wall is None:
        return say("still open")
    ended = closing(incident, incident.last) if story(incident.rule) == MEMORY else None
    lasted = max(0.0, (incident.closed_wall or incident.changed_wall) - incident.opened_wall)
    return ended or say("over after {lasted_seconds}", lasted_seconds=lasted)


def closing(incident: Incident, row: Transition) -> Message:
    """Return how an exhaustion ended, for the message that says so; an empty one where nobody knows."""
    facts: dict[str, Fact] = {"resource": row.resource}
    if incident.kill is None:
        if row.forecast is not None:
            facts["room_bytes"] = (row.forecast.headroom_bytes, row.forecast.capacity_bytes)
        return filled(_ENDS.get(str(row.facts.get("end")), ""), facts)
    facts["killed_clock"] = incident.killed_wall or 0.0
    if (last := incident.kill_told_wall or 0.0) > incident.kill.wall:
        facts["last_clock"] = last
    if incident.lead_seconds is not None:
        facts["lead_seconds"] = incident.lead_seconds
    return filled(_KILLED, facts)


def victim(kill: Transition) -> Said:
    """Return who was killed, marked where that is only inferred; empty where nobody knows."""
    if "likely" in kill.facts:
        return say("probably {who}", who=kill.facts["likely"])
    return str(kill.facts.get("who", ""))


def with_victim(forecast: Forecast, kill: Transition | None) -> Forecast:
    """Return a forecast that tells of a kill with the victim that the kernel or its counters have named."""
    if forecast.cause != "killed" or kill is None:
        return forecast
    return replace(forecast, who=victim(kill) or forecast.who)


def end_facts(
    incident: Incident, row: Transition, processes: Iterable[ProcessSample], *, there: bool
) -> Mapping[str, Fact]:
    """Return what the row with which an exhaustion ends should keep of how it did.

    Args:
        incident: as it was until then.
        row: the row.
        processes: what runs now.
        there: whether the resource itself still is; a container may have ended.
    """
    if row.forecast is None or incident.kill is not None:
        return {}
    alive = {process.pid for process in processes}
    who = grower(incident)
    if who is not None and alive and who not in alive:
        return {"end": "exited"}
    if not there:
        return {"end": "gone"}
    left, whole = row.forecast.headroom_bytes, row.forecast.capacity_bytes
    least = left if incident.least_bytes is None else incident.least_bytes[0]
    return {"end": "freed" if left - least >= RECOVERED_SHARE * whole else "stopped"}


def grower(incident: Incident) -> int | None:
    """Return the pid of who was last seen to grow; None where that was nobody in particular."""
    for row in (incident.last, incident.first):
        if row.forecast is not None and row.forecast.who_pid is not None:
            return row.forecast.who_pid
    return None
