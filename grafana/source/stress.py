"""The nights: how much of the card is usable, how fast each part of it is, what a new driver changed."""

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
)  # fmt: skip
from wslgpud.stress.levels import LATE_SECONDS

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
    return [
        figure("Last run", "Passed; findings (something is wrong); left or skipped (somebody used the card); failed.",
               ask(_verdict(), "GPU {{gpu}}", now=True), mappings=WORDS, background=True, width=4),
        figure("Last run began", "A night without a run: the machine was off, or the card was in use.",
               ask(_age("vram_stress_last_run_timestamp_seconds"), now=True), unit="s", width=4),
        figure("Last passed", "The warning comes when none has passed for three days.",
               ask(_age("vram_stress_last_success_timestamp_seconds"), now=True), unit="s", width=4,
               thresholds=steps((None, GOOD), (LATE_SECONDS, WARNING))),
        figure("Usable", "What could be taken without any of it landing in shared memory.",
               ask(_size("usable"), now=True), unit="bytes", width=4, decimals=1),
        figure("Verified", "Share of the free memory of which every byte was written and read back.",
               ask(f"max({gpu('vram_stress_coverage_ratio')})", now=True), unit="percentunit", width=4, decimals=1),
        figure("Wrong words", "In all runs kept. Any at all: take back overclocking, test again, replace the card.",
               ask(f"max({gpu('vram_stress_errors')})", now=True), width=4, decimals=0,
               thresholds=steps((None, GOOD), (1, CRITICAL))),
        figure("Usable share", "Of the card's memory as it is sold.",
               ask(_or_not_here(f"max({gpu('vram_stress_usable_ratio')})"), now=True), unit="percentunit", width=4,
               decimals=1, mappings=NOT_HERE_WORDS),
        figure("Reading speed", "As a share of what clock and width of the card's memory allow.",
               ask(_or_not_here(f"max({gpu('vram_stress_bandwidth_ratio', op='read')})"), now=True),
               unit="percentunit", width=4, decimals=1, mappings=NOT_HERE_WORDS),
        figure("ECC errors", "That the card saw in the last complete run; those it corrected count.",
               ask(_or_not_here(f"sum({gpu('vram_stress_ecc_errors')})"), now=True), width=4, decimals=0,
               mappings=NOT_HERE_WORDS, thresholds=steps((None, GOOD), (1, WARNING))),
        figure("Hottest", "Highest temperature of the core in the last complete run.",
               ask(_or_not_here(f"max({gpu('vram_stress_temperature_celsius')})"), now=True), unit="celsius", width=4,
               mappings=NOT_HERE_WORDS),
        figure("Slowed down", "Share of that run in which heat or the power supply held the clocks down.",
               ask(_or_not_here(f"max({gpu('vram_stress_slowed_ratio')})"), now=True), unit="percentunit", width=4,
               decimals=0, mappings=NOT_HERE_WORDS),
        figure("Took", "How long the card was in use for the last complete run.",
               ask(f"max({gpu('vram_stress_duration_seconds')})", now=True), unit="s", width=4, decimals=1),
    ]  # fmt: skip


def _nights() -> list[Panel]:
    layers = lines(
        "Memory of the card, night by night",
        "Kept by the driver, held by others, used by CUDA itself, usable, and what landed in shared memory.",
        *(ask(_size(kind), kind) for kind in ("reserved", "foreign", "context", "usable", "spilled")),
        ask(_size("total"), "total"), unit="bytes", stacked=True, width=12, height=9,
    )  # fmt: skip
    coloured(layers, {"reserved": NOT_HERE, "foreign": "yellow", "context": "purple", "usable": GOOD,
                      "spilled": CRITICAL})  # fmt: skip
    speed = lines(
        "Bandwidth", "Median over all chunks of 256 MiB, and the slowest chunk.",
        ask(gpu("vram_stress_bandwidth_bytes_per_second"), "{{op}} {{stat}}"), unit="Bps", width=12, height=9, fill=0,
    )  # fmt: skip
    return [
        states("Verdicts", "Of each card's last run; gaps in the nights show as a run that grows old.",
               ask(_verdict(), "GPU {{gpu}}"), WORDS, height=4),
        limit_line(layers, "total"), speed,
        heat("Bandwidth across the card",
             "Read bandwidth of the slowest chunk in each part of the card: in order of allocation from top to bottom, "
             "time from left to right. A red row is a part that has got slow, or lies in shared memory; a column that "
             "turns red, a new driver or somebody else's load.",
             ask(f"max by (region) ({gpu('vram_stress_region_bandwidth_bytes_per_second')})", "{{region}}"),
             unit="Bps"),
        lines("Share of peak bandwidth", "Median bandwidth as a share of what clock and width of the memory allow.",
              ask(gpu("vram_stress_bandwidth_ratio"), "{{op}}"), unit="percentunit", most=1, width=8, height=7, fill=0),
        lines("Usable share by night", "Share of the card's memory that programs can take.",
              ask(gpu("vram_stress_usable_ratio"), "GPU {{gpu}}"), unit="percentunit", most=1, width=8, height=7),
        lines("Heat", "Highest temperature of the core in each run.",
              ask(gpu("vram_stress_temperature_celsius"), "GPU {{gpu}}"), unit="celsius", least=20, width=8, height=7),
    ]  # fmt: skip


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
        "By driver", "Means over the time shown, for each driver and torch: what an update has brought or cost.",
        *asked, width=12, height=7,
        columns={"driver": "Driver", "torch": "torch", "Value #A": "Write", "Value #B": "Read and write",
                 "Value #C": "Read", "Value #D": "Usable"},
    )  # fmt: skip
    for name in ("Write", "Read and write", "Read"):
        override(table, name, unit="Bps")
    override(table, "Usable", unit="bytes")
    found = rows(
        "Findings", "What the last complete run found, by kind; `wslgpud stress show` has the words.",
        ask(f'{gpu("vram_stress_findings")} or label_replace(max by (gpu, uuid) ({gpu("vram_stress_last_run_timestamp_seconds")}) * 0,'
            ' "kind", "nothing", "", "")', rows=True),
        columns={"gpu": "GPU", "kind": "Kind", "Value": "Number"}, width=6, height=7,
    )  # fmt: skip
    kept = bars(
        "Runs", "All that are kept, by verdict.",
        ask(f"sum by (verdict) ({gpu('vram_stress_runs')})", "{{verdict}}", now=True), unit="none", width=6, height=7,
        thresholds=steps((None, NEUTRAL)), full=None,
    )  # fmt: skip
    return [table, found, coloured(kept, COLOURS)]


def stress() -> str:
    """Return the dashboard."""
    return dashboard(
        "wslgpud-stress", "wslgpud / VRAM stress runs",
        "The nightly runs that test the card's memory: usable VRAM, bandwidth, errors, and what a driver changed.",
        (("", _last()), ("Nights", _nights()), ("Regressions", _drivers())),
        chosen=variables(cards="one"), since="now-30d", refresh="5m",
    )  # fmt: skip
