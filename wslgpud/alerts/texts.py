"""What a change of level says: a first line (what, when, who), the evidence, advice, and how it ended.

The sentences stand in ``words/templates.toml``; those whose facts are not known are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from wslgpud.alerts.incidents import RECOVERED_SHARE, Incident, kind_of, story
from wslgpud.alerts.rules import OOM_KILL, UNCLEAN_END, is_momentary
from wslgpud.model import MEMORY, NOTHING_SAID, Forecast, Level, ProcessSample, Transition
from wslgpud.risk import wording
from wslgpud.words import HEADLINE_CHARACTERS, TEMPLATES, Fact, Message, filled, say, template


class Text(NamedTuple):
    """What an alert says."""

    headline: Message
    evidence: tuple[Message, ...] = ()
    advice: Message = NOTHING_SAID


#: rules in words, by name; what they advise may be one of the advices there are
RULES: Final[Mapping[str, Mapping[str, str]]] = {
    name: {**texts, "advice": wording.ADVICE.get(texts.get("advice", ""), texts.get("advice", ""))}
    for name, texts in TEMPLATES["rule"].items()
}
_OVER = template("[Taken as over: {what} ({resource}), not measured for {unseen_seconds}|Over: {what} ({resource})]")


def compose(row: Transition) -> Text:
    """Return what a change of level says."""
    kind, known = kind_of(row), RULES.get(row.rule)
    if row.rule == MEMORY and row.forecast is not None:
        text = _memory(row.forecast, row)
        again = say("Again: {headline}", headline=text.headline)
        is_short = len(str(again)) <= HEADLINE_CHARACTERS
        return text._replace(headline=again) if kind == "repeated" and is_short else text
    if known is None:  # of another version
        return Text(row.message)
    facts = {"resource": row.resource, "place": row.resource.partition(":")[2] or row.resource, **row.facts}
    if kind == "closed":
        return Text((filled(known.get("over", ""), facts) if "unseen_seconds" not in facts else None) or _over(row))
    why = filled(known.get("evidence", ""), facts)
    limited = row.rule == OOM_KILL and row.resource.startswith("cgroup:")
    advice = wording.ADVICE["cgroup"] if limited else known["advice"]
    headline = wording.fitted(known.get("headline", ""), facts) or row.message
    return Text(headline, (why,) * bool(why), Message(advice))


def text_now(incident: Incident, forecast: Forecast | None) -> Text:
    """Return what an open incident says now, given the present forecast of its resource, if there is one."""
    if incident.rule == MEMORY and forecast is not None:
        return _memory(with_victim(forecast, incident.kill), incident.last)
    return compose(incident.last)


def _memory(forecast: Forecast, row: Transition) -> Text:
    if row.new == Level.OK and forecast.level > Level.OK:  # the incident is over, whatever is thought now
        return Text(_over(row))
    return Text(wording.headline(forecast), wording.evidence(forecast), wording.advice(forecast, row.facts))


def _over(row: Transition) -> Message:
    return filled(_OVER, {"resource": row.resource, **row.facts, "what": Message(RULES[row.rule]["title"])})


def with_victim(forecast: Forecast, kill: Transition | None) -> Forecast:
    """Return a forecast that tells of a kill with the victim that the kernel or its counters have named."""
    if forecast.cause != "killed" or kill is None:
        return forecast
    likely = kill.facts.get("likely")
    who = say("probably {who}", who=likely) if likely is not None else str(kill.facts.get("who", ""))
    return replace(forecast, who=who or forecast.who)


def outcome(incident: Incident) -> Message | None:
    """Return how an incident ended, or that it has not; None for one that only happens at a moment."""
    if incident.kill is None and (incident.rule == UNCLEAN_END or is_momentary(incident.rule)):
        return None
    if incident.kill is None and incident.closed_wall is None:
        return say("still open")
    ended = closing(incident, incident.last) if story(incident.rule) == MEMORY else None
    lasted = max(0.0, (incident.closed_wall or incident.changed_wall) - incident.opened_wall)
    return ended or say("over after {lasted_seconds}", lasted_seconds=lasted)


def closing(incident: Incident, row: Transition) -> Message:
    """Return how an exhaustion ended with its last row; an empty message where nobody knows."""
    facts: dict[str, Fact] = {"resource": row.resource}
    if incident.kill is None:
        if row.forecast is not None:
            facts["room_bytes"] = (row.forecast.headroom_bytes, row.forecast.capacity_bytes)
        return filled(TEMPLATES["end"].get(str(row.facts.get("end")), ""), facts)
    facts["killed_clock"] = incident.killed_wall or 0.0
    if (last := incident.kill_told_wall or 0.0) > incident.kill.wall:
        facts["last_clock"] = last
    if incident.lead_seconds is not None:
        facts["lead_seconds"] = incident.lead_seconds
    return filled(TEMPLATES["end"]["killed"], facts)


def end_facts(
    incident: Incident, row: Transition, processes: Iterable[ProcessSample], *, there: bool
) -> Mapping[str, Fact]:
    """Return what the row that ends an exhaustion keeps of how (a key of ``TEMPLATES["end"]``).

    ``there`` is False where the resource itself, such as a container, has ended.
    """
    if row.forecast is None or incident.kill is not None:
        return {}
    alive = {process.pid for process in processes}
    forecasts = (r.forecast for r in (incident.last, incident.first) if r.forecast is not None)
    grower = next((f.who_pid for f in forecasts if f.who_pid is not None), None)
    if grower is not None and alive and grower not in alive:
        return {"end": "exited"}
    if not there:
        return {"end": "gone"}
    left, whole = row.forecast.headroom_bytes, row.forecast.capacity_bytes
    least = left if incident.least_bytes is None else incident.least_bytes[0]
    return {"end": "freed" if left - least >= RECOVERED_SHARE * whole else "stopped"}
