"""How things stand as one JSON document: what terminal, page, ``/plain`` and the API show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from wslgpud import __version__
from wslgpud.alerts.incidents import Standing, story
from wslgpud.alerts.message import forecast_facts, iso
from wslgpud.alerts.rules import MEMORY
from wslgpud.alerts.texts import text_now
from wslgpud.model import (
    Forecast,
    GpuSample,
    Observation,
    ProcessSample,
    Snapshot,
    SourceReport,
    StressResult,
    Transition,
)
from wslgpud.risk.wording import outlook
from wslgpud.running.headline import headline as running_headline
from wslgpud.sources import windows
from wslgpud.stress import history
from wslgpud.stress.tested import Held
from wslgpud.verdict import WAITING, Verdict
from wslgpud.words import Tongue, to_json


@dataclass(frozen=True)
class State:
    """What the last tick left for those who ask.

    ``running`` is what runs now, as notes tell it; ``locks`` are held alone by others than our tests.
    """

    snapshot: Snapshot
    observation: Observation
    forecasts: tuple[Forecast, ...]
    running: Sequence[Mapping[str, Any]] = ()
    locks: Sequence[Held] = ()


def status(  # noqa: PLR0913 - what a document is made of
    state: State,
    verdict: Verdict,
    tongue: Tongue,
    *,
    recent: Iterable[Transition] = (),
    incidents: Iterable[Standing] = (),
    stress: Iterable[StressResult] = (),
) -> dict[str, Any]:
    """Return all that is known at a tick, in a language's words; keys whose value is not known are absent.

    ``stress`` are the runs kept, oldest first; ``recent`` is what was announced lately, the newest first.
    """
    snapshot, observation, swap = state.snapshot, state.observation, state.observation.swap
    now = {forecast.resource: forecast for forecast in state.forecasts}
    return tongue.document(
        {
            "version": __version__,
            "at": iso(snapshot.wall),
            "wsl": observation.wsl,
            "level": verdict.label,
            "headline": verdict.message,
            "verdict": judged(verdict),
            "lateness_seconds": round(snapshot.lateness_seconds, 3),
            "interval_seconds": round(snapshot.interval_seconds, 3),
            "ram": asdict(observation.ram) if observation.ram else None,
            "swap": asdict(swap) if swap else None,
            "gpus": [_gpu(g) for g in snapshot.gpus],
            "windows": _windows(snapshot) or None,
            "forecasts": [_forecast(f, tongue, swap=bool(swap and swap.total)) for f in state.forecasts],
            "processes": [_process(p) for p in snapshot.processes],
            "sources": [_source(r, snapshot) for r in snapshot.reports],
            "incidents": [_standing(s, now.get(s.incident.resource)) for s in incidents],
            "running": [{**one, "headline": tongue.text(running_headline(one))} for one in state.running],
            "locks": [{**asdict(held), "note": held.note} for held in state.locks] or None,
            "stress": [_night(run, tongue) for run in {run.uuid: run for run in stress}.values()],
            "recent": [
                {
                    "at": iso(t.wall),
                    "resource": t.resource,
                    "level": t.new.label,
                    "previous_level": t.old.label,
                    "headline": t.message,
                }
                for t in recent
            ],
        }
    )


def waiting(tongue: Tongue) -> dict[str, Any]:
    """Return what is known before the first tick."""
    told = {"version": __version__, "waiting": "for the first sample", "verdict": judged(WAITING)}
    return tongue.document(told)


def judged(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict for a document: its message, and that as template and facts."""
    told = {name: value or None for name, value in verdict._asdict().items()}
    message = {"headline": verdict.message, "message": to_json(verdict.message)}
    return {**told, **message, "level": verdict.label}


def in_one_line(said: Mapping[str, Any]) -> str:
    """Return what a verdict as JSON says: its headline, and the culprit where that has no room for them."""
    who = said.get("who", "")
    return said["headline"] if who in said["headline"] else f"{said['headline']} · {who}"


def _forecast(forecast: Forecast, tongue: Tongue, *, swap: bool) -> dict[str, Any]:
    resource = forecast.resource
    return {
        "resource": resource,
        "name": tongue.t("RAM + swap") if swap and resource == "ram" else tongue.resource(resource),
        "level": forecast.level.label,
        "outlook": outlook(forecast),
        "pid": forecast.who_pid,
        **forecast_facts(forecast),
    }


def _standing(open_one: Standing, now: Forecast | None) -> dict[str, Any]:
    """Return an open incident; ``now`` is the forecast of its resource, which says what is so now."""
    incident, until = open_one.incident, open_one.silenced_until_wall
    # A kill stays open for a while to keep a burst together; over free memory nothing is red.
    level = incident.level
    if now is not None and story(incident.rule) == MEMORY:
        level = min(level, now.level)
    return {
        "id": incident.id,
        "rule": incident.rule,
        "resource": incident.resource,
        "level": level.label,
        "since": iso(incident.opened_wall),
        "headline": text_now(incident, now).headline or incident.message,
        "acknowledged": open_one.acknowledged,
        "silenced_until": None if until is None else iso(until),
    }


def _night(run: StressResult, tongue: Tongue) -> dict[str, Any]:
    """Return a stress run in brief."""
    return {
        "at": iso(run.wall),
        "gpu": run.gpu,
        "uuid": run.uuid,
        "verdict": run.verdict,
        "usable_bytes": run.values.get("usable_bytes"),
        "headline": tongue.text(history.night(run)),
        "note": history.note(run) or None,
    }


def _gpu(gpu: GpuSample) -> dict[str, Any]:
    facts = {f.name: getattr(gpu, f.name) for f in fields(gpu)}
    return {
        **facts,
        "processes": [{"pid": p.pid, "name": p.name, "used_bytes": p.used_bytes} for p in gpu.processes],
    }


#: what Windows tells, by the name under which it stands here
_WINDOWS = {
    "memory_total_bytes": windows.TOTAL,
    "memory_available_bytes": windows.AVAILABLE,
    "committed_bytes": windows.COMMITTED,
    "commit_limit_bytes": windows.COMMIT_LIMIT,
    "vm_bytes": windows.VM,
    "vm_unreturned_bytes": windows.VM_UNRETURNED,
}
_WINDOWS_GPU = {
    windows.GPU_SIZE.name: "size_bytes",
    windows.GPU_DEDICATED.name: "dedicated_bytes",
    windows.GPU_SHARED.name: "shared_bytes",
}


def _windows(snapshot: Snapshot) -> dict[str, Any]:
    """Return what Windows tells of itself and of its GPUs; empty where it is not asked."""
    told = {name: snapshot.value(spec) for name, spec in _WINDOWS.items()}
    facts: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    adapters: dict[str, dict[str, Any]] = {}
    for reading in snapshot.readings():
        if (name := _WINDOWS_GPU.get(reading.spec.name)) is not None:
            adapter = reading.labels[0]
            adapters.setdefault(adapter, {"adapter": adapter})[name] = reading.value
    return facts | ({"gpus": list(adapters.values())} if adapters else {})


def _process(process: ProcessSample) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "name": process.name,
        "command": process.command,
        "rss_bytes": process.rss_bytes,
        "swap_bytes": process.swap_bytes,
        "roles": sorted(process.roles),
    }


def _source(report: SourceReport, snapshot: Snapshot) -> dict[str, Any]:
    age = round(max(0.0, snapshot.mono - report.mono), 3)
    return {
        "name": report.name,
        "health": report.health,
        "error": report.error or None,
        "age_seconds": age if report.health == "ok" else None,
        "duration_seconds": round(report.duration_seconds, 6),
        "failures_total": report.failures_total,
    }
