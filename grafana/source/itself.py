"""The daemon itself: its samples, its history, its costs, and the accuracy of its warnings."""

from __future__ import annotations

from grafana.source.frame import dashboard, variables
from grafana.source.kit import (
    CRITICAL,
    GOOD,
    NEUTRAL,
    NOT_HERE,
    NOTE,
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
)

CHOSEN = '{job=~"$job", instance=~"$instance"}'
WRITES = words({0: ("writes", GOOD), 1: ("cannot write", CRITICAL)})
NOT_YET = words({-1: ("not yet", NOT_HERE)})
SET_ASIDE = words({0: ("no", GOOD), 1: ("yes", CRITICAL)})
UP = words({1: ("up", GOOD), 0: ("down", CRITICAL)})
SOURCE = words({1: ("answers", GOOD), 0: ("silent", CRITICAL), -1: ("not on this machine", NOT_HERE)})
#: a forecast this old, and so many messages at once, are more than a moment's delay
HELD_SECONDS, WAITING = 30, 10
PROTECTED = steps((None, GOOD), (0, NOTE), (1, WARNING))
#: the goals that the README measures
PROCESSOR_GOAL_RATIO, MEMORY_GOAL_BYTES = 0.005, 60 << 20


def _now() -> list[Panel]:
    no_library = f'label_replace(max({metric("build")}) * 0, "version", "none", "", "")'
    return [
        figure(
            "Daemon",
            "Whether Prometheus can scrape it.",
            ask(f"min(up{CHOSEN})", now=True),
            mappings=UP,
            background=True,
            width=3,
        ),
        figure(
            "Version",
            "Versions of wslgpud and of the Python it runs on.",
            ask(metric("build"), "{{version}} on Python {{python}}", now=True),
            names=True,
            width=5,
            colour=NEUTRAL,
        ),
        figure(
            "Last sample",
            "Age of the newest sample, as Prometheus sees it.",
            ask(f"time() - max({metric('last_tick_timestamp_seconds')})", now=True),
            unit="s",
            thresholds=steps((None, GOOD), (120, CRITICAL)),
        ),
        figure(
            "Processor",
            "Share of one core; without the NVML child.",
            ask(f"sum(rate(process_cpu_seconds_total{CHOSEN}[5m]))"),
            unit="percentunit",
            width=3,
            decimals=2,
            spark=True,
            thresholds=steps((None, GOOD), (4 * PROCESSOR_GOAL_RATIO, WARNING)),
        ),
        figure(
            "Memory",
            "Resident; without the NVML child.",
            ask(f"sum(process_resident_memory_bytes{CHOSEN})"),
            unit="bytes",
            width=3,
            decimals=None,
            spark=True,
            thresholds=steps((None, GOOD), (4 * MEMORY_GOAL_BYTES, WARNING)),
        ),
        figure(
            "Database",
            "Whether history can be written. Until it can, samples wait in memory.",
            ask(f"max({metric('store_failing')})", now=True),
            mappings=WRITES,
            background=True,
            width=3,
        ),
        figure(
            "Queue",
            "Samples waiting to be written; many: the disk accepts none.",
            ask(f"max({metric('store_queue_ticks')})", now=True),
            width=3,
        ),
        figure(
            "Age of forecasts",
            "Age of the sample behind the oldest forecast; above 0, it is held because no new sample arrives.",
            ask(f"max({metric('risk_forecast_age_seconds')})", now=True),
            unit="s",
            thresholds=steps((None, GOOD), (HELD_SECONDS, WARNING)),
        ),
        figure(
            "OOM score",
            "The kernel's choice when memory runs out (oom_score_adj): below 0 it kills others before this daemon, "
            "at -1000 never the daemon. 0: not protected, as without the systemd service.",
            ask(f"max({metric('oom_score_adjust')})", now=True),
            thresholds=PROTECTED,
        ),
        figure(
            "NVML",
            "Version of NVIDIA's management library, if there is one.",
            ask(f"max by (version) ({metric('gpu_library')}) or on () {no_library}", "{{version}}", now=True),
            names=True,
            colour=NEUTRAL,
        ),
        figure(
            "Undelivered messages",
            "Messages no channel has accepted yet; many: a channel is down, or quiet hours.",
            ask(f"sum({metric('alert_deliveries_waiting')}) or max({metric('build')}) * 0", now=True),
            thresholds=steps((None, GOOD), (WAITING, WARNING)),
        ),
        figure("Connections", "Open HTTP connections.", ask(f"max({metric('http_connections')})", now=True)),
        figure(
            "Exposition time",
            "Time it took to render the metrics the last time.",
            ask(f"max({metric('exposition_duration_seconds')})", now=True),
            unit="s",
            decimals=1,
        ),
    ]


