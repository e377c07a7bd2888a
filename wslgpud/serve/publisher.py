"""The last snapshot and its cached text in Prometheus' formats: a scrape never reads a source."""

from __future__ import annotations

import functools
import gzip
import logging
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wslgpud import __version__
from wslgpud.host import Clock, SystemClock
from wslgpud.metrics import MetricSpec, counter, gauge, info
from wslgpud.model import Reading, Snapshot
from wslgpud.serve.negotiation import Format

if TYPE_CHECKING:
    from wslgpud.serve.metrics_text import MetricsText

# The daemon's own health is for Prometheus to record, not for our database.
_gauge, _counter = functools.partial(gauge, stored=False), functools.partial(counter, stored=False)

BUILD = info("build", "Version of wslgpud and of the Python it runs on.", "version", "python")
TICKS = _counter("ticks", "Samples taken since the daemon started.")
_WHEN = "When the last sample was taken, in seconds since the epoch."
TICK_TIMESTAMP = _gauge("last_tick_timestamp_seconds", _WHEN)
_HAS = "1 if this machine has what the source reads, 0 if it lacks it (not a fault)."
SOURCE_AVAILABLE = _gauge("source_available", _HAS, "source")
_READ = "1 if the last read of the source succeeded, 0 if it failed or was late."
SOURCE_SUCCESS = _gauge("source_success", _READ, "source")
SOURCE_DURATION = _gauge("source_duration_seconds", "How long the last read of the source took.", "source")
SOURCE_AGE = _gauge("source_age_seconds", "Age of the source's values at the last sample.", "source")
_GOOD = "When the source was last read successfully, in seconds since the epoch."
SOURCE_LAST_SUCCESS = _gauge("source_last_success_timestamp_seconds", _GOOD, "source")
SOURCE_FAILURES = _counter("source_failures", "Reads of the source that failed or were late.", "source")
_ANSWERED = "HTTP requests answered, by path (other: not one of ours) and status."
HTTP_REQUESTS = _counter("http_requests", _ANSWERED, "path", "code")
HTTP_CONNECTIONS = _gauge("http_connections", "Open HTTP connections.")
_WROTE = "Time it took to render the metrics the last time."
RENDER_DURATION = _gauge("exposition_duration_seconds", _WROTE)

METRICS: tuple[MetricSpec, ...] = (
    *(BUILD, TICKS, TICK_TIMESTAMP),
    *(SOURCE_AVAILABLE, SOURCE_SUCCESS, SOURCE_DURATION, SOURCE_AGE, SOURCE_LAST_SUCCESS, SOURCE_FAILURES),
    *(HTTP_REQUESTS, HTTP_CONNECTIONS, RENDER_DURATION),
)

#: A text older than this is rendered anew even without a tick, so that our own health stays current.
FRESH_SECONDS = 1.0

_log = logging.getLogger(__name__)


def build_reading() -> Reading:
    return Reading(BUILD, 1, (__version__, platform.python_version()))


def source_readings(snapshot: Snapshot) -> Iterator[Reading]:
    """Return the readings about the tick and each of its sources."""
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


@dataclass(slots=True)
class _Text:
    published: int
    mono: float
    plain: bytes
    #: created on first request
    zipped: bytes = b""


class Publisher:
    """Hands the last snapshot from the sampler to the server.

    ``publish`` swaps one reference and never blocks; readers take that reference. Texts are cached per snapshot and
    format, so that twenty scrapers cost one rendering.
    """

    def __init__(self, catalogue: Iterable[MetricSpec], clock: Clock | None = None) -> None:
        """Expose families in the order of ``catalogue``."""
        self._order = {spec.name: rank for rank, spec in enumerate(catalogue)}
        self._clock = clock or SystemClock()
        self._extras: list[Callable[[], Iterable[Reading]]] = []
        self._complaints: dict[Callable[[], Iterable[Reading]], str] = {}
        self._published = 0
        #: the last snapshot; None until the first tick
        self.latest: Snapshot | None = None
        self._texts: dict[Format, _Text] = {}
        self._writers: dict[Format, MetricsText] = {}
        self._render_seconds: float | None = None
        self.started_mono = self._clock.mono()

    def publish(self, snapshot: Snapshot) -> None:
        self.latest = snapshot
        self._published += 1

    def add_collector(self, readings: Callable[[], Iterable[Reading]]) -> None:
        """Expose the result of ``readings`` besides the snapshots; a scrape waits for it, so it must be fast."""
        self._extras.append(readings)

    def seconds_since_tick(self) -> float:
        """Return the age of the last snapshot; before the first one, the time since the start."""
        latest = self.latest
        return self._clock.mono() - (self.started_mono if latest is None else latest.mono)

    def uptime_seconds(self) -> float:
        return self._clock.mono() - self.started_mono

    def wall(self) -> float:
        return self._clock.wall()

    def text(self, text_format: Format, *, zipped: bool = False) -> bytes:
        """Return all readings in ``text_format``, gzipped on request."""
        cached, now = self._texts.get(text_format), self._clock.mono()
        if cached is None or cached.published != self._published or now - cached.mono > FRESH_SECONDS:
            cached = self._texts[text_format] = self._render(text_format, now)
        if not zipped:
            return cached.plain
        # Level 1 already compresses metrics to a twentieth; level 6 takes three times as long for a fifth less.
        cached.zipped = cached.zipped or gzip.compress(cached.plain, compresslevel=1, mtime=0)
        return cached.zipped

    def _render(self, text_format: Format, now: float) -> _Text:
        # Imported late: prometheus_client takes 2 MiB, needed only by a daemon that is scraped.
        from wslgpud.serve.metrics_text import PROCESS, MetricsText, families

        published = self._published
        writer = self._writers.setdefault(text_format, MetricsText(text_format))
        plain = writer.of(families(self.readings(), self._order), PROCESS.collect())
        self._render_seconds = self._clock.mono() - now
        return _Text(published, now, plain)

    def readings(self) -> Iterator[Reading]:
        yield build_reading()
        yield Reading(TICKS, self._published)
        if self._render_seconds is not None:
            yield Reading(RENDER_DURATION, self._render_seconds)
        if (latest := self.latest) is not None:
            yield from latest.readings()
            yield from source_readings(latest)
        for extra in self._extras:
            yield from self._or_nothing(extra)

    def _or_nothing(self, readings: Callable[[], Iterable[Reading]]) -> list[Reading]:
        try:
            collected = list(readings())
        except Exception as error:  # noqa: BLE001 - what one part says of itself must not cost all the others
            # Once, not at every scrape.
            if self._complaints.get(readings) != repr(error):
                self._complaints[readings] = repr(error)
                _log.error("no metrics from %s: %r", getattr(readings, "__qualname__", readings), error)
            return []
        self._complaints.pop(readings, None)
        return collected
