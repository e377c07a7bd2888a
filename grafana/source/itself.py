"""The daemon itself: does it sample, does it write, does it cost what it should, and was it right?"""

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
)  # fmt: skip

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
        figure("Age of forecasts", "Of the sample that the oldest rests on; above 0 one is held because no new sample "
               "comes.", ask(f"max({metric('risk_forecast_age_seconds')})", now=True), unit="s", width=4, decimals=0,
               thresholds=steps((None, GOOD), (HELD_SECONDS, WARNING))),
        figure("OOM score", "Whom the kernel would kill (oom_score_adj): below 0 others before this daemon, "
               "-1000 never it. 0: it is not protected, as without the systemd service.",
               ask(f"max({metric('oom_score_adjust')})", now=True), width=4, decimals=0, thresholds=PROTECTED),
        figure("NVML", "Version of NVIDIA's management library in use; or that there is none.",
               ask(f"max by (version) ({metric('gpu_library')}) or on () {no_library}", "{{version}}", now=True),
               names=True, width=4, colour=NEUTRAL),
        figure("Waiting messages", "That a channel has not taken yet; many of them: it is down, or quiet hours.",
               ask(f"sum({metric('alert_deliveries_waiting')}) or max({metric('build')}) * 0", now=True), width=4,
               decimals=0, thresholds=steps((None, GOOD), (WAITING, WARNING))),
        figure("Connections", "Open HTTP connections.", ask(f"max({metric('http_connections')})", now=True), width=4,
               decimals=0),
        figure("Writing metrics", "How long it took to write them as text the last time.",
               ask(f"max({metric('exposition_duration_seconds')})", now=True), unit="s", width=4, decimals=1),
    ]  # fmt: skip


def _sampling() -> list[Panel]:
    absent = f"({metric('source_available')} == 0) - 1"
    return [
        states("Sources", "Each part of the machine that is looked at. Not on this machine: no fault.",
               ask(f"max by (source) ({metric('source_success')} or {absent})", "{{source}}"), SOURCE, height=11),
        lines("Time of a source", "How long its last look took. Rises when a driver or a disk hangs.",
              ask(f"max by (source) ({metric('source_duration_seconds')})", "{{source}}"), unit="s", fill=0, height=9),
        lines("Age of values", "How old what a source says was at the last sample: some are asked rarely by design.",
              ask(f"max by (source) ({metric('source_age_seconds')})", "{{source}}"), unit="s", fill=0, height=9, soft_most=5),
        lines("Rhythm", "Planned time between two samples, shorter while memory shrinks fast; and how much later than "
              "planned they came: the machine stalls.",
              ask(f"max({metric('tick_interval_seconds')})", "planned"),
              ask(f"max({metric('tick_lateness_seconds')})", "too late"), unit="s"),
        lines("Samples", "Taken, and given up, as events and alerts are, because the disk took none for too long.",
              ask(rate(metric("ticks")), "taken"), ask(rate(metric("store_dropped_ticks")), "given up"),
              ask(rate(metric("store_dropped_records")), "events and alerts given up"), unit="cps"),
        lines("NVML's process", "Starts, hangs and crashes of the child that asks the driver.",
              *(ask(f"sum({metric(f'gpu_probe_{what}')})", what) for what in ("starts", "hangs", "crashes")),
              unit="none", width=8, height=7, decimals=0),
        lines("Calls that failed", "By NVML's error.", ask(rate(metric("gpu_nvml_errors")), "{{error}}"),
              unit="cps", width=8, height=7, soft_most=1),
        lines("Failed looks", "By source; and messages of the kernel that were overwritten before we read them.",
              ask(f"sum by (source) ({rate(metric('source_failures'))}) > 0 or "
              f"label_replace(sum({rate(metric('source_failures'))}), \"source\", \"all\", \"\", \"\")", "{{source}}"),
              ask(f"sum({rate(metric('kernel_log_lost_records'))}) or max({metric('build')}) * 0", "lost kernel messages"),
              unit="cps", width=8, height=7, soft_most=1),
    ]  # fmt: skip


