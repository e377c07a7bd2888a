"""The state of things as one JSON document: what ``status``, the page and the API show."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from wslgpud import __version__
from wslgpud.alerts.incidents import Incident
from wslgpud.alerts.message import forecast_payload
from wslgpud.model import (
    Forecast,
    GpuSample,
    Level,
    Observation,
    ProcessSample,
    Snapshot,
    SourceReport,
    Transition,
)
from wslgpud.risk.wording import headline


def status(
    snapshot: Snapshot,
    observation: Observation,
    forecasts: Iterable[Forecast],
    recent: Iterable[Transition] = (),
    incidents: Iterable[Incident] = (),
) -> dict[str, Any]:
    """Return all that is known at a tick; keys whose value is not known are absent."""
    forecasts = list(forecasts)
    worst = max(forecasts, key=lambda f: (f.level, -(f.eta_seconds or 1e18)), default=None)
    level = worst.level if worst else Level.OK
    return _known(
        {
            "version": __version__,
            "at": _iso(snapshot.wall),
            "wsl": observation.wsl,
            "level": level.label,
            "headline": headline(worst) if worst and level > Level.OK else None,
            "verdict": worst.reason if worst and level > Level.OK else None,
            "lateness_seconds": round(snapshot.lateness_seconds, 3),
            "ram": _known(dataclasses.asdict(observation.ram)) if observation.ram else None,
            "swap": _known(dataclasses.asdict(observation.swap)) if observation.swap else None,
            "gpus": [_gpu(g) for g in snapshot.gpus],
            "forecasts": [
                {"resource": f.resource, "level": f.level.label, **forecast_payload(f)} for f in forecasts
            ],
            "processes": [_process(p) for p in snapshot.processes],
            "sources": [_source(r, snapshot) for r in snapshot.reports],
            "incidents": [
                {
                    "id": i.id,
                    "rule": i.rule,
                    "resource": i.resource,
                    "level": i.level.label,
                    "since": _iso(i.opened_wall),
                    "headline": i.headline,
                }
                for i in incidents
            ],
            "recent": [
                {
                    "at": _iso(t.wall),
                    "resource": t.resource,
                    "level": t.new.label,
                    "previous_level": t.old.label,
                    "headline": t.headline,
                }
                for t in recent
            ],
        }
    )


def _iso(wall: float) -> str:
    return datetime.fromtimestamp(wall, timezone.utc).isoformat(timespec="milliseconds")


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def _gpu(gpu: GpuSample) -> dict[str, Any]:
    facts = {f.name: getattr(gpu, f.name) for f in dataclasses.fields(gpu) if f.name != "processes"}
    processes = [_known({"pid": p.pid, "name": p.name, "used_bytes": p.used_bytes}) for p in gpu.processes]
    return {**_known(facts), "processes": processes}


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
