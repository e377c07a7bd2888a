"""The daemon itself: does it sample, does it write, does it cost what it should, and was it right?"""

from __future__ import annotations

from grafana.source.frame import dashboard, variables
from grafana.source.kit import (
    CRITICAL,
    GOOD,
    NEUTRAL,
    NOT_HERE,
    WARNING,
    Panel,
    ask,
    figure,
    lines,
    metric,
    override,
    rate,
    rows,
    states,
    steps,
    words,
)  # fmt: skip

CHOSEN = '{job=~"$job", instance=~"$instance"}'
WRITES = words({0: ("writes", GOOD), 1: ("cannot write", CRITICAL)})
UP = words({1: ("up", GOOD), 0: ("down", CRITICAL)})
SOURCE = words({1: ("answers", GOOD), 0: ("silent", CRITICAL), -1: ("not on this machine", NOT_HERE)})
#: the goals that the README measures
PROCESSOR_GOAL_RATIO, MEMORY_GOAL_BYTES = 0.005, 60 << 20


def _now() -> list[Panel]:
    return [
        figure("Daemon", "Does Prometheus reach it?", ask(f"min(up{CHOSEN})", now=True), mappings=UP,
               background=True, width=3),
        figure("Version", "Of wslgpud, and of the Python it runs on.",
               ask(metric("build"), "{{version}} on Python {{python}}", now=True), names=True, width=5,
               colour=NEUTRAL),
        figure("Last sample", "Age of the newest sample, as Prometheus sees it.",
               ask(f"time() - max({metric('last_tick_timestamp_seconds')})", now=True), unit="s", width=4,
               decimals=0, thresholds=steps((None, GOOD), (120, CRITICAL))),
        figure("Processor", "Share of one core; without the NVML child.",
               ask(f"sum(rate(process_cpu_seconds_total{CHOSEN}[5m]))"), unit="percentunit", width=3, decimals=2,
               spark=True, thresholds=steps((None, GOOD), (4 * PROCESSOR_GOAL_RATIO, WARNING))),
        figure("Memory", "Resident; without the NVML child.", ask(f"sum(process_resident_memory_bytes{CHOSEN})"),
               unit="bytes", width=3, spark=True, thresholds=steps((None, GOOD), (4 * MEMORY_GOAL_BYTES, WARNING))),
        figure("Database", "Can history be written? What cannot waits in memory.",
               ask(f"max({metric('store_failing')})", now=True), mappings=WRITES, background=True, width=3),
        figure("Queue", "Samples that wait to be written; many of them: the disk takes none.",
               ask(f"max({metric('store_queue_ticks')})", now=True), width=3, decimals=0),
    ]  # fmt: skip


def _sampling() -> list[Panel]:
    absent = f"({metric('source_available')} == 0) - 1"
    return [
        states("Sources", "Each part of the machine that is looked at. Not on this machine: no fault.",
               ask(f"max by (source) ({metric('source_success')} or {absent})", "{{source}}"), SOURCE, height=11),
        lines("Time of a source", "How long its last look took. Rises when a driver or a disk hangs.",
              ask(f"max by (source) ({metric('source_duration_seconds')})", "{{source}}"), unit="s", fill=0),
        lines("Rhythm", "Planned time between two samples, shorter while memory shrinks fast; and how much later than "
              "planned they came: the machine stalls.",
              ask(f"max({metric('tick_interval_seconds')})", "planned"),
              ask(f"max({metric('tick_lateness_seconds')})", "too late"), unit="s"),
        lines("NVML's process", "Starts, hangs and crashes of the child that asks the driver.",
              *(ask(f"sum({metric(f'gpu_probe_{what}')})", what) for what in ("starts", "hangs", "crashes")),
              unit="none", width=8, height=7, decimals=0),
        lines("Calls that failed", "By NVML's error.", ask(rate(metric("gpu_nvml_errors")), "{{error}}"),
              unit="cps", width=8, height=7, soft_most=1),
        lines("Failed looks", "By source.", ask(f"sum by (source) ({rate(metric('source_failures'))}) > 0 or "
              f"label_replace(sum({rate(metric('source_failures'))}), \"source\", \"all\", \"\", \"\")", "{{source}}"),
              unit="cps", width=8, height=7, soft_most=1),
    ]  # fmt: skip


def _history() -> list[Panel]:
    return [
        lines("Files", "The database, its write-ahead log, and the room inside that new data uses first.",
              ask(metric("store_file_bytes"), "database"), ask(metric("store_wal_bytes"), "log"),
              ask(metric("store_free_bytes"), "room inside"), unit="bytes"),
        lines("Commits", "How long the last one took, and how long ago it was.",
              ask(metric("store_commit_duration_seconds"), "took"), ask(metric("store_commit_age_seconds"), "ago"),
              unit="s"),
    ]  # fmt: skip


def _messages() -> list[Panel]:
    nobody = f'label_replace(max({metric("build")}) * 0, "channel", "no message yet", "", "")'
    table = rows(
        "Alert deliveries", "Messages by channel and what became of them: sent, failed (tried again), refused or "
        "expired (given up).",
        ask(f"sum by (channel, outcome) ({metric('alert_deliveries')}) or on () {nobody}", rows=True),
        columns={"channel": "Channel", "outcome": "Outcome", "Value": "Messages"}, width=8, height=7,
    )  # fmt: skip
    override(table, "Messages", custom__width=110)
    warned = f"max({metric('exhaustions', warned='yes')}) or max({metric('build')}) * 0"
    missed = f"max({metric('exhaustions', warned='no')}) or max({metric('build')}) * 0"
    return [
        table,
        figure("Warned in time", "Processes killed for lack of memory after a warning at least 5 s before.",
               ask(warned, now=True), width=3, height=7, decimals=0, colour=GOOD),
        figure("Missed", "Kills that no warning had announced.", ask(missed, now=True), width=3, height=7,
               decimals=0, thresholds=steps((None, GOOD), (1, WARNING))),
        figure("False alarms", "Warnings that ended without a kill and with more than 10 % left all the time.",
               ask(f"max({metric('false_alarms')})", now=True), width=3, height=7, decimals=0, colour=NEUTRAL),
        lines("Requests", "HTTP requests answered, by path and status.",
              ask(f"sum by (path, code) ({rate(metric('http_requests'))})", "{{path}} {{code}}"), unit="reqps",
              width=7, height=7),
    ]  # fmt: skip


def itself() -> str:
    """Return the dashboard."""
    return dashboard(
        "wslgpud-daemon", "wslgpud / Daemon", "wslgpud itself: samples, history, messages, cost, and whether it was right.",
        (
            ("", _now()), ("Samples", _sampling()), ("History", _history()),
            ("Warnings", _messages()),
        ),
        chosen=variables(),
    )  # fmt: skip
