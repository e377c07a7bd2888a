"""The report of an incident: what was growing, what was left, what was said, what the kernel did."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from wslgpud.alerts import blackbox
from wslgpud.alerts.incidents import Incident, after, grouped
from wslgpud.alerts.message import iso, shown
from wslgpud.alerts.rules import MEMORY, OOM_KILL, UNCLEAN_END
from wslgpud.alerts.score import false_alarm, lead_seconds
from wslgpud.alerts.texts import compose, first_line
from wslgpud.model import Event, Level, Transition
from wslgpud.words import Tongue, to_json

BEFORE_SECONDS = 600.0
AFTER_SECONDS = 60.0
#: points of a curve; more than a screen or a picture shows
_MOST_POINTS = 300
_MOST_GROWTHS = 5
_MOST_EVENTS = 50
#: rows of an incident that are told, from its beginning and as many before its end
_MOST_ROWS = 250
Rows = Sequence[tuple[int, Transition]]


class History(Protocol):
    """What is needed of the store's reader; series and points are those of ``wslgpud.store``."""

    def transitions(self, since_wall: float = ..., until_wall: float = ...) -> list[tuple[int, Transition]]:
        """Return the newest changes of level between two moments."""

    def changes(
        self, *, brief: bool = ..., of: tuple[str, str, int, int] | None = ...
    ) -> Iterator[tuple[int, Transition]]:
        """Yield all changes of level by number, or those of one incident."""

    def events(self, start_wall: float, end_wall: float, kind: str = "") -> list[Event]:
        """Return what happened."""

    def deliveries(self, start_wall: float, end_wall: float) -> Iterable[Any]:
        """Return how it went with messages."""

    def processes(self, start_wall: float, end_wall: float) -> Sequence[Any]:
        """Return recorded processes."""

    def series(self, pattern: str = "*") -> Sequence[Any]:
        """Return series."""

    def read(
        self, series: Any, start_wall: float, end_wall: float, step: float | None = None
    ) -> Sequence[Any]:
        """Return points."""


class Curve(NamedTuple):
    """Headroom of a resource over time: (seconds since the epoch, bytes left, level)."""

    resource: str
    capacity_bytes: float
    points: list[tuple[float, float, Level]]


class Report(NamedTuple):
    """All that is known of an incident; ``moment`` is what its curves lead to."""

    incident: Incident
    moment: float
    document: dict[str, Any]
    curves: list[Curve]


def summary(incident: Incident, tongue: Tongue) -> dict[str, Any]:
    """Return an incident in a few words of a language, as JSON."""
    facts = {
        "id": incident.id,
        "rule": incident.rule,
        "resource": incident.resource,
        "level": incident.level.label,
        "worst_level": incident.worst.label,
        "opened": iso(incident.opened_wall),
        "closed": iso(incident.closed_wall) if incident.closed_wall is not None else None,
        "headline": first_line(incident.message, tongue),
        "message": to_json(incident.message),
    }
    return {name: value for name, value in facts.items() if value is not None}


def report(history: History, number: int, tongue: Tongue) -> Report | None:
    """Return the report of an incident; None when there is none of that number."""
    known = next((i for i in grouped(history.changes(brief=True)) if i.id == number), None)
    if known is None:
        return None
    incident, own = _in_full(history, known)
    found = history.events(incident.opened_wall - 1.0, incident.opened_wall + 1.0, blackbox.EVENT)
    box = found[0] if incident.rule == UNCLEAN_END and found else None
    moment = float(box.fields["ended_wall"]) if box is not None else incident.opened_wall
    end = moment if box is not None else min(incident.closed_wall or moment, moment + BEFORE_SECONDS)
    end = max(end, moment)  # the clock may have been set back meanwhile
    start = moment - BEFORE_SECONDS
    curves = _curves(history, start, end + AFTER_SECONDS, incident.resource)
    rows = _by_time({**own, **dict(history.transitions(start, end))})
    text = compose(incident.first)
    told = shown(incident.first.facts, tongue)
    document = {
        **summary(incident, tongue),
        "moment": iso(moment),
        "evidence": tongue.sentences(text.evidence) or None,
        "advice": tongue.text(text.advice) or None,
        "facts": told or None,
        "warned_seconds_before": _lead_seconds(history, incident) if incident.rule == OOM_KILL else None,
        "false_alarm": _false_alarm(history, incident) if incident.rule == MEMORY else None,
        "trouble": told.get("trouble"),
        "growing": [_growth(g) for g in _growing(history, start, moment)],
        "levels": [_step(t, tongue) for _, t in rows],
        "messages": _messages(history, {n for n, _ in rows}, incident, start, end),
        "events": _events(history, start, end + AFTER_SECONDS),
        "kernel": str(box.fields.get("kernel", "")).splitlines() if box is not None else None,
        "crash_dumps": str(box.fields.get("dumps", "")).splitlines() if box is not None else None,
        "headroom": [
            {
                "resource": c.resource,
                "capacity_bytes": c.capacity_bytes,
                "points": [[round(wall, 3), left] for wall, left, _ in c.points],
            }
            for c in curves
        ],
    }
    return Report(incident, moment, {k: v for k, v in document.items() if v is not None}, curves)


