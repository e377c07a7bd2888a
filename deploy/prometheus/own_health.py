"""Alerts about the daemon itself, and recorded series, which only Prometheus needs."""

from __future__ import annotations

from typing import Any, NamedTuple

_BY = "by (job, instance)"
_GPU = "by (job, instance, gpu, uuid)"

#: for fleets and long-term stores: one series per machine or card, named level:metric:operation
RECORDINGS = {
    "instance:wslgpud_risk_level:max": f"max {_BY} (wslgpud_verdict_level)",
    "instance:wslgpud_time_to_exhaustion_seconds:min": (
        f'min {_BY} (wslgpud_time_to_exhaustion_seconds{{estimate="middle"}})'
    ),
    "instance:wslgpud_memory_used:ratio": (
        "1 - (wslgpud_memory_available_bytes + wslgpud_swap_free_bytes)"
        " / (wslgpud_memory_total_bytes + wslgpud_swap_total_bytes)"
    ),
    "instance:wslgpud_cpu_busy:ratio_rate5m": (
        f'1 - sum {_BY} (rate(wslgpud_cpu_seconds_total{{mode=~"idle|iowait"}}[5m]))'
        f" / sum {_BY} (rate(wslgpud_cpu_seconds_total[5m]))"
    ),
    "instance:wslgpud_swap_bytes:rate5m": (
        "rate(wslgpud_swap_in_bytes_total[5m]) + rate(wslgpud_swap_out_bytes_total[5m])"
    ),
    "instance_gpu:wslgpud_gpu_memory_used:ratio": (
        f"max {_GPU} (wslgpud_gpu_memory_used_bytes / wslgpud_gpu_memory_total_bytes)"
    ),
    "instance_gpu:wslgpud_gpu_utilization:avg5m": (f"max {_GPU} (avg_over_time(wslgpud_gpu_utilization_ratio[5m]))"),
}


class Own(NamedTuple):
    """One alert; ``place`` is its section of the runbook, with the dashboard and the panel that show it."""

    condition: dict[str, Any]
    place: tuple[str, tuple[str, str]]
    summary: str
    description: str


def _own(  # noqa: PLR0913 - one declaration, all its facets
    name: str, expression: str, seconds: str, severity: str, panel: str, summary: str, description: str
) -> Own:
    section = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
    condition = {"alert": name, "expr": expression, "for": seconds, "labels": {"severity": severity}}
    return Own(condition, (section, ("wslgpud-daemon", panel)), summary, description)


_UP = 'up{job="wslgpud"}'
_LOST = 'wslgpud_alert_deliveries_total{outcome=~"refused|expired"}'

ALERTS = (
    _own(
        "WslgpudDown",
        f"{_UP} == 0",
        "1m",
        "critical",
        "Daemon",
        "Nobody watches {{ $labels.instance }}",
        "Prometheus cannot scrape wslgpud on {{ $labels.instance }}. The machine is off, WSL has been stopped (Windows "
        "does so when its last terminal closes), or the daemon is: `systemctl status wslgpud`.",
    ),
    _own(
        "WslgpudAbsent",
        'absent(up{job="wslgpud"})',
        "5m",
        "critical",
        "Daemon",
        "Prometheus has no wslgpud to scrape",
        'No target with job="wslgpud" is configured any more, so alerts about memory cannot fire. Check the scrape '
        "configuration: its job must be called wslgpud.",
    ),
    _own(
        "WslgpudNotSampling",
        "time() - wslgpud_last_tick_timestamp_seconds > 120",
        "30s",
        "critical",
        "Daemon",
        "wslgpud on {{ $labels.instance }} answers but takes no samples",
        "The last sample is {{ $value | humanizeDuration }} old: the machine is stalled, its clock differs from "
        "Prometheus', or the daemon hangs. `systemctl restart wslgpud`, and report it.",
    ),
    _own(
        "WslgpudRestarting",
        'changes(process_start_time_seconds{job="wslgpud"}[15m]) >= 3',
        "0s",
        "warning",
        "Daemon",
        "wslgpud on {{ $labels.instance }} restarts again and again",
        "It has started {{ $value }} times within a quarter of an hour. `journalctl -u wslgpud -p warning` says why.",
    ),
    _own(
        "WslgpudSamplesDropped",
        "increase(wslgpud_store_dropped_ticks_total[15m]) > 0",
        "0s",
        "warning",
        "Database",
        "wslgpud on {{ $labels.instance }} has lost history",
        "The disk accepted nothing for so long that {{ $value | humanize }} samples were dropped. Is it full, read-only "
        "or failing? Metrics and warnings continue.",
    ),
    _own(
        # The series appears with its first failure, which increase() alone does not see.
        "WslgpudAlertsUndelivered",
        f"increase({_LOST}[1h]) > 0 or {_LOST} unless {_LOST} offset 1h",
        "0s",
        "warning",
        "Alert deliveries",
        "Warnings of {{ $labels.instance }} do not reach {{ $labels.channel }}",
        "wslgpud has given up on messages that {{ $labels.channel }} did not accept ({{ $labels.outcome }}). "
        "`wslgpud alerts test` tries every channel and prints its error.",
    ),
    _own(
        "WslgpudWatchdog",
        "vector(1)",
        "0s",
        "none",
        "Daemon",
        "The way from Prometheus to you works",
        "Always fires. Route it to a dead man's switch outside of this machine (healthchecks.io, Dead Man's Snitch, "
        "another Alertmanager): when it stops, no other alert would arrive either.",
    ),
)
