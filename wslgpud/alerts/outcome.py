"""How an incident ended, in a message: a fold over its rows has all that this needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from wslgpud.alerts.incidents import RECOVERED_SHARE, Incident, story
from wslgpud.alerts.rules import MEMORY, UNCLEAN_END, is_momentary
from wslgpud.model import NOTHING_SAID, Forecast, ProcessSample, Transition
from wslgpud.words import Fact, Message, Said, say


def outcome(incident: Incident) -> Message | None:
    """Return how an incident ended, or that it has not; None of what only happens at a moment."""
    if incident.kill is not None:
        return _killed(incident)
    if incident.rule == UNCLEAN_END or is_momentary(incident.rule):
        return None
    if incident.closed_wall is None:
        return say("still open")
    if story(incident.rule) != MEMORY:
        return say("over after {lasted_seconds}", lasted_seconds=_lasted(incident))
    return _ended(incident.last) or say("over after {lasted_seconds}", lasted_seconds=_lasted(incident))


def closing(incident: Incident, row: Transition) -> Message:
    """Return how an exhaustion ended, for the message that says so; an empty one where nobody knows."""
    return (_killed(incident) if incident.kill is not None else _ended(row)) or NOTHING_SAID


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


def _killed(incident: Incident) -> Message:
    lead, last = incident.lead_seconds, incident.kill_told_wall or 0.0
    facts: dict[str, float] = {"killed_clock": incident.killed_wall or 0.0}
    if incident.kill is not None and last > incident.kill.wall:
        facts["last_clock"] = last
        if lead is None:
            return say("killed {killed_clock}, last {last_clock}, not warned", **facts)
        return say(
            "killed {killed_clock}, last {last_clock}, warned {lead_seconds} before",
            lead_seconds=lead,
            **facts,
        )
    if lead is None:
        return say("killed {killed_clock}, not warned", **facts)
    return say("killed {killed_clock}, warned {lead_seconds} before", lead_seconds=lead, **facts)


def _ended(row: Transition) -> Message | None:
    end, room = row.facts.get("end"), _room(row.forecast)
    if end == "exited":
        return say("program ended")
    if end == "gone":
        return say("ended with {resource}", resource=row.resource)
    if end == "freed" and room:
        return say("memory given back, {room_bytes} left", room_bytes=room)
    if end == "stopped" and room:
        return say("stopped by itself, {room_bytes} left", room_bytes=room)
    return None


def _room(forecast: Forecast | None) -> tuple[int, int] | None:
    return None if forecast is None else (forecast.headroom_bytes, forecast.capacity_bytes)


def _lasted(incident: Incident) -> float:
    return max(0.0, (incident.closed_wall or incident.changed_wall) - incident.opened_wall)