def _sampling() -> list[Panel]:
    absent = f"({metric('source_available')} == 0) - 1"
    return [
        states(
            "Sources",
            "Every source of readings. Not on this machine: no fault.",
            ask(f"max by (source) ({metric('source_success')} or {absent})", "{{source}}"),
            SOURCE,
            height=11,
        ),
        lines(
            "Duration of reads",
            "How long the last read of each source took. Rises when a driver or a disk hangs.",
            ask(f"max by (source) ({metric('source_duration_seconds')})", "{{source}}"),
            unit="s",
            width=12,
            fill=0,
            height=9,
        ),
        lines(
            "Age of values",
            "Age of each source's values at the last sample: some are read rarely by design.",
            ask(f"max by (source) ({metric('source_age_seconds')})", "{{source}}"),
            unit="s",
            width=12,
            fill=0,
            height=9,
            soft_most=5,
        ),
        lines(
            "Sampling interval",
            "Planned time between two samples, shorter while memory shrinks fast; and how late "
            "they came: the machine stalls.",
            ask(f"max({metric('tick_interval_seconds')})", "planned"),
            ask(f"max({metric('tick_lateness_seconds')})", "lateness"),
            unit="s",
            width=12,
        ),
        lines(
            "Samples",
            "Taken; and dropped, like events and alerts, because the disk accepted none for too long.",
            ask(rate(metric("ticks")), "taken"),
            ask(rate(metric("store_dropped_ticks")), "dropped"),
            ask(rate(metric("store_dropped_records")), "events and alerts dropped"),
            unit="cps",
            width=12,
        ),
        lines(
            "NVML process",
            "Starts, hangs and crashes of the child process that queries the driver.",
            *(ask(f"sum({metric(f'gpu_probe_{what}')})", what) for what in ("starts", "hangs", "crashes")),
            unit="none",
            height=7,
            decimals=0,
        ),
        lines(
            "Failed NVML calls",
            "By NVML's error.",
            ask(rate(metric("gpu_nvml_errors")), "{{error}}"),
            unit="cps",
            height=7,
            soft_most=1,
        ),
        lines(
            "Failed reads",
            "By source; and kernel messages overwritten before they could be read.",
            ask(
                f"sum by (source) ({rate(metric('source_failures'))}) > 0 or "
                f'label_replace(sum({rate(metric("source_failures"))}), "source", "all", "", "")',
                "{{source}}",
            ),
            ask(
                f"sum({rate(metric('kernel_log_lost_records'))}) or max({metric('build')}) * 0", "lost kernel messages"
            ),
            unit="cps",
            height=7,
            soft_most=1,
        ),
    ]


