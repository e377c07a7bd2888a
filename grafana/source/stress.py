"""The nightly tests: usable VRAM, bandwidth of each region, and differences between drivers."""

from __future__ import annotations

from grafana.source.frame import dashboard, variables
from grafana.source.kit import (
    CRITICAL,
    GOOD,
    NEUTRAL,
    NOT_HERE,
    NOT_HERE_WORDS,
    NOTE,
    WARNING,
    Panel,
    ask,
    bars,
    coloured,
    figure,
    gpu,
    heat,
    limit_line,
    lines,
    override,
    rows,
    states,
    steps,
    words,
)
from wslgpud.stress.comparison import LATE_SECONDS

#: as numbers, from good to bad: the metric has one series a verdict
VERDICTS = {"passed": 1, "left": 2, "skipped": 3, "findings": 4, "failed": 5}
COLOURS = {"passed": GOOD, "left": NOTE, "skipped": NOT_HERE, "findings": CRITICAL, "failed": WARNING}
WORDS = words({number: (verdict, COLOURS[verdict]) for verdict, number in VERDICTS.items()})


def _verdict() -> str:
    return " + ".join(
        f"{number} * max by (gpu, uuid) ({gpu('vram_stress_result', verdict=verdict)})"
        for verdict, number in VERDICTS.items()
    )


def _age(name: str) -> str:
    return f"time() - max({gpu(name)})"


def _or_not_here(expression: str) -> str:
    """Return a figure of the last complete run, or -1 when there was one and the card could not tell."""
    return f"{expression} or max({gpu('vram_stress_run')}) * 0 - 1"


def _size(kind: str) -> str:
    return f"max({gpu('vram_stress_bytes', kind=kind)})"


def _last() -> list[Panel]:
    # One panel: a tile that the card has no reading for (ECC) is not shown.
    run = figure(
        "Last complete run",
        "Errors that the card's ECC detected, corrected ones included; highest temperature of the core; share of the "
        "run in"
        " which heat or the power supply throttled the card; how long it took.",
        ask(f"sum({gpu('vram_stress_ecc_errors')})", "ECC errors", now=True),
        ask(f"max({gpu('vram_stress_temperature_celsius')})", "Hottest", now=True),
        ask(f"max({gpu('vram_stress_slowed_ratio')})", "Throttled", now=True),
        ask(f"max({gpu('vram_stress_duration_seconds')})", "Duration", now=True),
        width=16,
    )
    ecc = [{"value": None, "color": GOOD}, {"value": 1, "color": WARNING}]
    override(run, "ECC errors", thresholds={"mode": "absolute", "steps": ecc})
    for name, unit in {"Hottest": "celsius", "Throttled": "percentunit", "Duration": "s"}.items():
        override(run, name, unit=unit)
    return [
        figure(
            "Last run",
            "Passed; findings (faults found); left or skipped (the card was in use); failed.",
            ask(_verdict(), "GPU {{gpu}}", now=True),
            mappings=WORDS,
            background=True,
        ),
        figure(
            "Last run started",
            "A night without a run: the machine was off, or the card was in use.",
            ask(_age("vram_stress_last_run_timestamp_seconds"), now=True),
            unit="s",
            decimals=1,
        ),
        figure(
            "Last passed",
            "A warning follows when none has passed for three days.",
            ask(_age("vram_stress_last_success_timestamp_seconds"), now=True),
            unit="s",
            decimals=1,
            thresholds=steps((None, GOOD), (LATE_SECONDS, WARNING)),
        ),
        figure(
            "Usable",
            "VRAM that could be allocated without spilling into shared memory.",
            ask(_size("usable"), now=True),
            unit="bytes",
            decimals=1,
        ),
        figure(
            "Verified",
            "Share of free VRAM in which every byte was written and read back.",
            ask(f"max({gpu('vram_stress_coverage_ratio')})", now=True),
            unit="percentunit",
            decimals=1,
        ),
        figure(
            "Wrong words",
            "In all stored runs. If there are any: undo overclocking, test again, replace the card.",
            ask(f"max({gpu('vram_stress_errors')})", now=True),
            thresholds=steps((None, GOOD), (1, CRITICAL)),
        ),
        figure(
            "Usable share",
            "Share of the card's nominal memory.",
            ask(_or_not_here(f"max({gpu('vram_stress_usable_ratio')})"), now=True),
            unit="percentunit",
            decimals=1,
            mappings=NOT_HERE_WORDS,
        ),
        figure(
            "Read bandwidth",
            "As a share of the peak that memory clock and bus width allow.",
            ask(_or_not_here(f"max({gpu('vram_stress_bandwidth_ratio', op='read')})"), now=True),
            unit="percentunit",
            decimals=1,
            mappings=NOT_HERE_WORDS,
        ),
        run,
    ]


