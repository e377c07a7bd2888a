"""The daemon's own health as metrics: sources, ticks, requests, build."""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterator

from wslgpud import __version__
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading, Snapshot

# How the daemon itself fares is Prometheus' to remember, not our database's.
_spec = functools.partial(MetricSpec, stored=False)
_seconds = functools.partial(_spec, kind="gauge", unit="seconds")
_SOURCE = ("source",)

BUILD = _spec("build", "info", "", "Version of wslgpud and of the Python it runs on.", ("version", "python"))
TICKS = _spec("ticks", "counter", "", "Samples taken since the daemon started.")
_WHEN = "When the last sample was taken, in seconds since the epoch."
TICK_TIMESTAMP = _seconds("last_tick_timestamp_seconds", help=_WHEN, decimals=3)
_HAS = "1 if this machine has what the source reads, 0 if it lacks it (not a fault)."
SOURCE_AVAILABLE = _spec("source_available", "gauge", "", _HAS, _SOURCE)
_READ = "1 if the last read of the source succeeded, 0 if it failed or was late."
SOURCE_SUCCESS = _spec("source_success", "gauge", "", _READ, _SOURCE)
_TOOK = "How long the last read of the source took."
SOURCE_DURATION = _seconds("source_duration_seconds", help=_TOOK, labels=_SOURCE, decimals=6)
_AGE = "Age of the source's values at the last sample."
SOURCE_AGE = _seconds("source_age_seconds", help=_AGE, labels=_SOURCE, decimals=3)
_GOOD = "When the source was last read with success, in seconds since the epoch."
SOURCE_LAST_SUCCESS = _seconds("source_last_success_timestamp_seconds", help=_GOOD, labels=_SOURCE, decimals=3)
SOURCE_FAILURES = _spec("source_failures", "counter", "", "Reads of the source that failed or were late.", _SOURCE)
_ANSWERED = "HTTP requests answered, by path (other: not one of ours) and status."
HTTP_REQUESTS = _spec("http_requests", "counter", "", _ANSWERED, ("path", "code"))
HTTP_CONNECTIONS = _spec("http_connections", "gauge", "", "Open HTTP connections.")
_WROTE = "How long it took to write the metrics as text the last time."
RENDER_DURATION = _seconds("exposition_duration_seconds", help=_WROTE, decimals=6)

METRICS: tuple[MetricSpec, ...] = (
    *(BUILD, TICKS, TICK_TIMESTAMP),
    *(SOURCE_AVAILABLE, SOURCE_SUCCESS, SOURCE_DURATION, SOURCE_AGE, SOURCE_LAST_SUCCESS, SOURCE_FAILURES),
    *(HTTP_REQUESTS, HTTP_CONNECTIONS, RENDER_DURATION),
)


def build_reading() -> Reading:
    """Say which version this is."""
    return Reading(BUILD, 1, (__version__, platform.python_version()))


def source_readings(snapshot: Snapshot) -> Iterator[Reading]:
    """Say how the tick and each of its sources went."""
    yield Reading(TICK_TIMESTAMP, snapshot.wall)
    for report in snapshot.reports:
        name = (report.name,)
        yield Reading(SOURCE_AVAILABLE, int(report.health != "absent"), name)
        yield Reading(SOURCE_FAILURES, report.failures_total, name)
        if report.last_success_wall is not None:
            yield Reading(SOURCE_LAST_SUCCESS, report.last_success_wall, name)
        if report.health != "absent":
            yield Reading(SOURCE_SUCCESS, int(report.health == "ok"), name)
            yield Reading(SOURCE_DURATION, report.duration_seconds, name)
        if report.health == "ok":
            yield Reading(SOURCE_AGE, max(0.0, snapshot.mono - report.mono), name)