def _history() -> list[Panel]:
    def since_start(title: str, text: str, name: str, colour: str = CRITICAL) -> Panel:
        return figure(title, text, ask(f"max({metric(name)})", now=True), width=4, decimals=0,
                      thresholds=steps((None, GOOD), (1, colour)))  # fmt: skip

    not_yet = f"max({metric('build')}) * 0 - 1"
    return [
        figure("Last look through", "Since the whole database file was last checked; it is done at night.",
               ask(f"time() - max({metric('store_last_check_timestamp_seconds')}) or {not_yet}", now=True), unit="s",
               mappings=NOT_YET, width=4, decimals=0),
        figure("Faults found", "What that look found wrong in the file.",
               ask(f"max({metric('store_check_findings')}) or {not_yet}", now=True), mappings=NOT_YET, width=4,
               decimals=0, thresholds=steps((None, GOOD), (1, CRITICAL))),
        figure("Set aside", "Was a damaged file set aside since the start, and what could be read taken over?",
               ask(f"max({metric('store_set_aside')})", now=True), mappings=SET_ASIDE, width=4),
        since_start("Given up", "Samples that the disk took too long to take.", "store_dropped_ticks"),
        since_start("Failed writes", "Tried again until they succeeded.", "store_write_errors", WARNING),
        since_start("Refused values", "Not finite, beyond 64 bits, or of more series than one machine may have.",
                    "store_rejected_values", WARNING),
        lines("Files", "The database, its write-ahead log, and the room inside that new data uses first.",
              ask(metric("store_file_bytes"), "database"), ask(metric("store_wal_bytes"), "log"),
              ask(metric("store_free_bytes"), "room inside"), unit="bytes", width=6),
        lines("Commits", "How long the last one took, and how long ago it was.",
              ask(metric("store_commit_duration_seconds"), "took"), ask(metric("store_commit_age_seconds"), "ago"),
              unit="s", width=6),
        lines("Deleted rows", "For their age, or for the size of the whole.",
              ask(rate(metric("store_purged_rows")), "deleted"), unit="cps", width=6, soft_most=1),
        lines("Written", "What the history writes to the disk: 1 kB/s is 86 MB a day of an SSD's wear.",
              ask(rate(metric("store_written_bytes")), "written"), unit="Bps", width=6),
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
    ahead = f"max({metric('warning_lead_seconds')}) or max({metric('build')}) * 0 - 1"
    pushes = f'label_replace(max({metric("build")}) * 0, "outcome", "no collector", "", "")'
    return [
        figure("Warned in time", "Processes killed for lack of memory after a warning at least 5 s before.",
               ask(warned, now=True), width=6, decimals=0, colour=GOOD),
        figure("Missed", "Kills that no warning had announced.", ask(missed, now=True), width=6,
               decimals=0, thresholds=steps((None, GOOD), (1, WARNING))),
        figure("False alarms", "Warnings that ended without a kill and with more than 10 % left all the time.",
               ask(f"max({metric('false_alarms')})", now=True), width=6, decimals=0, colour=NEUTRAL),
        figure("Ahead of the last kill", "How long before it the warning came.", ask(ahead, now=True), unit="s",
               mappings=words({-1: ("no kill yet", GOOD)}), width=6, decimals=0, colour=NEUTRAL),
        table,
        lines("Requests", "HTTP requests answered, by path and status.",
              ask(f"sum by (path, code) ({rate(metric('http_requests'))})", "{{path}} {{code}}"), unit="reqps",
              width=8, height=7),
        lines("Pushes to OpenTelemetry", "By outcome; none where no collector is set up.",
              ask(f"sum by (outcome) ({rate(metric('otlp_pushes'))}) or on () {pushes}", "{{outcome}}"), unit="cps",
              width=8, height=7, soft_most=1),
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
