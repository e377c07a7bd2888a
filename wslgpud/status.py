"""The state of things as one JSON document: what ``status``, the page and the API show."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from wslgpud import __version__
from wslgpud.alerts.incidents import Standing
from wslgpud.alerts.message import forecast_payload, iso
from wslgpud.model import (
    Forecast,
    GpuSample,
    Level,
    Observation,
    ProcessSample,
    Snapshot,
    SourceReport,
    StressResult,
    Transition,
)
from wslgpud.risk.wording import headline
from wslgpud.running.headline import headline as running_headline
from wslgpud.sources import windows
from wslgpud.stress import history
from wslgpud.stress.tested import Held


def status(  # noqa: PLR0913 - what a document is made of
    snapshot: Snapshot,
    observation: Observation,
    forecasts: Iterable[Forecast],
    recent: Iterable[Transition] = (),
    incidents: Iterable[Standing] = (),
    *,
    stress: Iterable[StressResult] = (),
    running: Iterable[Mapping[str, Any]] = (),
    locks: Iterable[Held] = (),
) -> dict[str, Any]:
    """Return all that is known at a tick; keys whose value is not known are absent.

    ``stress`` are the runs kept, oldest first; ``running`` is what ``wslgpud.running`` knows of;
    ``locks`` are held alone by others than stress runs.
    """
    forecasts = list(forecasts)
    worst = max(
        forecasts, key=lambda f: (f.level, -(1e18 if f.eta_seconds is None else f.eta_seconds)), default=None
    )
    level = worst.level if worst else Level.OK
    return _known(
        {
            "version": __version__,
            "at": iso(snapshot.wall),
            "wsl": observation.wsl,
            "level": level.label,
            "headline": headline(worst) if worst and level > Level.OK else None,
            "verdict": worst.reason if worst and level > Level.OK else None,
            "lateness_seconds": round(snapshot.lateness_seconds, 3),
            "ram": _known(dataclasses.asdict(observation.ram)) if observation.ram else None,
            "swap": _known(dataclasses.asdict(observation.swap)) if observation.swap else None,
            "gpus": [_gpu(g) for g in snapshot.gpus],
            "windows": _windows(snapshot) or None,
            "forecasts": [
                {"resource": f.resource, "level": f.level.label, **forecast_payload(f)} for f in forecasts
            ],
            "processes": [_process(p) for p in snapshot.processes],
            "sources": [_source(r, snapshot) for r in snapshot.reports],
            "incidents": [standing(s) for s in incidents],
            "running": [{**one, "headline": str(running_headline(one))} for one in running],
            "locks": [{**dataclasses.asdict(held), "note": str(held.note)} for held in locks] or None,
            "stress": [night(run) for run in {run.uuid: run for run in stress}.values()],
            "recent": [
                {
                    "at": iso(t.wall),
                    "resource": t.resource,
                    "level": t.new.label,
                    "previous_level": t.old.label,
                    "headline": t.headline,
                }
                for t in recent
            ],
        }
    )


def standing(open_one: Standing) -> dict[str, Any]:
    """Return an open incident as JSON."""
    incident, until = open_one.incident, open_one.silenced_until_wall
    return _known(
        {
            "id": incident.id,
            "rule": incident.rule,
            "resource": incident.resource,
            "level": incident.level.label,
            "since": iso(incident.opened_wall),
            "headline": incident.headline,
            "acknowledged": open_one.acknowledged,
            "silenced_until": None if until is None else iso(until),
        }
    )


def night(run: StressResult) -> dict[str, Any]:
    """Return a stress run in brief, as JSON."""
    return _known(
        {
            "at": iso(run.wall),
            "gpu": run.gpu,
            "uuid": run.uuid,
            "verdict": run.verdict,
            "usable_bytes": run.values.get("usable_bytes"),
            "headline": str(history.night(run)),
            "note": str(history.note(run)) or None,
        }
    )


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def _gpu(gpu: GpuSample) -> dict[str, Any]:
    facts = {f.name: getattr(gpu, f.name) for f in dataclasses.fields(gpu) if f.name != "processes"}
    processes = [_known({"pid": p.pid, "name": p.name, "used_bytes": p.used_bytes}) for p in gpu.processes]
    return {**_known(facts), "processes": processes}


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
    facts: dict[str, Any] = _known({name: snapshot.value(spec) for name, spec in _WINDOWS.items()})
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
    return _known(
        {
            "name": report.name,
            "health": report.health,
            "error": report.error or None,
            "age_seconds": round(max(0.0, snapshot.mono - report.mono), 3) if report.health == "ok" else None,
            "duration_seconds": round(report.duration_seconds, 6),
            "failures_total": report.failures_total,
        }
    )
