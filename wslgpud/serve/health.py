"""The daemon's own health as metrics: sources, ticks, requests, build."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from wslgpud import __version__
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading, Snapshot, SourceReport

_SOURCE = ("source",)

BUILD = MetricSpec(
    "build",
    "info",
    "",
    "Version of wslgpud and of the Python it runs on.",
    ("version", "python"),
    stored=False,
)
TICKS = MetricSpec("ticks", "counter", "", "Samples taken since the daemon started.", stored=False)
TICK_TIMESTAMP = MetricSpec(
    "last_tick_timestamp_seconds",
    "gauge",
    "seconds",
    "When the last sample was taken, in seconds since the epoch.",
    decimals=3,
    stored=False,
)
SOURCE_AVAILABLE = MetricSpec(
    "source_available",
    "gauge",
    "",
    "1 if this machine has what the source reads, 0 if it lacks it (not a fault).",
    _SOURCE,
    stored=False,
)
SOURCE_SUCCESS = MetricSpec(
    "source_success",
    "gauge",
    "",
    "1 if the last read of the source succeeded, 0 if it failed or was late.",
    _SOURCE,
    stored=False,
)
SOURCE_DURATION = MetricSpec(
    "source_duration_seconds",
    "gauge",
    "seconds",
    "How long the last read of the source took.",
    _SOURCE,
    decimals=6,
    stored=False,
)
SOURCE_AGE = MetricSpec(
    "source_age_seconds",
    "gauge",
    "seconds",
    "Age of the source's values at the last sample.",
    _SOURCE,
    decimals=3,
    stored=False,
)
SOURCE_LAST_SUCCESS = MetricSpec(
    "source_last_success_timestamp_seconds",
    "gauge",
    "seconds",
    "When the source was last read with success, in seconds since the epoch.",
    _SOURCE,
    decimals=3,
    stored=False,
)
SOURCE_FAILURES = MetricSpec(
    "source_failures", "counter", "", "Reads of the source that failed or were late.", _SOURCE, stored=False
)
HTTP_REQUESTS = MetricSpec(
    "http_requests",
    "counter",
    "",
    "HTTP requests answered, by path (other: not one of ours) and status.",
    ("path", "code"),
    stored=False,
)
HTTP_CONNECTIONS = MetricSpec("http_connections", "gauge", "", "Open HTTP connections.", stored=False)
RENDER_DURATION = MetricSpec(
    "exposition_duration_seconds",
    "gauge",
    "seconds",
    "How long it took to write the metrics as text the last time.",
    decimals=6,
    stored=False,
)

METRICS: tuple[MetricSpec, ...] = (
    BUILD,
    TICKS,
    TICK_TIMESTAMP,
    SOURCE_AVAILABLE,
    SOURCE_SUCCESS,
    SOURCE_DURATION,
    SOURCE_AGE,
    SOURCE_LAST_SUCCESS,
    SOURCE_FAILURES,
    HTTP_REQUESTS,
    HTTP_CONNECTIONS,
    RENDER_DURATION,
)


def of_build() -> Reading:
    """Say which version this is."""
    return Reading(BUILD, 1, (__version__, platform.python_version()))


def of_snapshot(snapshot: Snapshot) -> Iterator[Reading]:
    """Say how the tick and each of its sources went."""
    yield Reading(TICK_TIMESTAMP, snapshot.wall)
    for report in snapshot.reports:
        yield from _of_source(report, snapshot.mono)


def _of_source(report: SourceReport, now_mono: float) -> Iterator[Reading]:
    name = (report.name,)
    yield Reading(SOURCE_AVAILABLE, int(report.health != "absent"), name)
    yield Reading(SOURCE_FAILURES, report.failures_total, name)
    if report.last_success_wall is not None:
        yield Reading(SOURCE_LAST_SUCCESS, report.last_success_wall, name)
    if report.health == "absent":
        return
    yield Reading(SOURCE_SUCCESS, int(report.health == "ok"), name)
    yield Reading(SOURCE_DURATION, report.duration_seconds, name)
    if report.health == "ok":
        yield Reading(SOURCE_AGE, max(0.0, now_mono - report.mono), name)
