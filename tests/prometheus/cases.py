"""For each alert: what Prometheus must have seen for it to fire, and what must leave it silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from deploy.prometheus.expressions import WATCHES
from deploy.prometheus.generate import LEVELS
from wslgpud.alerts.channels.alertmanager import alert_name
from wslgpud.alerts.measures import SWAP_BYTES_PER_SECOND
from wslgpud.alerts.rules import RULES, Rule
from wslgpud.model import Level

WHERE = 'job="wslgpud", instance="pc"'
#: one evaluation
TICK = 5
Series = dict[str, str]


class Case(NamedTuple):
    """Series by name; at ``seconds`` the alert has this severity, resource and no more, or is silent (None)."""

    title: str
    alert: str
    series: Series
    seconds: int
    severity: str
    fires: bool
    labels: dict[str, str]


def _card(value: str) -> Series:
    return {f'wslgpud_gpu_up{{{WHERE}, gpu="1", uuid="u"}}': value}


def _source(value: str, source: str) -> Series:
    return {
        f'wslgpud_source_success{{{WHERE}, source="{source}"}}': value,
        f'wslgpud_source_success{{{WHERE}, source="cpu"}}': "1x400",
    }


#: rule -> the series in which its measure has the value given, and the labels that the alert carries
MEASURED: dict[str, tuple[Callable[[float], Series], dict[str, str]]] = {
    "gpu_lost": (
        lambda value: {**_card(f"{1 - value:g}x400"), f'wslgpud_gpu_up{{{WHERE}, gpu="0", uuid="v"}}': "1x400"},
        {"resource": "gpu1", "gpu": "1", "uuid": "u"},
    ),
    "gpu_driver_gone": (lambda value: _source(f"{0 if value else 1}x400", "gpu"), {"resource": "gpu", "source": "gpu"}),
    "swap_thrash": (
        lambda value: {
            f'wslgpud_pressure_stalled_ratio{{{WHERE}, resource="memory", window="10s"}}': f"{value:g}x400",
            f'wslgpud_pressure_stalled_ratio{{{WHERE}, resource="io", window="10s"}}': "1x400",
        },
        {"resource": "ram"},
    ),
    "gpu_throttled": (
        lambda value: {
            f'wslgpud_gpu_throttle_reason{{{WHERE}, gpu="0", uuid="u", reason="hw_thermal_slowdown"}}': f"{value:g}x400",
            f'wslgpud_gpu_throttle_reason{{{WHERE}, gpu="0", uuid="u", reason="sw_power_cap"}}': "1x400",
        },
        {"resource": "gpu0", "gpu": "0"},
    ),
    "windows_disk_full": (
        lambda value: {
            f'wslgpud_filesystem_avail_bytes{{{WHERE}, mountpoint="/mnt/c", fstype="9p"}}': f"{value:.0f}x400",
            f'wslgpud_filesystem_avail_bytes{{{WHERE}, mountpoint="/", fstype="ext4"}}': "1x400",
        },
        {"resource": "disk:/mnt/c", "mountpoint": "/mnt/c", "fstype": "9p"},
    ),
    "windows_memory_low": (
        lambda value: {
            f"wslgpud_windows_memory_available_bytes{{{WHERE}}}": "50x400",
            f"wslgpud_windows_memory_total_bytes{{{WHERE}}}": "100x400",
            f"wslgpud_windows_memory_committed_bytes{{{WHERE}}}": f"{1000 * (1 - value):.0f}x400",
            f"wslgpud_windows_memory_commit_limit_bytes{{{WHERE}}}": "1000x400",
        },
        {"resource": "windows"},
    ),
    "source_stale": (
        lambda value: _source(f"{0 if value else 1}x400", "disk"),
        {"resource": "source:disk", "source": "disk"},
    ),
    "store_failing": (lambda value: {f"wslgpud_store_failing{{{WHERE}}}": f"{value:g}x400"}, {"resource": "store"}),
}


def _measured(rule: Rule) -> list[Case]:
    make, labels = MEASURED[rule.name]
    cases = []
    for step in rule.thresholds:
        silence = WATCHES[rule.name].silence
        held = step.value if silence else step.for_seconds
        seconds, level = int(-(-held // TICK) * TICK), step.level.label
        # Just short of the threshold; as whatever is counted is a whole number, of that one less.
        short = 0.0 if silence or step.value == 1 else step.value * (1.02 if rule.falling else 0.98)
        name = alert_name(rule.name)
        said = {"severity": level, **labels}
        cases += [
            Case("at the threshold", name, make(1.0 if silence else step.value), seconds + TICK, level, True, said),
            Case("short of it", name, make(short), seconds + 60, level, False, {}),
        ]
        if seconds > TICK:
            early = make(1.0 if silence else step.value)
            cases.append(Case("not for long enough", name, early, seconds - TICK, level, False, {}))
    return cases


def _judged(rule: str, levels: tuple[Level, ...], metric: str, more: str) -> list[Case]:
    """Return cases that the daemon has already judged."""
    cases = []
    for level in levels:
        series = f'{metric}{{{WHERE}, {more}resource="ram"}}'
        said = {"severity": level.label, "resource": "ram", **({"rule": rule} if more else {})}
        name = alert_name(rule)
        cases += [
            Case("judged so", name, {series: f"{int(level)}x400"}, TICK, level.label, True, said),
            Case("an emergency is critical", name, {series: "4x400"}, TICK, level.label, True, said),
            Case("judged milder", name, {series: f"{int(level) - 1}x400"}, 60, level.label, False, {}),
            Case("over", name, {series: f"{int(level)}x2 _x400"}, 400, level.label, False, {}),
        ]
        if more:
            other = {f'{metric}{{{WHERE}, rule="another", resource="ram"}}': "4x400"}
            cases.append(Case("of another rule", name, other, 60, level.label, False, {}))
    return cases


_UP = f"up{{{WHERE}}}"
_HERE = {"job": "wslgpud", "instance": "pc"}
_GIVEN_UP = f'wslgpud_alert_deliveries_total{{{WHERE}, channel="ntfy", outcome="expired"}}'
_SENT = f'wslgpud_alert_deliveries_total{{{WHERE}, channel="ntfy", outcome="sent"}}'
_NTFY = {"channel": "ntfy", "outcome": "expired"}
_MIB = SWAP_BYTES_PER_SECOND


def _own(
    alert: str, severity: str, fires: tuple[Series, int, dict[str, str]], silent: list[tuple[Series, int]]
) -> list[Case]:
    series, seconds, labels = fires
    said = {"severity": severity, **labels}
    return [
        Case("as it should", alert, series, seconds, severity, True, said),
        *(Case("silent", alert, quiet, at, severity, False, {}) for quiet, at in silent),
    ]


OWN = [
    *_own(
        "WslgpudDown", "critical", ({_UP: "1x3 0x400"}, 120, _HERE), [({_UP: "1x400"}, 900), ({_UP: "1x3 0x400"}, 60)]
    ),
    *_own(
        "WslgpudAbsent",
        "critical",
        ({"up{job='node'}": "1x400"}, 330, {"job": "wslgpud"}),
        [({_UP: "0x400"}, 900), ({"up{job='node'}": "1x400"}, 240)],
    ),
    # The clock of promtool begins at 0.
    *_own(
        "WslgpudNotSampling",
        "critical",
        ({f"wslgpud_last_tick_timestamp_seconds{{{WHERE}}}": "0+5x10 50x400"}, 300, _HERE),
        [({f"wslgpud_last_tick_timestamp_seconds{{{WHERE}}}": "0+5x400"}, 900)],
    ),
    *_own(
        "WslgpudRestarting",
        "warning",
        ({f"process_start_time_seconds{{{WHERE}}}": "1x9 60x9 120x9 180x400"}, 300, _HERE),
        [({f"process_start_time_seconds{{{WHERE}}}": "1x9 60x400"}, 300)],
    ),
    *_own(
        "WslgpudSamplesDropped",
        "warning",
        ({f"wslgpud_store_dropped_ticks_total{{{WHERE}}}": "0x20 7x400"}, 300, _HERE),
        [
            ({f"wslgpud_store_dropped_ticks_total{{{WHERE}}}": "7x400"}, 900),
            ({f"wslgpud_store_dropped_ticks_total{{{WHERE}}}": "0x20 7x400"}, 1500),
        ],
    ),
    *_own(
        "WslgpudAlertsUndelivered",
        "warning",
        ({_GIVEN_UP: "_x5 1x400"}, 300, {**_HERE, **_NTFY}),
        [({_SENT: "_x5 1+1x400"}, 300)],
    ),
    *_own("WslgpudWatchdog", "none", ({_UP: "1x400"}, 60, {}), []),
]

THRASHING_WITHOUT_PSI = [
    Case(
        title,
        "WslgpudSwapThrash",
        {
            f"wslgpud_swap_in_bytes_total{{{WHERE}}}": f"0+{TICK * into}x400",
            f"wslgpud_swap_out_bytes_total{{{WHERE}}}": f"0+{TICK * out}x400",
        },
        600,
        "warning",
        fires,
        {"severity": "warning", "resource": "ram"} if fires else {},
    )
    for title, into, out, fires in (
        ("both ways", _MIB, 2 * _MIB, True),
        ("in alone", 9 * _MIB, 0, False),
        ("out alone", 0, 9 * _MIB, False),
    )
]

CASES = [
    *(case for rule in RULES if rule.name in WATCHES for case in _measured(rule)),
    *(
        case
        for rule in RULES
        if rule.name not in WATCHES
        for case in _judged(
            rule.name, tuple(s.level for s in rule.thresholds), "wslgpud_alert_level", f'rule="{rule.name}", '
        )
    ),
    *(
        case
        for name, levels in LEVELS.items()
        for case in (
            _judged(name, levels, "wslgpud_risk_level", "")
            if name in WATCHES
            else _judged(name, levels, "wslgpud_alert_level", f'rule="{name}", ')
        )
    ),
    *THRASHING_WITHOUT_PSI,
    *OWN,
]
