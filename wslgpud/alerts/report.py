"""The report of an incident: its subject over time, the processes that grew, the messages, the outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from wslgpud.alerts import look_back
from wslgpud.alerts.channels import shown
from wslgpud.alerts.incidents import Incident, after, false_alarm, grouped, story
from wslgpud.alerts.messages import RULES, compose, forecast_facts, outcome, row_facts
from wslgpud.alerts.oom_kills import resource_of
from wslgpud.alerts.rules import BRAKE, OOM_KILL, UNCLEAN_END
from wslgpud.model import MEMORY, Event, Level, Transition
from wslgpud.risk.attribution import full_name
from wslgpud.security.shapes import LATEST_WALL
from wslgpud.store import ProcessPoint, Reader, SeriesRef
from wslgpud.words import MessageLike, Translator, sentences, to_json
from wslgpud.words.moments import iso

#: time shown before and after an incident: as long as it lasted, within these bounds
BEFORE_SECONDS = (120.0, 600.0)
AFTER_SECONDS = (20.0, 60.0)
#: longest time shown; of a longer incident, its end
MAX_SECONDS = 6 * 3600.0
#: points of a curve; more than a screen or a plot shows
_MAX_POINTS = 300
_MAX_GROWTHS = 5
_MAX_EVENTS = 50
#: rows shown from the beginning of an incident, and as many before its end
_MAX_ROWS = 250


class HeadroomCurve(NamedTuple):
    """Headroom of a resource over time: (seconds since the epoch, bytes left, level)."""

    resource: str
    capacity_bytes: float
    points: list[tuple[float, float, Level]]


class Report(NamedTuple):
    """The facts of an incident.

    ``moment`` is when it ended, or the end of its curves; ``warned`` the row of the warning, with its forecast. All
    curves go from ``start`` to ``end``; the subject's own comes first.
    """

    incident: Incident
    moment: float
    warned: Transition | None
    start: float
    end: float
    document: dict[str, Any]
    curves: list[HeadroomCurve]


def summaries(incidents: Iterable[Incident], translator: Translator) -> list[dict[str, Any]]:
    """Return summaries of incidents, of brief rows, in a language, as JSON."""
    return [_summary(incident, translator) for incident in incidents]


def _summary(incident: Incident, translator: Translator) -> dict[str, Any]:
    return translator.document(
        {
            "id": incident.id,
            "rule": incident.rule,
            "resource": incident.resource,
            "name": translator.resource(incident.resource),
            "level": incident.level.label,
            "worst_level": incident.worst.label,
            "opened": iso(incident.opened_wall),
            "closed": iso(incident.closed_wall),
            "headline": incident.message,
            "message": to_json(incident.message),
            "outcome": outcome(incident),
            "killed": iso(incident.killed_wall),
        }
    )


def report(history: Reader, number: int, translator: Translator) -> Report | None:
    known = next((i for i in grouped(history.changes(brief=True)) if i.id == number), None)
    if known is None:
        return None
    incident, own = _in_full(history, known)
    found = history.events(incident.opened_wall - 1.0, incident.opened_wall + 1.0, look_back.EVENT)
    box = found[0] if incident.rule == UNCLEAN_END and found else None
    moment, start, end = _span(history, incident, box)
    warned = _first_warning(own.values()) if incident.warned_wall is not None else None
    curves = _curves(history, start, end, incident.resource)
    start, end = _framed(start, end, incident, curves, warned)
    text = compose(_row_that_explains(incident, warned))
    false = incident.rule == MEMORY and false_alarm(incident, grouped(history.changes(brief=True)))
    document = {
        **_summary(incident, translator),
        "title": translator.t(RULES[incident.rule]["title"]) if incident.rule in RULES else None,
        "moment": iso(moment),
        "start": iso(start),
        "end": iso(end),
        "warned": iso(incident.warned_wall),
        "warned_seconds_before": incident.lead_seconds,
        "forecast": {"at": iso(warned.wall), **forecast_facts(warned.forecast)}
        if warned is not None and warned.forecast is not None
        else None,
        "evidence": sentences(text.evidence) or None,
        "advice": None if false else text.advice,  # a false alarm needs no action
        "facts": shown((incident.kill or incident.first).facts, translator) or None,
        "false_alarm": false if incident.rule == MEMORY else None,
        "trouble": shown(incident.first.facts, translator).get("trouble"),
        "growing": _who_grew(history, incident, start, moment, list(own.values())),
        "levels": [_step(own[n], translator) for n in sorted(own, key=lambda n: (own[n].wall, n))],
        "messages": _messages(history, incident),
        "events": _events(history, incident, start, end, translator),
        "kernel": str(box.fields.get("kernel", "")).splitlines() if box is not None else None,
        "crash_dumps": str(box.fields.get("dumps", "")).splitlines() if box is not None else None,
        "headroom": [
            {
                "resource": c.resource,
                "name": translator.resource(c.resource),
                "capacity_bytes": c.capacity_bytes,
                "points": [[round(wall, 3), left] for wall, left, _ in c.points],
            }
            for c in curves
        ],
    }
    return Report(incident, moment, warned, start, end, translator.document(document), curves)


def _in_full(history: Reader, known: Incident) -> tuple[Incident, dict[int, Transition]]:
    """Return an incident with its full facts, and its first and last rows by number."""
    incident: Incident | None = None
    first: dict[int, Transition] = {}
    last: deque[tuple[int, Transition]] = deque(maxlen=_MAX_ROWS)
    rules = [MEMORY, OOM_KILL, BRAKE] if story(known.rule) == MEMORY else [known.rule]
    for number, row in history.changes(of=(rules, known.resource, known.id, known.last_id)):
        incident = after(incident, number, row)
        if len(first) < _MAX_ROWS:
            first[number] = row
        else:
            last.append((number, row))
    # An incident followed by another without having been closed ended at its last row.
    return replace(incident or known, closed_wall=known.closed_wall), {**first, **dict(last)}


def _span(history: Reader, incident: Incident, box: Event | None) -> tuple[float, float, float]:
    """Return its end, or the end of its curves, and their time range."""
    if box is not None:
        moment = float(box.fields["ended_wall"])
        return moment, moment - BEFORE_SECONDS[1], moment + AFTER_SECONDS[1]
    opened, ended = incident.opened_wall, incident.closed_wall
    if incident.killed_wall is not None:
        # One that was reported late happened before its row.
        opened, ended = min(opened, incident.killed_wall), incident.killed_wall
    elif story(incident.rule) != MEMORY:
        ended = max(opened, min(ended or opened, opened + BEFORE_SECONDS[1]))
    if ended is None:
        subject = _by_resource(history, "headroom_bytes").get(incident.resource)
        seen = None if subject is None else history.latest().get(subject)
        ended = max(incident.changed_wall, opened if seen is None else seen.wall)
    ended = max(ended, opened)  # the clock may have been set back meanwhile
    before, more = (min(most, max(least, ended - opened)) for least, most in (BEFORE_SECONDS, AFTER_SECONDS))
    more = more if incident.closed_wall is not None or incident.kill is not None else 0.0
    moment = ended if story(incident.rule) == MEMORY else opened
    return moment, max(opened - before, ended - MAX_SECONDS), ended + more


def _framed(
    start: float, end: float, incident: Incident, curves: Sequence[HeadroomCurve], warned: Transition | None
) -> tuple[float, float]:
    """Return the time range of the curves: from the first point; for an open one including its forecast."""
    start = max(start, min((c.points[0][0] for c in curves), default=start))
    if incident.closed_wall is not None or incident.kill is not None or warned is None or warned.forecast is None:
        return start, end
    late = max(warned.forecast.eta_late_seconds or 0.0, warned.forecast.eta_seconds or 0.0)
    # At most as long as the past, which the future must not squeeze.
    return start, max(end, min(warned.wall + late, end + (end - start)))


def _row_that_explains(incident: Incident, warned: Transition | None) -> Transition:
    # The first row of an exhaustion knows the least.
    if incident.kill is not None or story(incident.rule) != MEMORY:
        return incident.kill or incident.first
    return incident.last if incident.closed_wall is None else warned or incident.first


def _first_warning(rows: Iterable[Transition]) -> Transition | None:
    warnings = [(r, r.forecast) for r in rows if r.rule == MEMORY and r.new >= Level.WARNING and r.forecast]
    foretold = (row for row, forecast in warnings if forecast.eta_seconds is not None)
    return next(foretold, warnings[0][0] if warnings else None)


def _events(
    history: Reader, incident: Incident, start: float, end: float, translator: Translator
) -> list[dict[str, Any]]:
    """Return the events of this resource without duplicates: each start of the daemon rereads the kernel log."""
    group = incident.resource.startswith("cgroup:")
    found = {
        (round(e.wall), text := translator.text(e.message)): {"at": iso(e.wall), "kind": e.kind, "text": text}
        for e in reversed(history.events(start, end))
        if e.kind != look_back.EVENT and not (group and e.kind == "oom_kill" and resource_of(e) != incident.resource)
    }
    return list(found.values())[::-1][-_MAX_EVENTS:]


def _who_grew(
    history: Reader, incident: Incident, start: float, moment: float, rows: Sequence[Transition]
) -> list[dict[str, Any]]:
    resource = incident.resource
    killed = {pid: r for r in rows if r.rule == OOM_KILL and isinstance(pid := r.facts.get("pid"), int)}
    if resource.startswith("gpu"):
        points = _on_card(history, resource, start, moment)
    elif resource == "ram" or incident.rule == UNCLEAN_END:
        points = history.processes(start, moment)
    elif resource.startswith("cgroup:"):
        pids = {int(pid) for row in rows for pid in str(row.facts.get("pids", "")).split() if pid.isdigit()}
        pids |= killed.keys()
        points = [p for p in history.processes(start, moment) if not pids or p.pid in pids]
    else:
        return []
    forecasts = [row.forecast for row in rows if row.forecast is not None]
    named: dict[int | None, MessageLike] = {f.who_pid: f.who for f in forecasts if f.who_pid and isinstance(f.who, str)}
    named |= {pid: str(row.facts.get("who") or row.facts.get("likely", "")) for pid, row in killed.items()}
    return [
        {"who": named.get(g.pid) or full_name(g.name, g.pid), **g._asdict(), "seconds": round(g.seconds, 1)}
        for g in look_back.growths(points)[:_MAX_GROWTHS]
    ]


def _on_card(history: Reader, resource: str, start: float, end: float) -> list[ProcessPoint]:
    cards = [dict(series.labels) for series in history.series("gpu_memory_used_bytes")]
    uuids = {labels.get("uuid") for labels in cards if f"gpu{labels.get('gpu')}" == resource}
    return [
        ProcessPoint(p.wall, p.pid, 0, p.name, p.used_bytes, 0)
        for p in history.gpu_processes(start, end)
        if p.uuid in uuids and p.used_bytes is not None
    ]


def _step(row: Transition, translator: Translator) -> dict[str, Any]:
    return {
        **row_facts(row),
        "rule": row.rule,
        "message": to_json(row.message),
        "eta_seconds": row.forecast.eta_seconds if row.forecast is not None else None,
        "facts": shown(row.facts, translator) or None,
    }


def _messages(history: Reader, incident: Incident) -> list[dict[str, Any]]:
    """Return the messages about an incident, of an open one up to now; also reminders, which have no row."""
    first, last = sorted((incident.opened_wall, incident.changed_wall))  # the clock may have been set back
    last = LATEST_WALL if incident.closed_wall is None else last
    return [
        {
            "channel": d.channel,
            "at": iso(d.created_wall),
            "sent": iso(d.done_wall) if not d.error else None,
            "attempts": d.attempts,
            "error": d.error or None,
        }
        for d in history.deliveries(first - AFTER_SECONDS[1], last + AFTER_SECONDS[1])
        # The message that opens it does not know its number.
        if d.payload.get("incident", d.transition_id) == incident.id
    ]


def _by_resource(history: Reader, metric: str) -> dict[str, SeriesRef]:
    return {dict(series.labels)["resource"]: series for series in history.series(metric)}


def _curves(history: Reader, start: float, end: float, resource: str) -> list[HeadroomCurve]:
    step = max(1.0, (end - start) / _MAX_POINTS)
    levels, sizes = (_by_resource(history, metric) for metric in ("risk_level", "headroom_capacity_bytes"))
    curves = []
    for name, series in _by_resource(history, "headroom_bytes").items():
        points = history.read(series, start, end, step)
        capacity = history.read(sizes[name], start, end, step) if name in sizes else ()
        if not points or not capacity:
            continue
        known = dict(history.read(levels[name], start, end, step)) if name in levels else {}
        left = [(p.wall, p.value, Level(min(4, round(known.get(p.wall, 0))))) for p in points]
        curves.append(HeadroomCurve(name, capacity[-1].value, left))

    def place(curve: HeadroomCurve) -> tuple[bool, bool, bool, str]:
        of_driver = resource in ("gpu", "source:gpu") and curve.resource.startswith("gpu")  # it concerns all cards
        return curve.resource != resource, not of_driver, curve.resource != "ram", curve.resource

    return sorted(curves, key=place)
