"""The state as one JSON document, shown by terminal, page and the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from wslgpud import __version__
from wslgpud.active_runs import headline as running_headline
from wslgpud.alerts.incidents import OpenIncident, story
from wslgpud.alerts.messages import forecast_facts, lost, row_facts, text_now
from wslgpud.model import (
    MEMORY,
    Forecast,
    GpuProcess,
    GpuSample,
    Level,
    Snapshot,
    SourceReport,
    StressResult,
    Transition,
)
from wslgpud.risk.attribution import windows_programs
from wslgpud.risk.forecast_messages import outlook
from wslgpud.risk.levels import shown_level
from wslgpud.sources import windows
from wslgpud.sources.gpu import ERRORS, MIG, explain_unread
from wslgpud.stress import comparison
from wslgpud.verdict import WAITING, Verdict
from wslgpud.words import Message, Translator, say, says, to_json
from wslgpud.words.moments import iso

#: Windows' metrics of itself and its GPUs, by key in the document
_WINDOWS = {
    "memory_total_bytes": windows.TOTAL,
    "memory_available_bytes": windows.AVAILABLE,
    "committed_bytes": windows.COMMITTED,
    "commit_limit_bytes": windows.COMMIT_LIMIT,
    "vm_bytes": windows.VM,
    "vm_unreturned_bytes": windows.VM_UNRETURNED,
}
_WINDOWS_GPU = {
    "size_bytes": windows.GPU_SIZE,
    "dedicated_bytes": windows.GPU_DEDICATED,
    "shared_bytes": windows.GPU_SHARED,
}


class TickState(NamedTuple):
    """The state after a tick.

    ``stress`` holds the stored runs, oldest first; ``tally`` counts warnings and false alarms;
    ``paused_jobs`` are the jobs that the brake has paused, ``running`` the active runs; ``recent`` holds the latest
    announcements, newest first.
    """

    snapshot: Snapshot
    verdict: Verdict
    incidents: Sequence[OpenIncident] = ()
    stress: Sequence[StressResult] = ()
    tally: Message | None = None
    paused_jobs: Sequence[Mapping[str, Any]] = ()
    running: Sequence[Mapping[str, Any]] = ()
    recent: Sequence[Transition] = ()


def status(latest: TickState | None, translator: Translator) -> dict[str, Any]:
    """Return the state after a tick (None: before the first), rendered in a language.

    Keys with unknown values are absent.
    """
    if latest is None:
        started = {
            "version": __version__,
            "waiting": "for the first sample",
            "verdict": judged(WAITING, translator, 0.0),
        }
        return translator.document(started)
    snapshot, verdict, incidents, stress, tally, paused_jobs, running, recent = latest
    observation, swap = snapshot.observation, snapshot.observation.swap
    now = {forecast.resource: forecast for forecast in snapshot.forecasts}
    names = {"ram": translator.t("RAM + swap")} if swap and swap.total else {}
    in_windows = {gpu.index: gpu.in_windows for gpu in observation.gpus}
    paused_pids = {pid for one in paused_jobs for pid in one["pids"]}
    paused = {o.incident.resource for o in incidents if o.incident.stands_still(now.get(o.incident.resource))}
    return translator.document(
        {
            "version": __version__,
            "at": iso(snapshot.wall),
            "wsl": observation.wsl,
            "level": verdict.label,
            "headline": verdict.message,
            "verdict": judged(verdict, translator, snapshot.wall),
            "lateness_seconds": round(snapshot.lateness_seconds, 3),
            "interval_seconds": round(snapshot.interval_seconds, 3),
            "ram": asdict(observation.ram) if observation.ram else None,
            "swap": asdict(swap) if swap else None,
            "gpus": [_card(gpu, snapshot, in_windows.get(gpu.index, ())) for gpu in snapshot.gpus],
            "windows": translator.document(_windows(snapshot)) or None,
            "forecasts": [
                {
                    "resource": forecast.resource,
                    "name": names.get(forecast.resource) or translator.resource(forecast.resource),
                    "level": _level(forecast, verdict).label,
                    "cause": forecast.cause or None,
                    "outlook": say("paused") if forecast.resource in paused else outlook(forecast),
                    "pid": forecast.who_pid,
                    **forecast_facts(forecast),
                }
                for forecast in snapshot.forecasts
            ],
            "processes": [
                {
                    **_picked(p, "pid name command rss_bytes swap_bytes"),
                    "roles": [*sorted(p.roles), *["paused"] * (p.pid in paused_pids)],
                }
                for p in snapshot.processes
            ],
            "sources": [_source(report, snapshot) for report in snapshot.reports],
            "incidents": [_open_now(one, now.get(one.incident.resource)) for one in incidents],
            "running": [{**one, "headline": translator.text(running_headline(one))} for one in running],
            "tally": tally,
            "held": [translator.document(one) for one in paused_jobs] or None,
            "stress": [_stress(run, translator) for run in {run.uuid: run for run in stress}.values()],
            "recent": [{**row_facts(row), "previous_level": row.old.label} for row in recent],
        }
    )


def _level(forecast: Forecast, verdict: Verdict) -> Level:
    """Return the level of a resource; the verdict's level of its subject holds in that row as well."""
    told = verdict.level if verdict.subject == forecast.resource else None
    return max(shown_level(forecast), told or Level.OK)


