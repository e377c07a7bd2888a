"""Warnings to trainings whose memory is running out, so that their companion can save in time."""

from __future__ import annotations

from collections.abc import Iterable

from wslgpud.alerts.incidents import OpenIncident
from wslgpud.model import MEMORY, Forecast, Level, Snapshot
from wslgpud.risk import training_metrics as metrics

_RULES = frozenset({MEMORY, "training_leak", "training_retries"})


def warned(
    standing: Iterable[OpenIncident], snapshot: Snapshot, forecasts: Iterable[Forecast]
) -> dict[int, tuple[str, float | None]]:
    """Return, by pid, the worst level of all resources that a training uses, and the seconds left.

    Also where other programs cause it: a checkpoint helps whoever is at fault.
    """
    levels: dict[str, Level] = {}
    for standing_incident in standing:
        if standing_incident.incident.rule in _RULES and standing_incident.incident.level >= Level.WARNING:
            levels[standing_incident.incident.resource] = max(
                standing_incident.incident.level, levels.get(standing_incident.incident.resource, Level.OK)
            )
    left = {forecast.resource: forecast.eta_seconds for forecast in forecasts if forecast.resource in levels}
    warnings_by_pid: dict[int, tuple[Level, float | None]] = {}
    for labels in snapshot.family(metrics.KEPT):
        pid, _, resource = labels
        if (level := levels.get(resource, Level.OK)) > warnings_by_pid.get(int(pid), (Level.OK, None))[0]:
            own = snapshot.value(metrics.TIME_LEFT, *labels)
            soonest = min((s for s in (left.get(resource), own) if s is not None), default=None)
            warnings_by_pid[int(pid)] = (level, soonest)
    return {pid: (level.label, seconds) for pid, (level, seconds) in warnings_by_pid.items()}
