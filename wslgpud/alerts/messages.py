"""The text of an alert: a first line (what, when, who), the evidence, advice, and how it ended.

The sentences are in ``words/templates.toml``; those with unknown facts are omitted. In the outbox an alert is a payload
with messages, which are rendered when it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from wslgpud import words
from wslgpud.alerts.channels import Payload
from wslgpud.alerts.incidents import RECOVERED_SHARE, Incident, false_alarms, kind_of, story
from wslgpud.alerts.rules import BRAKE, DAEMON_KILL, KILLED_BEFORE, OOM_KILL, UNCLEAN_END, is_momentary
from wslgpud.model import MEMORY, NOTHING_SAID, Forecast, Level, ProcessSample, Transition
from wslgpud.risk import forecast_messages as of_risk
from wslgpud.risk.attribution import group_name
from wslgpud.words import HEADLINE_CHARACTERS, TEMPLATES, Fact, Message, filled, say, says, template
from wslgpud.words.moments import iso


class Text(NamedTuple):
    headline: Message
    evidence: tuple[Message, ...] = ()
    advice: Message = NOTHING_SAID


#: texts of rules, by name; a rule's advice may refer to a common one
RULES: Final[Mapping[str, Mapping[str, str]]] = {
    name: {**texts, "advice": of_risk.ADVICE.get(texts.get("advice", ""), texts.get("advice", ""))}
    for name, texts in TEMPLATES["rule"].items()
}
_OVER = template("[Taken as over: {what} ({resource}), not measured for {unseen_seconds}|Over: {what} ({resource})]")
DAY_SECONDS = 86400.0
#: below this, a number of warnings per day is meaningless
MIN_WATCHED_SECONDS = DAY_SECONDS
#: processes of a group that a row lists, biggest first
MAX_MEMBERS = 40
#: when counting jobs that fit, the largest one shows the peak of each; margin for growth still to come
_ROOM = 0.9


def announcement(
    row: Transition, incident: Incident | None, processes: Sequence[ProcessSample], *, returns: bool, host: str
) -> tuple[Transition, Payload]:
    """Return a change of level as the row that tells of it, and its message.

    ``incident`` is the one that it continues, None where it opens one; ``returns``: its like was over a moment ago.
    """
    row = with_story(row, incident, processes)
    text = compose(row, incident)
    row = replace(row, message=text.headline)
    again = say("Again: {headline}", headline=text.headline)
    if returns and len(str(again)) <= HEADLINE_CHARACTERS:
        text = text._replace(headline=again)
    return row, payload(row, text, incident=incident, host=host)


def compose(row: Transition, incident: Incident | None = None) -> Text:
    """Return the text of a change of level; of the ``incident`` that it ends, also how that ended."""
    text = _composed(row)
    if incident is None or row.rule != MEMORY or row.new > Level.OK:
        return text
    end = closing(incident, row)
    return text._replace(evidence=(end, *text.evidence)) if end else text


def _composed(row: Transition) -> Text:
    kind, known = kind_of(row), RULES.get(row.rule)
    if row.rule == MEMORY and row.forecast is not None:
        return _memory(row.forecast, row)
    if known is None:  # from another version
        return Text(row.message)
    place = row.resource.partition(":")[2] or row.resource
    facts = {"resource": row.resource, "place": place, "source": place, **row.facts}
    if kind == "closed":
        return Text((filled(known.get("over", ""), facts) if "unseen_seconds" not in facts else None) or _over(row))
    why = filled(known.get("evidence", ""), facts)
    limited = row.rule == OOM_KILL and row.resource.startswith("cgroup:")
    advice = of_risk.ADVICE["cgroup"] if limited else known["advice"]
    headline = of_risk.fitted(known.get("headline", ""), facts) or row.message
    return Text(headline, (why,) * bool(why), filled(advice, facts))


def text_now(incident: Incident, forecast: Forecast | None) -> Text:
    """Return the current text of an open incident, given the present forecast of its resource, if any."""
    # A paused job is no all-clear, however calm it looks; but another process that keeps growing comes first.
    if incident.paused is not None and incident.stands_still(forecast):
        return compose(incident.paused)
    if forecast is not None and (incident.rule == MEMORY or MEMORY in incident.held):
        # The last row may be the end of a kill, while memory runs out again. That of a pause comes first.
        row = incident.last if incident.last.rule == BRAKE else incident.held.get(MEMORY, incident.last)
        return _memory(with_victim(forecast, incident.kill), row)
    return compose(max(incident.held.values(), key=lambda row: (row.new, row.wall), default=incident.last))


def _memory(forecast: Forecast, row: Transition) -> Text:
    if row.new == Level.OK and forecast.level > Level.OK:  # the incident is over, whatever the forecast says
        return compose(row) if row.rule == BRAKE else Text(_over(row))
    return Text(of_risk.headline(forecast), of_risk.evidence(forecast), of_risk.advice(forecast, row.facts))


def _over(row: Transition) -> Message:
    return filled(_OVER, {"resource": row.resource, **row.facts, "what": Message(RULES[row.rule]["title"])})


def tally(incidents: Sequence[Incident], since_wall: float, watched_seconds: float) -> Message | None:
    """Return the number of memory warnings, and of false alarms among them; None with less than a day of data."""
    if watched_seconds < MIN_WATCHED_SECONDS:
        return None
    warned = [i for i in incidents if i.rule == MEMORY and i.warned_wall is not None and i.opened_wall >= since_wall]
    return says(
        "{watched_seconds} watched: {count} memory warning, {needless} needless",
        "{watched_seconds} watched: {count} memory warnings, {needless} needless",
        count=len(warned),
        needless=false_alarms(warned, incidents),
        watched_seconds=watched_seconds,
    )


def with_victim(forecast: Forecast, kill: Transition | None) -> Forecast:
    """Return a forecast about a kill with the victim named by the kernel or found from its counters."""
    if forecast.cause != "killed" or kill is None:
        return forecast
    likely = kill.facts.get("likely")
    who = say("probably {who}", who=likely) if likely is not None else str(kill.facts.get("who", ""))
    return replace(forecast, who=who or forecast.who)


def outcome(incident: Incident) -> Message | None:
    """Return how an incident ended, or that it has not; None for a momentary one."""
    if incident.kill is None and (incident.rule in (UNCLEAN_END, KILLED_BEFORE) or is_momentary(incident.rule)):
        return None
    if incident.kill is None and incident.closed_wall is None:
        return say("still open")
    ended = closing(incident, incident.last) if story(incident.rule) == MEMORY else None
    lasted = max(0.0, (incident.closed_wall or incident.changed_wall) - incident.opened_wall)
    return ended or say("over after {lasted_seconds}", lasted_seconds=lasted)


def lost(incident: Incident, now_wall: float) -> Message:
    """Return which job was lost in an incident, when, and how early that was warned of."""
    row, wall = incident.loss or incident.last, incident.lost_wall
    warned = None if incident.warned_wall is None else max(0.0, wall - incident.warned_wall) or None
    by_daemon = incident.rule == DAEMON_KILL
    kind = "daemon" if by_daemon else "killed" if incident.kill is not None else "refused"
    facts: dict[str, Fact | None] = {
        "who": incident.who if kind == "refused" else "",
        **row.facts,
        "resource": incident.resource,
        # A time of day is of the last 24 hours.
        "lost_clock" if now_wall - wall < DAY_SECONDS else "lost_wall": wall,
        "lead_seconds": None if by_daemon else warned,
    }
    return of_risk.fitted(TEMPLATES["lost"][kind], facts)


def closing(incident: Incident, row: Transition) -> Message:
    """Return how an exhaustion ended, from its last row; an empty message where unknown."""
    kill, last_wall = incident.kill, incident.kill_told_wall or 0.0
    facts: dict[str, Fact | None] = {
        **row.facts,
        "resource": row.resource,
        "killed_clock": incident.killed_wall,
        "last_clock": last_wall if kill is not None and last_wall > kill.wall else None,
        "lead_seconds": incident.lead_seconds,
    }
    ended = filled(TEMPLATES["end"].get("killed" if kill is not None else str(row.facts.get("end")), ""), facts)
    if incident.resumed is None or incident.resumed is row:
        return ended
    paused = filled(TEMPLATES["end"]["held"], incident.resumed.facts)
    return Message(TEMPLATES["end"]["after_pause"], {"paused": paused, "ended": ended}) if ended else paused


def with_story(row: Transition, before: Incident | None, processes: Sequence[ProcessSample]) -> Transition:
    """Return a row of memory completed from its incident and the current processes: victim, members, how it ended."""
    forecast = row.forecast
    if forecast is None or row.rule != MEMORY:
        return row
    if before is not None:
        row = replace(row, forecast=with_victim(forecast, before.kill))
    if row.new == Level.OK:
        return replace(row, facts={**row.facts, **end_facts(before, row, processes)}) if before is not None else row
    facts, group = dict(row.facts), row.resource.removeprefix("cgroup:")
    if (jobs := jobs_that_fit(forecast, processes)) is not None:
        facts["jobs"] = jobs
    if members := [str(p.pid) for p in processes if group != row.resource and p.within(group)]:
        facts["pids"] = " ".join(members[:MAX_MEMBERS])
    return replace(row, facts=facts)


def jobs_that_fit(forecast: Forecast, processes: Iterable[ProcessSample]) -> int | None:
    """Return how many programs of a forecast's group fit at once; None where unknown.

    That is the memory of all of them plus the headroom, divided by the largest one's.
    """
    program = group_name(forecast.who).partition(" ")[0] if forecast.who_kind == "group" else ""
    names = ((p, p.command.partition(" ")[0].rpartition("/")[2]) for p in processes)
    held = [p.held_bytes for p, command in names if program and program in (p.name, command)]
    if len(held) < 2 or not max(held):
        return None
    fit = max(1, int(_ROOM * (sum(held) + max(0, forecast.headroom_bytes)) / max(held)))
    return fit if fit < len(held) else None  # no advice to continue as before


def end_facts(incident: Incident, row: Transition, processes: Iterable[ProcessSample]) -> Mapping[str, Fact]:
    """Return the facts of how an exhaustion ended (a key of ``TEMPLATES["end"]``), for its last row."""
    if row.forecast is None or incident.kill is not None:
        return {}
    alive = {process.pid for process in processes}
    forecasts = (r.forecast for r in (incident.last, incident.first) if r.forecast is not None)
    grower = next((f.who_pid for f in forecasts if f.who_pid is not None), None)
    if grower is not None and alive and grower not in alive:
        return {"end": "exited"}
    if row.forecast.cause == "gone":  # the resource itself, such as a container
        return {"end": "gone"}
    left, whole = row.forecast.headroom_bytes, row.forecast.capacity_bytes
    least = left if incident.least_bytes is None else incident.least_bytes[0]
    return {"end": "freed" if left - least >= RECOVERED_SHARE * whole else "stopped", "room_bytes": (left, whole)}


def payload(transition: Transition, text: Text, *, incident: Incident | None = None, host: str = "") -> dict[str, Any]:
    """Return the payload for the outbox, with messages for ``dispatcher.rendered``; unknown facts are omitted.

    ``incident`` is None when the row opens one, whose number is then the row's (``rendered`` adds it).
    """
    facts = {
        "at": iso(transition.wall),
        "kind": kind_of(transition),
        "incident": None if incident is None else incident.id,
        "since": iso(transition.wall if incident is None else incident.opened_wall),
        "resource": transition.resource,
        "rule": transition.rule,
        "level": transition.new.label,
        "previous_level": transition.old.label,
        "host": host or None,
        "message": text.headline,
        "evidence": words.sentences(text.evidence) or None,
        "advice": text.advice or None,
        # Works offline and fits the version.
        "runbook": f"wslgpud alerts explain {transition.rule}" if transition.rule in RULES else None,
        "facts": transition.facts or None,
        **(forecast_facts(transition.forecast) if transition.forecast is not None else {}),
    }
    return {name: words.to_json(value) for name, value in facts.items() if value is not None}


def row_facts(row: Transition) -> dict[str, Any]:
    return {"at": iso(row.wall), "resource": row.resource, "level": row.new.label, "headline": row.message}


def forecast_facts(forecast: Forecast) -> dict[str, Any]:
    """Return a forecast's facts for JSON, with messages; unknown ones are None."""
    ends = {"early": forecast.eta_early_seconds, "middle": forecast.eta_seconds, "late": forecast.eta_late_seconds}
    within = {str(horizon): round(chance, 3) for horizon, chance in forecast.probabilities.items()}
    return {
        "headroom_bytes": forecast.headroom_bytes,
        "capacity_bytes": forecast.capacity_bytes,
        "capacity_learned": forecast.capacity_learned or None,
        "rate_bytes_per_second": forecast.rate_bytes_per_second,
        "eta_seconds": {name: round(s, 1) for name, s in ends.items() if s is not None} or None,
        "probability_within_seconds": within or None,
        "who": forecast.who or None,
        "expected_peak_bytes": forecast.expected_peak_bytes,
        "spilled_bytes": forecast.spilled_bytes or None,
        "reason": of_risk.reason(forecast) or None,
        "age_seconds": round(forecast.age_seconds, 1) or None,
    }
