"""What a warning says, as data: messages while it waits in the outbox, words when it is sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from wslgpud.alerts import runbook
from wslgpud.alerts.incidents import Incident, kind_of
from wslgpud.alerts.texts import Text, first_line
from wslgpud.model import Forecast, Level, Transition
from wslgpud.risk import wording
from wslgpud.risk.wording import HEADLINE_CHARACTERS
from wslgpud.units import one_line
from wslgpud.words import ENGLISH, Fact, Said, Tongue, facts_from_json, facts_to_json, from_json, say, to_json

Message = Mapping[str, Any]

#: lines of a digest; the rest is only counted
MOST_LINES = 12
#: no channel shows more, and a mail of a megabyte helps nobody
MOST_CHARACTERS = 3000


def payload(
    transition: Transition, text: Text, *, incident: Incident | None = None, host: str = ""
) -> dict[str, Any]:
    """Return the warning as it waits, with messages that ``worded`` puts into words; unknown is left out.

    Args:
        transition: the row.
        text: what it says.
        incident: the open one that the row belongs to; None when the row opens one, whose number is then
            that of the row (``numbered`` adds it).
        host: this machine's name.
    """
    facts: dict[str, Any] = {
        "at": iso(transition.wall),
        "kind": kind_of(transition),
        "incident": incident.id if incident is not None else None,
        "since": iso(incident.opened_wall if incident is not None else transition.wall),
        "resource": transition.resource,
        "rule": transition.rule,
        "level": transition.new.label,
        "previous_level": transition.old.label,
        "host": host or None,
        "message": to_json(text.headline),
        "evidence": [to_json(sentence) for sentence in text.evidence] or None,
        "advice": to_json(text.advice) if text.advice else None,
        "runbook": runbook.command(transition.rule),
        "facts": facts_to_json(transition.facts) or None,
        **(_forecast(transition.forecast, to_json) if transition.forecast is not None else {}),
    }
    return {name: value for name, value in facts.items() if value is not None}


def worded(message: Message, tongue: Tongue) -> dict[str, Any]:
    """Return a message that has waited in a language: what people and programs get."""
    found = dict(message)
    if "message" in found:
        found["headline"] = first_line(from_json(found["message"]), tongue)
    if "evidence" in found:
        found["evidence"] = one_line(tongue.sentences(map(from_json, found["evidence"])), MOST_CHARACTERS)
    for name in ("advice", "who", "reason"):
        if name in found:
            found[name] = one_line(tongue.text(from_json(found[name])), MOST_CHARACTERS)
    if "facts" in found:
        found["facts"] = shown(facts_from_json(found["facts"]), tongue)
    return found


def shown(facts: Mapping[str, Fact], tongue: Tongue) -> dict[str, Any]:
    """Return facts as programs get them: numbers as they are, what has words in a language, on one line."""
    return {k: v if isinstance(v, (int, float)) else one_line(tongue.fact(k, v)) for k, v in facts.items()}


def numbered(message: Message, transition_id: int | None) -> dict[str, Any]:
    """Return a message as it waited, with the number of its incident."""
    return {"incident": transition_id, **message} if transition_id is not None else dict(message)


def level_of(message: Message) -> Level:
    """Return how bad a message is: for good news, how bad it was."""
    return max(Level[str(message.get(name, "ok")).upper()] for name in ("level", "previous_level"))


def body(message: Message) -> str:
    """Return what stands below the first line, for people."""
    parts = [message.get("evidence"), message.get("advice")]
    where = ", ".join(str(p) for p in (message.get("host"), local_time(message)) if p)
    return "\n\n".join(str(p) for p in (*parts, where) if p)[:MOST_CHARACTERS]


def digest(messages: Sequence[Message], tongue: Tongue) -> dict[str, Any]:
    """Return several worded messages as one: the worst first, the others a line each, oldest first."""
    if len(messages) == 1:
        return dict(messages[0])
    worst = max(messages, key=lambda m: (Level[str(m.get("level", "ok")).upper()], m.get("at", "")))
    lines = [f"{local_time(m)}  {m.get('headline', '')}" for m in messages[-MOST_LINES:]]
    if len(messages) > MOST_LINES:
        lines.insert(0, f"... {len(messages) - MOST_LINES}")
    headline = str(worst.get("headline", ""))
    counted = tongue.text(say("{count} alerts: {headline}", count=len(messages), headline=headline))
    return {
        **worst,
        "headline": counted if len(counted) <= HEADLINE_CHARACTERS else headline,
        "evidence": "\n".join(lines),
        "count": len(messages),
    }


def iso(wall: float) -> str:
    """Write a moment in UTC."""
    return datetime.fromtimestamp(wall, timezone.utc).isoformat(timespec="milliseconds")


def local_time(message: Message) -> str:
    """Return when a message was made, as the clock on the wall of this machine shows it."""
    at = message.get("at")
    time.tzset()  # the zone may have been set anew since our start
    return f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}" if at else ""


def forecast_payload(forecast: Forecast, tongue: Tongue = ENGLISH) -> dict[str, Any]:
    """Return a forecast as JSON in a language; what is not known is left out."""
    return _forecast(forecast, lambda said: one_line(tongue.text(said), MOST_CHARACTERS))


def _forecast(forecast: Forecast, put: Callable[[Said], Any]) -> dict[str, Any]:
    reason = wording.reason(forecast)
    eta = {
        name: round(seconds, 1)
        for name, seconds in (
            ("early", forecast.eta_early_seconds),
            ("middle", forecast.eta_seconds),
            ("late", forecast.eta_late_seconds),
        )
        if seconds is not None
    }
    facts: dict[str, Any] = {
        "headroom_bytes": forecast.headroom_bytes,
        "capacity_bytes": forecast.capacity_bytes,
        "capacity_learned": forecast.capacity_learned or None,
        "rate_bytes_per_second": forecast.rate_bytes_per_second,
        "eta_seconds": eta or None,
        "probability_within_seconds": {str(k): round(v, 3) for k, v in forecast.probabilities.items()}
        or None,
        "who": put(forecast.who) if forecast.who else None,
        "expected_peak_bytes": forecast.expected_peak_bytes,
        "reason": put(reason) if reason else None,
        "age_seconds": round(forecast.age_seconds, 1) or None,
    }
    return {name: value for name, value in facts.items() if value is not None}
