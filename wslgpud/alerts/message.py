"""What a warning says, as data: messages while it waits in the outbox, words when it is sent."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from wslgpud import words
from wslgpud.alerts import runbook
from wslgpud.alerts.incidents import Incident, kind_of
from wslgpud.alerts.texts import Text
from wslgpud.model import Forecast, Level, Transition
from wslgpud.risk import wording
from wslgpud.words import HEADLINE_CHARACTERS, MOST_CHARACTERS, Fact, Tongue, say
from wslgpud.words.units import one_line

Message = Mapping[str, Any]

#: lines of a digest; the rest is only counted
MOST_LINES = 12


def payload(transition: Transition, text: Text, *, incident: Incident | None = None, host: str = "") -> dict[str, Any]:
    """Return the warning as it waits, with messages that ``worded`` puts into words; unknown is left out.

    ``incident`` is None when the row opens one, whose number is then that of the row (``worded`` adds it).
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
        "evidence": text.evidence or None,
        "advice": text.advice or None,
        "runbook": runbook.command(transition.rule),
        "facts": transition.facts or None,
        **(forecast_facts(transition.forecast) if transition.forecast is not None else {}),
    }
    return {name: words.to_json(value) for name, value in facts.items() if value is not None}


def worded(message: Message, tongue: Tongue, number: int | None = None) -> dict[str, Any]:
    """Return a message that has waited in a language: what people and programs get.

    ``number`` is that of its row: one that opens an incident does not know it while it waits.
    """
    message = message if number is None else {"incident": number, **message}
    said: dict[str, Any] = {n: words.from_json(message[n]) for n in ("advice", "who", "reason") if n in message}
    if "message" in message:
        said["headline"] = words.from_json(message["message"])
    if "evidence" in message:
        said["evidence"] = words.sentences(map(words.from_json, message["evidence"]))
    if "facts" in message:
        said["facts"] = shown(words.facts_from_json(message["facts"]), tongue)
    return {**message, **tongue.document(said)}


def shown(facts: Mapping[str, Fact], tongue: Tongue) -> dict[str, Any]:
    """Return facts as programs get them: numbers as they are, what has words in a language, on one line."""
    return {k: v if isinstance(v, (int, float)) else one_line(tongue.fact(k, v)) for k, v in facts.items()}


def level_of(message: Message) -> Level:
    """Return how bad a message is: for good news, how bad it was."""
    return max(Level[str(message.get(name, "ok")).upper()] for name in ("level", "previous_level"))


def body(message: Message) -> str:
    """Return what stands below the first line, for people."""
    where = ", ".join(filter(None, (message.get("host"), local_time(message.get("at", "")))))
    return "\n\n".join(str(p) for p in (message.get("evidence"), message.get("advice"), where) if p)[:MOST_CHARACTERS]


def digest(messages: Sequence[Message], tongue: Tongue) -> dict[str, Any]:
    """Return several worded messages as one: the worst first, the others a line each, oldest first."""
    if len(messages) == 1:
        return dict(messages[0])
    worst = max(messages, key=lambda m: (Level[str(m.get("level", "ok")).upper()], m.get("at", "")))
    lines = [f"{local_time(m.get('at', ''))}  {m.get('headline', '')}" for m in messages[-MOST_LINES:]]
    if len(messages) > MOST_LINES:
        lines.insert(0, f"... {len(messages) - MOST_LINES}")
    headline = str(worst.get("headline", ""))
    counted = tongue.text(say("{count} alerts: {headline}", count=len(messages), headline=headline))
    headline = counted if len(counted) <= HEADLINE_CHARACTERS else headline
    return {**worst, "headline": headline, "evidence": "\n".join(lines), "count": len(messages)}


def iso(wall: float) -> str:
    """Write a moment in UTC."""
    return datetime.fromtimestamp(wall, timezone.utc).isoformat(timespec="milliseconds")


def local_time(at: str) -> str:
    """Return a moment as the clock on the wall of this machine shows it; nothing where it is not known."""
    time.tzset()  # the zone may have been set anew since our start
    return f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}" if at else ""


def row_facts(row: Transition) -> dict[str, Any]:
    """Return a change of level in brief as JSON may tell it, with its message."""
    return {"at": iso(row.wall), "resource": row.resource, "level": row.new.label, "headline": row.message}


def forecast_facts(forecast: Forecast) -> dict[str, Any]:
    """Return a forecast as JSON may tell it, with messages; what is not known is None."""
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
        "reason": wording.reason(forecast) or None,
        "age_seconds": round(forecast.age_seconds, 1) or None,
    }