def _nights() -> list[Panel]:
    layers = lines(
        "Memory of the card, night by night",
        "Reserved by the driver, held by others, used by CUDA itself, usable, and spilled into shared memory.",
        *(ask(_size(kind), kind) for kind in ("reserved", "foreign", "context", "usable", "spilled")),
        ask(_size("total"), "total"),
        unit="bytes",
        stacked=True,
        width=12,
        height=9,
    )
    coloured(
        layers, {"reserved": NOT_HERE, "foreign": "yellow", "context": "purple", "usable": GOOD, "spilled": CRITICAL}
    )
    speed = lines(
        "Bandwidth",
        "Median over all chunks of 256 MiB, and the slowest chunk.",
        ask(gpu("vram_stress_bandwidth_bytes_per_second"), "{{op}} {{stat}}"),
        unit="Bps",
        width=12,
        height=9,
        fill=0,
    )
    return [
        states(
            "Verdicts", "How each card's last run ended, over time.", ask(_verdict(), "GPU {{gpu}}"), WORDS, height=4
        ),
        limit_line(layers, "total"),
        speed,
        heat(
            "Bandwidth across the card",
            "Read bandwidth of the slowest chunk in each part of the card: in order of allocation from top to bottom, "
            "time from left to right. A red row is a region that became slow or lies in shared memory; a column that "
            "turns red, a new driver or another program's load.",
            ask(f"max by (region) ({gpu('vram_stress_region_bandwidth_bytes_per_second')})", "{{region}}"),
            unit="Bps",
        ),
        lines(
            "Share of peak bandwidth",
            "Median bandwidth as a share of the peak that memory clock and bus width allow.",
            ask(gpu("vram_stress_bandwidth_ratio"), "{{op}}"),
            unit="percentunit",
            most=1,
            height=7,
            fill=0,
        ),
        lines(
            "Usable share by night",
            "Share of the card's memory that programs can allocate.",
            ask(gpu("vram_stress_usable_ratio"), "GPU {{gpu}}"),
            unit="percentunit",
            most=1,
            height=7,
        ),
        lines(
            "Heat",
            "Highest temperature of the core in each run.",
            ask(gpu("vram_stress_temperature_celsius"), "GPU {{gpu}}"),
            unit="celsius",
            least=20,
            height=7,
        ),
    ]


def _drivers() -> list[Panel]:
    def mean(selector: str) -> str:
        run = f"max by (job, instance, gpu, uuid, driver, torch) ({gpu('vram_stress_run')})"
        return (
            f"avg by (driver, torch) (avg_over_time(({selector} * on (job, instance, gpu, uuid)"
            f" group_left (driver, torch) {run})[$__range:$__interval]))"
        )

    asked = [
        ask(mean(gpu("vram_stress_bandwidth_bytes_per_second", op=op, stat="median")), rows=True)
        for op in ("write", "change", "read")
    ]
    asked.append(ask(mean(gpu("vram_stress_bytes", kind="usable")), rows=True))
    table = rows(
        "By driver",
        "Means over the time range shown, by driver and torch: what an update gained or cost.",
        *asked,
        width=12,
        height=7,
        columns={
            "driver": "Driver",
            "torch": "torch",
            "Value #A": "Write",
            "Value #B": "Read and write",
            "Value #C": "Read",
            "Value #D": "Usable",
        },
    )
    for name in ("Write", "Read and write", "Read"):
        override(table, name, unit="Bps")
    override(table, "Usable", unit="bytes")
    found = rows(
        "Findings",
        "Findings of the last complete run by kind; `wslgpud stress show` explains them.",
        ask(
            f"{gpu('vram_stress_findings')} or label_replace(max by (gpu, uuid) ({gpu('vram_stress_last_run_timestamp_seconds')}) * 0,"
            ' "kind", "nothing", "", "")',
            rows=True,
        ),
        columns={"gpu": "GPU", "kind": "Kind", "Value": "Number"},
        width=6,
        height=7,
    )
    kept = bars(
        "Runs",
        "All stored runs, by verdict.",
        ask(f"sum by (verdict) ({gpu('vram_stress_runs')})", "{{verdict}}", now=True),
        unit="none",
        width=6,
        height=7,
        thresholds=steps((None, NEUTRAL)),
        full=None,
    )
    return [table, found, coloured(kept, COLOURS)]


def stress() -> str:
    """Return the dashboard."""
    return dashboard(
        "wslgpud-stress",
        "wslgpud / VRAM stress runs",
        "The nightly tests of the card's memory: usable VRAM, bandwidth, errors, and changes between drivers.",
        (("", _last()), ("Nights", _nights()), ("Regressions", _drivers())),
        chosen=variables(cards="one"),
        since="now-30d",
        refresh="5m",
    )