def _events(history: History, start: float, end: float) -> list[dict[str, Any]]:
    """Return what happened, once: each start of the daemon reads the kernel's log of this boot anew."""
    found = {
        (round(e.wall), e.text): {"at": iso(e.wall), "kind": e.kind, "text": e.text}
        for e in reversed(history.events(start, end))
        if e.kind != blackbox.EVENT
    }
    return list(found.values())[::-1][-_MOST_EVENTS:]


def _growing(history: History, start: float, moment: float) -> list[blackbox.Growth]:
    return blackbox.growths(history.processes(start, moment))[:_MOST_GROWTHS]


def _growth(growth: blackbox.Growth) -> dict[str, Any]:
    return {
        "name": growth.name,
        "pid": growth.pid,
        "grown_bytes": growth.grown_bytes,
        "seconds": round(growth.seconds, 1),
    }


def _in_full(history: History, known: Incident) -> tuple[Incident, dict[int, Transition]]:
    """Return an incident with all that its rows tell, and its first and last rows by number."""
    incident: Incident | None = None
    first: dict[int, Transition] = {}
    last: deque[tuple[int, Transition]] = deque(maxlen=_MOST_ROWS)
    for number, row in history.changes(of=(known.rule, known.resource, known.id, known.last_id)):
        incident = after(incident, number, row)
        if len(first) < _MOST_ROWS:
            first[number] = row
        else:
            last.append((number, row))
    # One that was followed by another without having been closed ended at its last row.
    full = replace(incident or known, closed_wall=known.closed_wall)
    return full, {**first, **dict(last)}


def _by_time(rows: Mapping[int, Transition]) -> Rows:
    return sorted(rows.items(), key=lambda pair: (pair[1].wall, pair[0]))


def _lead_seconds(history: History, kill: Incident) -> float | None:
    return lead_seconds(kill, grouped(history.changes(brief=True)))


def _false_alarm(history: History, incident: Incident) -> bool:
    return false_alarm(incident, grouped(history.changes(brief=True)))


def _step(row: Transition, tongue: Tongue) -> dict[str, Any]:
    facts = {
        "at": iso(row.wall),
        "rule": row.rule,
        "resource": row.resource,
        "level": row.new.label,
        "headline": first_line(row.message, tongue),
        "message": to_json(row.message),
        "eta_seconds": row.forecast.eta_seconds if row.forecast is not None else None,
        "facts": shown(row.facts, tongue) or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _messages(
    history: History, about: Container[int], incident: Incident, start: float, end: float
) -> list[dict[str, Any]]:
    """Return what was sent of all that was going on, and what was not."""
    last = max(end, incident.changed_wall) + AFTER_SECONDS
    found = []
    for d in history.deliveries(min(start, incident.opened_wall) - 1.0, last):
        if d.transition_id in about:
            facts = {
                "channel": d.channel,
                "at": iso(d.created_wall),
                "sent": iso(d.done_wall) if d.done_wall is not None and not d.error else None,
                "attempts": d.attempts,
                "error": d.error or None,
            }
            found.append({name: value for name, value in facts.items() if value is not None})
    return found


def _curves(history: History, start: float, end: float, resource: str) -> list[Curve]:
    """Return headroom over time, of the resource in question first."""
    step = max(1.0, (end - start) / _MOST_POINTS)
    levels = {dict(s.labels)["resource"]: s for s in history.series("risk_level")}
    sizes = {dict(s.labels)["resource"]: s for s in history.series("headroom_capacity_bytes")}
    curves = []
    for series in history.series("headroom_bytes"):
        name = dict(series.labels)["resource"]
        points = history.read(series, start, end, step)
        capacity = history.read(sizes[name], start, end, step) if name in sizes else ()
        if not points or not capacity:
            continue
        known = {
            p.wall: p.value for p in (history.read(levels[name], start, end, step) if name in levels else ())
        }
        curves.append(
            Curve(
                name,
                capacity[-1].value,
                [(p.wall, p.value, Level(min(4, round(known.get(p.wall, 0))))) for p in points],
            )
        )
    return sorted(curves, key=lambda c: (c.resource != resource, c.resource != "ram", c.resource))