def _history() -> list[Panel]:
    def since_start(title: str, text: str, name: str, colour: str = CRITICAL) -> Panel:
        return figure(title, text, ask(f"max({metric(name)})", now=True), thresholds=steps((None, GOOD), (1, colour)))

    not_yet = f"max({metric('build')}) * 0 - 1"
    return [
        figure(
            "Last database check",
            "Time since the last full check of the database file; it runs at night.",
            ask(f"time() - max({metric('store_last_check_timestamp_seconds')}) or {not_yet}", now=True),
            unit="s",
            mappings=NOT_YET,
        ),
        figure(
            "Faults found",
            "Faults that check found in the file.",
            ask(f"max({metric('store_check_findings')}) or {not_yet}", now=True),
            mappings=NOT_YET,
            thresholds=steps((None, GOOD), (1, CRITICAL)),
        ),
        figure(
            "Quarantined",
            "Whether a damaged file was set aside since the start, and its readable part taken over.",
            ask(f"max({metric('store_set_aside')})", now=True),
            mappings=SET_ASIDE,
        ),
        since_start("Dropped samples", "Samples the disk did not accept in time.", "store_dropped_ticks"),
        since_start("Failed writes", "Retried until they succeeded.", "store_write_errors", WARNING),
        since_start(
            "Rejected values",
            "Not finite, beyond 64 bits, or beyond the limit on series.",
            "store_rejected_values",
            WARNING,
        ),
        lines(
            "Files",
            "The database, its write-ahead log, and the free pages that new data uses first.",
            ask(metric("store_file_bytes"), "database"),
            ask(metric("store_wal_bytes"), "log"),
            ask(metric("store_free_bytes"), "free pages"),
            unit="bytes",
            width=6,
        ),
        lines(
            "Commits",
            "How long the last one took, and how long ago it was.",
            ask(metric("store_commit_duration_seconds"), "took"),
            ask(metric("store_commit_age_seconds"), "ago"),
            unit="s",
            width=6,
        ),
        lines(
            "Deleted rows",
            "Deleted for their age or the size limit.",
            ask(rate(metric("store_purged_rows")), "deleted"),
            unit="cps",
            width=6,
            soft_most=1,
        ),
        lines(
            "Written",
            "What the history writes to the disk: 1 KiB/s is 84 MiB of SSD wear per day.",
            ask(rate(metric("store_written_bytes")), "written"),
            unit="binBps",
            width=6,
        ),
    ]


def _messages() -> list[Panel]:
    nobody = f'label_replace(max({metric("build")}) * 0, "channel", "no message yet", "", "")'
    table = rows(
        "Alert deliveries",
        "Messages by channel and outcome: sent, failed (retried), refused or expired (dropped).",
        ask(f"sum by (channel, outcome) ({metric('alert_deliveries')}) or on () {nobody}", rows=True),
        columns={"channel": "Channel", "outcome": "Outcome", "Value": "Messages"},
        width=8,
        height=7,
    )
    override(table, "Messages", custom__width=110)
    warned = f"max({metric('exhaustions', warned='yes')}) or max({metric('build')}) * 0"
    missed = f"max({metric('exhaustions', warned='no')}) or max({metric('build')}) * 0"
    ahead = f"max({metric('warning_lead_seconds')}) or max({metric('build')}) * 0 - 1"
    pushes = f'label_replace(max({metric("build")}) * 0, "outcome", "no collector", "", "")'
    return [
        figure(
            "Warned in time",
            "Processes killed for lack of memory after a warning at least 5 s before.",
            ask(warned, now=True),
            width=6,
            colour=GOOD,
        ),
        figure(
            "Missed",
            "Kills without a prior warning.",
            ask(missed, now=True),
            width=6,
            thresholds=steps((None, GOOD), (1, WARNING)),
        ),
        figure(
            "False alarms",
            "Warnings that ended without a kill, with more than 10 % of the memory left throughout.",
            ask(f"max({metric('false_alarms')})", now=True),
            width=6,
            colour=NEUTRAL,
        ),
        figure(
            "Lead of the last warning",
            "How long before the last kill the warning came.",
            ask(ahead, now=True),
            unit="s",
            mappings=words({-1: ("no kill yet", GOOD)}),
            width=6,
            colour=NEUTRAL,
        ),
        table,
        lines(
            "Requests",
            "HTTP requests answered, by path and status.",
            ask(f"sum by (path, code) ({rate(metric('http_requests'))})", "{{path}} {{code}}"),
            unit="reqps",
            height=7,
        ),
        lines(
            "Pushes to OpenTelemetry",
            "By outcome; none if no collector is configured.",
            ask(f"sum by (outcome) ({rate(metric('otlp_pushes'))}) or on () {pushes}", "{{outcome}}"),
            unit="cps",
            height=7,
            soft_most=1,
        ),
    ]


def itself() -> str:
    """Return the dashboard."""
    return dashboard(
        "wslgpud-daemon",
        "wslgpud / Daemon",
        "wslgpud itself: samples, history, messages, cost, and accuracy.",
        (("", _now()), ("Samples", _sampling()), ("History", _history()), ("Warnings", _messages())),
        chosen=variables(),
    )
