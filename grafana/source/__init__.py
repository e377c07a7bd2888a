"""The dashboards as code."""

from __future__ import annotations


def dashboards() -> dict[str, str]:
    """Return every dashboard as JSON, by the name of its file."""
    from grafana.source import fleet, itself, one_gpu, overview, runbook, stress

    return {
        "overview": overview.overview(),
        "gpu": one_gpu.one_gpu(),
        "stress": stress.stress(),
        "daemon": itself.itself(),
        "fleet": fleet.fleet(),
        "runbook": runbook.runbook(),
    }
