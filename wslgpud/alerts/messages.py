"""The text of an alert: a first line (what, when, who), the evidence, advice, and how it ended.

The sentences are in ``words/templates.toml``; those with unknown facts are omitted. In the outbox an alert is a payload
with messages, which are rendered when it is sent.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

from wslgpud import words
from wslgpud.alerts.incidents import RECOVERED_SHARE, Incident, kind_of, story
from wslgpud.alerts.rules import BRAKE, DAEMON_KILL, KILLED_BEFORE, OOM_KILL, UNCLEAN_END, is_momentary
from wslgpud.model import MEMORY, NOTHING_SAID, Forecast, Level, ProcessSample, Transition
from wslgpud.risk import forecast_messages as of_risk
from wslgpud.risk.attribution import group_name
from wslgpud.words import (
    HEADLINE_CHARACTERS,
    MAX_CHARACTERS,
    TEMPLATES,
    Fact,
    Message,
    Translator,
    filled,
    say,
    template,
)
from wslgpud.words.units import one_line

Payload = Mapping[str, Any]


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
#: processes of a group that a row lists, biggest first
MAX_MEMBERS = 40
#: when counting jobs that fit, the largest one shows the peak of each; margin for growth still to come
_ROOM = 0.9
#: lines of a digest; the rest is only counted
MAX_LINES = 12


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


def again(text: Text) -> Text:
    """Return the text of a warning whose like was over a moment ago."""
    headline = say("Again: {headline}", headline=text.headline)
    return text._replace(headline=headline) if len(str(headline)) <= HEADLINE_CHARACTERS else text


def text_now(incident: Incident, forecast: Forecast | None) -> Text:
    """Return the current text of an open incident, given the present forecast of its resource, if any."""
    # A paused job is no all-clear, however calm it looks; but another process that keeps growing comes first.
    if incident.paused is not None and incident.stands_still(forecast):
        return compose(incident.paused)
    if incident.rule == MEMORY and forecast is not None:
        return _memory(with_victim(forecast, incident.kill), incident.last)
    return compose(incident.last)


def _memory(forecast: Forecast, row: Transition) -> Text:
    if row.new == Level.OK and forecast.level > Level.OK:  # the incident is over, whatever the forecast says
        return compose(row) if row.rule == BRAKE else Text(_over(row))
    return Text(of_risk.headline(forecast), of_risk.evidence(forecast), of_risk.advice(forecast, row.facts))


def _over(row: Transition) -> Message:
    return filled(_OVER, {"resource": row.resource, **row.facts, "what": Message(RULES[row.rule]["title"])})


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
    """Return a row of memory with what its incident and the current processes add: victim, members, how it ended."""
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
    """Return the payload for the outbox, with messages for ``worded`` to render; unknown facts are omitted.

    ``incident`` is None when the row opens one, whose number is then the row's (``worded`` adds it).
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


def worded(message: Payload, translator: Translator, number: int | None = None) -> dict[str, Any]:
    """Return a queued message, rendered in a language, for people and programs.

    ``number`` is that of its row: a message that opens an incident does not know it while it is queued.
    """
    message = message if number is None else {"incident": number, **message}
    names = {"message": "headline", **{name: name for name in ("evidence", "advice", "who", "reason")}}
    said: dict[str, Any] = {name: words.from_json(message[of]) for of, name in names.items() if of in message}
    if "facts" in message:
        said["facts"] = shown(words.facts_from_json(message["facts"]), translator)
    return {**message, **translator.document(said)}


def shown(facts: Mapping[str, Fact], translator: Translator) -> dict[str, Any]:
    """Return facts for programs: numbers unchanged, texts rendered in a language, on one line."""
    return {k: v if isinstance(v, (int, float)) else one_line(translator.fact(k, v)) for k, v in facts.items()}


def level_of(message: Payload) -> Level:
    """Return the level of a message; of an all-clear, the previous level."""
    return max(Level[str(message.get(name, "ok")).upper()] for name in ("level", "previous_level"))


def trial(wall: float, command: str) -> Payload:
    """Return a rendered message to test a channel, which names the command that sent it."""
    row = Transition(wall, 0.0, "test", "test", Level.OK, Level.OK)
    why = say("Sent by '{command}'. Nothing is wrong.", command=command)
    text = Text(say("Test message from wslgpud: alerts arrive here"), (why,))
    return worded(payload(row, text, host=socket.gethostname()), words.current())


def body(message: Payload) -> str:
    where = ", ".join(filter(None, (message.get("host"), local_time(message.get("at", "")))))
    return "\n\n".join(str(p) for p in (message.get("evidence"), message.get("advice"), where) if p)[:MAX_CHARACTERS]


def digest(messages: Sequence[Payload], translator: Translator) -> dict[str, Any]:
    """Return several rendered messages as one: the worst first, then one line for each other, oldest first."""
    if len(messages) == 1:
        return dict(messages[0])
    worst = max(messages, key=lambda m: (Level[str(m.get("level", "ok")).upper()], m.get("at", "")))
    lines = [f"{local_time(m.get('at', ''))}  {m.get('headline', '')}" for m in messages[-MAX_LINES:]]
    if len(messages) > MAX_LINES:
        lines.insert(0, f"... {len(messages) - MAX_LINES}")
    counted = translator.t("{count} alerts: {headline}", count=len(messages), headline=str(worst.get("headline", "")))
    headline = {"headline": counted} if len(counted) <= HEADLINE_CHARACTERS else {}
    return {**worst, **headline, "evidence": "\n".join(lines), "count": len(messages)}


def iso(wall: float | None) -> str | None:
    return None if wall is None else datetime.fromtimestamp(wall, timezone.utc).isoformat(timespec="milliseconds")


def local_time(at: str) -> str:
    """Return a moment in this machine's local time; empty where unknown."""
    time.tzset()  # the zone may have changed since our start
    return f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}" if at else ""


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
