"""Many machines: which of them need attention."""

from __future__ import annotations

from grafana.source.frame import dashboard, variables
from grafana.source.kit import (
    CRITICAL,
    GOOD,
    LEVELS,
    NEUTRAL,
    NOTE,
    RISK,
    TIME_LEFT_STEPS,
    TIME_LEFT_WORDS,
    WARNING,
    Panel,
    ask,
    bars,
    figure,
    lines,
    metric,
    override,
    rows,
    states,
    steps,
)

CHOSEN = '{job=~"$job", instance=~"$instance"}'
_BY = "max by (job, instance)"


def _now() -> list[Panel]:
    level = f"{_BY} ({metric('verdict_level')})"
    return [
        figure("Machines", "That respond.", ask(f"sum(up{CHOSEN})", now=True), colour=NEUTRAL),
        figure(
            "Unreachable",
            "Targets that Prometheus cannot scrape: off, asleep, or WSL was stopped.",
            ask(f"count(up{CHOSEN} == 0) or count(up{CHOSEN}) * 0", now=True),
            thresholds=steps((None, GOOD), (1, WARNING)),
        ),
        figure(
            "Warnings",
            "Machines about to run out of memory: warning or worse.",
            ask(f"count({level} >= 2) or count({level}) * 0", now=True),
            thresholds=steps((None, GOOD), (1, WARNING)),
        ),
        figure(
            "Critical",
            "Those at critical or worse.",
            ask(f"count({level} >= 3) or count({level}) * 0", now=True),
            thresholds=steps((None, GOOD), (1, CRITICAL)),
        ),
        figure(
            "GPUs", "That respond.", ask(f"sum({metric('gpu_up')}) or count({level}) * 0", now=True), colour=NEUTRAL
        ),
        figure(
            "GPUs lost",
            "Listed by the driver, but not responding.",
            ask(f"sum({metric('gpu_lost')}) or count({level}) * 0", now=True),
            thresholds=steps((None, GOOD), (1, CRITICAL)),
        ),
    ]


def _machines() -> list[Panel]:
    left = f"min by (job, instance) ({metric('time_to_exhaustion_seconds', estimate='middle')})"
    memory = (
        f"{_BY} (1 - ({metric('memory_available_bytes')} + {metric('swap_free_bytes')})"
        f" / ({metric('memory_total_bytes')} + {metric('swap_total_bytes')}))"
    )
    vram = f"{_BY} ({metric('gpu_memory_used_bytes')} / {metric('gpu_memory_total_bytes')})"
    level = f"{_BY} ({metric('verdict_level')})"
    share = f"{metric('headroom_bytes')} / ({metric('headroom_capacity_bytes')} > 0)"
    table = rows(
        "Machines by verdict",
        "One row per machine, with the resource that has the smallest share left; click to open its overview. N/A: the"
        " machine has no GPU.",
        ask(level, rows=True),
        ask(f"{left} or {level} * 0 - 1", rows=True),
        ask(memory, rows=True),
        ask(f"{vram} or {level} * 0 - 1", rows=True),
        ask(f"{_BY} ({metric('gpu_utilization_ratio')}) or {level} * 0 - 1", rows=True),
        ask(f"{_BY} ({metric('alert_level')}) or {level} * 0", rows=True),
        ask(f"min by (job, instance, resource) (bottomk by (job, instance) (1, {share}))", rows=True),
        columns={
            "instance": "Machine",
            "Value #A": "Verdict",
            "Value #B": "Time left",
            "resource": "Least headroom",
            "Value #C": "RAM and swap",
            "Value #D": "VRAM",
            "Value #E": "GPU load",
            "Value #F": "Incidents",
        },
        height=7,
    )
    painted = {"type": "color-background", "mode": "basic"}
    na = [{"type": "value", "options": {"-1": {"text": "N/A", "color": "#8e8e8e", "index": 0}}}]
    gauge = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
    used = {
        "mode": "absolute",
        "steps": [
            {"value": None, "color": GOOD},
            {"value": 1 - RISK.warn_points[-1][1], "color": WARNING},
            {"value": 1 - RISK.critical_headroom, "color": CRITICAL},
        ],
    }
    for name in ("Verdict", "Incidents"):
        override(table, name, mappings=[m.to_json() for m in LEVELS], custom__cellOptions=painted, custom__width=110)
    override(
        table,
        "Time left",
        unit="s",
        mappings=[m.to_json() for m in TIME_LEFT_WORDS],
        thresholds={"mode": "absolute", "steps": [{"value": v, "color": c} for v, c in TIME_LEFT_STEPS]},
        custom__cellOptions={"type": "color-text"},
        custom__width=140,
    )
    for name in ("RAM and swap", "VRAM", "GPU load"):
        override(
            table,
            name,
            unit="percentunit",
            min=0,
            max=1,
            mappings=na,
            custom__cellOptions=gauge,
            thresholds=(
                used if name != "GPU load" else {"mode": "absolute", "steps": [{"value": None, "color": "blue"}]}
            ),
        )
    override(
        table,
        "Machine",
        links=[{"title": "Overview", "url": "/d/wslgpud-overview?var-instance=${__value.raw}&${__url_time_range}"}],
    )
    return [
        table,
        states(
            "Verdict by machine",
            "The worst level of each machine over time.",
            ask(f"max by (instance) ({metric('verdict_level')})", "{{instance}}"),
            LEVELS,
            height=7,
        ),
    ]


def _together() -> list[Panel]:
    card = "{{instance}} GPU {{gpu}}"
    return [
        lines(
            "RAM and swap in use",
            "Share of both together.",
            ask(
                f"max by (instance) (1 - ({metric('memory_available_bytes')} + {metric('swap_free_bytes')}) / "
                f"({metric('memory_total_bytes')} + {metric('swap_total_bytes')}))",
                "{{instance}}",
            ),
            unit="percentunit",
            width=12,
            most=1,
        ),
        lines(
            "VRAM in use",
            "Share of each card's memory.",
            ask(f"{metric('gpu_memory_used_bytes')} / {metric('gpu_memory_total_bytes')}", card),
            unit="percentunit",
            width=12,
            most=1,
        ),
        lines(
            "GPU load by machine",
            "Share of time in which a kernel ran.",
            ask(metric("gpu_utilization_ratio"), card),
            unit="percentunit",
            width=12,
            most=1,
        ),
        lines(
            "GPU power by machine", "Drawn by each board.", ask(metric("gpu_power_watts"), card), unit="watt", width=12
        ),
        bars(
            "Headroom by machine",
            "The smallest share left on any of its resources, and of which.",
            ask(
                f"bottomk by (instance) (1, {metric('headroom_bytes')} / ({metric('headroom_capacity_bytes')} > 0))",
                "{{instance}}: {{resource}}",
                now=True,
            ),
            unit="percentunit",
            width=12,
            height=8,
            thresholds=steps((None, NOTE)),
            full=1,
        ),
        rows(
            "Versions",
            "Of wslgpud on each machine.",
            ask(metric("build"), rows=True),
            width=12,
            columns={"instance": "Machine", "version": "wslgpud", "python": "Python"},
        ),
    ]


def fleet() -> str:
    """Return the dashboard."""
    return dashboard(
        "wslgpud-fleet",
        "wslgpud / Fleet",
        "All machines: which are about to run out of memory, and which are unreachable.",
        (("", _now()), ("Machines", _machines()), ("Side by side", _together())),
        chosen=variables(machines=True),
        since="now-6h",
        refresh="30s",
        notes=False,
    )
