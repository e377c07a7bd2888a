"""What a warning says, as data: the JSON that waits in the outbox and that programs get."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from wslgpud.alerts import runbook
from wslgpud.alerts.incidents import Incident, kind_of
from wslgpud.alerts.texts import HEADLINE_CHARACTERS, LANGUAGES, Text
from wslgpud.model import Forecast, Level, Transition
from wslgpud.units import one_line

Message = Mapping[str, Any]

#: lines of a digest; the rest is only counted
MOST_LINES = 12
#: no channel shows more, and a mail of a megabyte helps nobody
MOST_CHARACTERS = 3000


def payload(
    transition: Transition,
    text: Text | None = None,
    *,
    incident: Incident | None = None,
    host: str = "",
) -> dict[str, Any]:
    """Return the warning as JSON for programs; what is not known is left out.

    Args:
        transition: the row.
        text: what it says; without one only its headline.
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
        "headline": text.headline if text is not None else transition.headline,
        "evidence": (text.evidence or None) if text is not None else None,
        "advice": (text.advice or None) if text is not None else None,
        "runbook": runbook.command(transition.rule),
        "facts": {k: one_line(v) if isinstance(v, str) else v for k, v in transition.facts.items()} or None,
        **(forecast_payload(transition.forecast) if transition.forecast is not None else {}),
    }
    return {name: value for name, value in facts.items() if value is not None}


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


def digest(messages: Sequence[Message], language: str) -> dict[str, Any]:
    """Return several messages as one: the worst first, the others a line each, oldest first."""
    if len(messages) == 1:
        return dict(messages[0])
    worst = max(messages, key=lambda m: (Level[str(m.get("level", "ok")).upper()], m.get("at", "")))
    words = LANGUAGES[language]
    lines = [f"{local_time(m)}  {m.get('headline', '')}" for m in messages[-MOST_LINES:]]
    if len(messages) > MOST_LINES:
        lines.insert(0, f"... {len(messages) - MOST_LINES}")
    return {
        **worst,
        "headline": one_line(
            words.digest.format(count=len(messages), headline=worst.get("headline", "")), HEADLINE_CHARACTERS
        ),
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


def forecast_payload(forecast: Forecast) -> dict[str, Any]:
    """Return a forecast as JSON; what is not known is left out."""
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
        "who": forecast.who or None,
        "expected_peak_bytes": forecast.expected_peak_bytes,
        "reason": forecast.reason or None,
        "age_seconds": round(forecast.age_seconds, 1) or None,
    }
    return {name: value for name, value in facts.items() if value is not None}
