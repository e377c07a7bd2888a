"""The measures of the daemon's rules in PromQL, where metrics tell as much as the daemon itself knows.

A rule not listed here is watched through ``wslgpud_alert_level``, the daemon's own verdict, which draws on facts that
no metric has (the disk that holds its data, the process that a kernel message names).
"""

from __future__ import annotations

from typing import NamedTuple

from wslgpud.alerts.measures import HARMFUL_REASONS, SWAP_BYTES_PER_SECOND
from wslgpud.alerts.rules import MEMORY
from wslgpud.sources.disk import WINDOWS_TYPES


class Watch(NamedTuple):
    """One measure.

    ``expression`` carries job, instance and resource, as the daemon's own alerts do; the threshold comes from
    the rule. ``shown`` is the description's sentence about ``$value``. ``silence`` marks a measure that is a
    duration for the daemon, and here a condition that must hold that long.
    """

    expression: str
    shown: str
    silence: bool = False


def _named(expression: str, label: str, resource: str) -> str:
    """Give ``expression`` the label ``resource`` as the daemon writes it."""
    return f'label_replace({expression}, "resource", "{resource}$1", "{label}", "(.*)")'


_SWAPPED = [f"rate(wslgpud_swap_{way}_bytes_total[1m])" for way in ("in", "out")]
#: both directions at once, on the scale of PSI: ``measures.thrashing``
_BOTH_WAYS = f"0.2 * (({_SWAPPED[0]} < {_SWAPPED[1]}) or {_SWAPPED[1]}) / {SWAP_BYTES_PER_SECOND}"
_STALLED = 'wslgpud_pressure_stalled_ratio{resource="memory", window="10s"}'
_ALONE = "sum by (job, instance)"
_HARMFUL = "|".join(sorted(HARMFUL_REASONS))
_WINDOWS = "|".join(sorted(WINDOWS_TYPES))

_WINDOWS_RAM = "wslgpud_windows_memory_available_bytes / wslgpud_windows_memory_total_bytes"
_WINDOWS_COMMIT = (
    "(wslgpud_windows_memory_commit_limit_bytes - wslgpud_windows_memory_committed_bytes)"
    " / wslgpud_windows_memory_commit_limit_bytes"
)

WATCHES: dict[str, Watch] = {
    MEMORY: Watch("wslgpud_risk_level", ""),
    "gpu_lost": Watch(_named("1 - wslgpud_gpu_up", "gpu", "gpu"), "The card does not answer."),
    "gpu_driver_gone": Watch(
        _named(
            'wslgpud_source_success{source="gpu"} == 0 or wslgpud_source_available{source="gpu"} == 0'
            ' and wslgpud_source_last_success_timestamp_seconds{source="gpu"}',
            "source",
            "",
        ),
        "NVML does not answer.",
        silence=True,
    ),
    "swap_thrash": Watch(
        _named(f"{_ALONE} ({_STALLED}) or {_ALONE} ({_BOTH_WAYS})", "none", "ram"),
        "Programs are stalled for {{ $value | humanizePercentage }} of the time.",
    ),
    "gpu_throttled": Watch(
        _named(f'max by (job, instance, gpu) (wslgpud_gpu_throttle_reason{{reason=~"{_HARMFUL}"}})', "gpu", "gpu"),
        "Heat or the power supply slows the card down.",
    ),
    "windows_disk_full": Watch(
        _named(f'wslgpud_filesystem_avail_bytes{{fstype=~"{_WINDOWS}"}}', "mountpoint", "disk:"),
        "{{ $value | humanize1024 }}B left.",
    ),
    "windows_memory_low": Watch(
        _named(f"{_WINDOWS_RAM} < {_WINDOWS_COMMIT} or {_WINDOWS_COMMIT} or {_WINDOWS_RAM}", "none", "windows"),
        "{{ $value | humanizePercentage }} of Windows' memory left.",
    ),
    "source_stale": Watch(
        _named('wslgpud_source_success{source!="gpu"} == 0', "source", "source:"),
        "The source {{ $labels.source }} does not answer; what it measures is missing everywhere.",
        silence=True,
    ),
    "store_failing": Watch(
        _named("wslgpud_store_failing", "none", "store"), "The database accepts nothing; history waits in memory."
    ),
}