def judged(verdict: Verdict, translator: Translator, wall: float) -> dict[str, Any]:
    """Return the rendered verdict at a moment, its message also as template and facts.

    ``command`` asks the culprit to stop, ``byline`` is the culprit where the headline does not name it, ``more`` the
    number of other open incidents.
    """
    fields = {name: value or None for name, value in verdict._asdict().items()}
    more = says("and {count} more is open", "and {count} more are open", count=verdict.also) if verdict.also else None
    fields |= {"headline": verdict.message, "message": to_json(verdict.message), "level": verdict.label, "more": more}
    fields |= {"state": verdict.state, "lost": _lost(verdict, wall), "calm": verdict.calm}
    fields |= {"command": verdict.command or None}
    document = translator.document(fields)
    who = document.get("who", "")
    return document if who.partition(" (pid ")[0] in document["headline"] else document | {"byline": who}


def _lost(verdict: Verdict, wall: float) -> dict[str, Any] | None:
    """Return the lost job that nobody has seen yet, with messages."""
    if verdict.lost is None:
        return None
    incident, others = verdict.lost
    more = says("and {count} more before it", "and {count} more before it", count=others)
    return {
        "incident": incident.id,
        "resource": incident.resource,
        "headline": lost(incident, wall),
        "at": iso(incident.lost_wall),
        "seen": f"wslgpud alerts ack {incident.id}",
        "more": more if others else None,
    }


def _card(gpu: GpuSample, snapshot: Snapshot, in_windows: Sequence[GpuProcess]) -> dict[str, Any]:
    """Return a card as the driver reports it; figures from trainings are in their metrics.

    ``unread`` says why its memory is not known, ``vram_by_process`` whether who fills it is measured or suspected;
    ``windows`` are Windows' programs on it in words.
    """
    card: dict[str, Any] = {
        name: value for name, value in asdict(gpu).items() if name not in ("self_reported", "in_windows")
    }
    if in_windows:
        card["in_windows"] = [_picked(one, "name used_bytes") for one in in_windows]
        card["windows"] = say("Windows: {programs}", programs=windows_programs(in_windows))
    if gpu.total_bytes is None:
        mig = bool(snapshot.value(MIG, str(gpu.index), gpu.uuid))
        card["unread"] = explain_unread(mig=mig, denied=bool(snapshot.value(ERRORS, "NO_PERMISSION")))
    if gpu.processes:
        measured = any(process.used_bytes is not None for process in gpu.processes)
        card["vram_by_process"] = "measured" if measured else "suspected"
    return card


def _picked(record: object, names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names.split()}


def _open_now(one: OpenIncident, now: Forecast | None) -> dict[str, Any]:
    incident, until = one.incident, one.silenced_until_wall
    notes = [say("acknowledged")] * one.acknowledged
    notes += [] if until is None else [say("silenced until {until_wall}", until_wall=until)]
    level = incident.level
    if now is not None and story(incident.rule) == MEMORY and incident.paused is None:
        # A kill stays open for a while to keep a burst together; with free memory nothing is red.
        level = min(level, now.level)
    return {
        **_picked(incident, "id rule resource"),
        "level": level.label,
        "since": iso(incident.opened_wall),
        "headline": text_now(incident, now).headline or incident.message,
        "acknowledged": one.acknowledged,
        "silenced_until": iso(until),
        "notes": notes or None,
    }


def _stress(run: StressResult, translator: Translator) -> dict[str, Any]:
    return {
        "at": iso(run.wall),
        **_picked(run, "gpu uuid verdict"),
        "usable_bytes": run.values.get("usable_bytes"),
        "headline": translator.text(comparison.night(run)),
        "note": comparison.remark(run) or None,
    }


def _windows(snapshot: Snapshot) -> dict[str, Any]:
    adapters: dict[str, dict[str, Any]] = {}
    for name, spec in _WINDOWS_GPU.items():
        for labels, value in snapshot.family(spec).items():
            adapters.setdefault(labels[0], {"adapter": labels[0]})[name] = value
    gpus = list(adapters.values()) or None
    containers = {session: held for (session,), held in snapshot.family(windows.CONTAINERS).items()} or None
    known = {name: snapshot.value(spec) for name, spec in _WINDOWS.items()}
    return {**known, "gpus": gpus, "containers_bytes": containers}


def _source(report: SourceReport, snapshot: Snapshot) -> dict[str, Any]:
    return {
        **_picked(report, "name health failures_total"),
        "error": report.error or None,
        "age_seconds": round(max(0.0, snapshot.mono - report.mono), 3) if report.health == "ok" else None,
        "duration_seconds": round(report.duration_seconds, 6),
    }
