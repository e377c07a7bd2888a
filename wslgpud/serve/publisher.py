"""The last snapshot and its text in Prometheus' formats: a scrape never reads a source.

prometheus_client writes the text. It takes 2 MiB, so it is imported by the first scrape.
"""

from __future__ import annotations

import functools
import gzip
import logging
import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from wslgpud import __version__
from wslgpud.host import Clock, SystemClock
from wslgpud.metrics import MetricSpec, counter, gauge, info
from wslgpud.model import Number, Reading, Snapshot

if TYPE_CHECKING:
    from prometheus_client.core import Metric

#: the formats, by their media types: https://prometheus.io/docs/instrumenting/content_negotiation/
CLASSIC = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

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


Labels = tuple[str, ...]
#: cached names of series: several times the number of a machine's
_MAX_NAMES = 4096


class MetricFamily(NamedTuple):
    """The values of one metric by their labels."""

    spec: MetricSpec
    series: dict[Labels, Number]


def families(readings: Iterable[Reading], order: Mapping[str, int]) -> list[MetricFamily]:
    """Group readings into families, each once, in the order of the catalogue.

    A series from two sources is exposed once, with the last value: Prometheus drops a scrape that contains a duplicate.
    Non-finite numbers are unknown, hence absent. Families that ``order`` (name -> rank) does not know come last, by
    name.
    """
    grouped: dict[str, MetricFamily] = {}
    for spec, value, labels in readings:
        if math.isfinite(value):
            family = grouped.get(spec.name)
            if family is None:
                family = grouped[spec.name] = MetricFamily(spec, {})
            family.series[_clean(labels)] = value
    names = sorted(grouped, key=lambda name: (order.get(name, len(order)), name))
    return [grouped[name] for name in names]


@functools.lru_cache(_MAX_NAMES)
def _clean(labels: Labels) -> Labels:
    """Return labels that any parser accepts: file names may contain bytes that are not UTF-8.

    One such value would otherwise cost the whole scrape; and some lexers take NUL for the end.
    """
    return tuple(
        label.encode("utf-8", "backslashreplace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
        for label in labels
    )


def text_of(families: Iterable[MetricFamily], others: Iterable[Metric], text_format: str) -> bytes:
    """Return the complete text of families, then of ``others``.

    Rendering names anew takes three times as long as all else.
    """
    from prometheus_client.utils import floatToGoString

    number: Callable[[Number], str] = floatToGoString  # untyped
    lines = []
    for spec, series in families:
        lines.append(_rendered(spec, None, text_format))
        lines += [f"{_rendered(spec, labels, text_format)} {number(value)}\n" for labels, value in series.items()]
    return "".join(lines).encode() + encode(others, text_format)


@functools.lru_cache(_MAX_NAMES)
def _rendered(spec: MetricSpec, labels: Labels | None, text_format: str) -> str:
    """Return the head of a family, or a series of it up to its value.

    Raises ValueError: a series does not have exactly one value for each declared label.
    """
    from prometheus_client.core import Metric

    metric = Metric(spec.family, spec.help, spec.kind, spec.unit)
    if labels is not None:
        if len(labels) != len(spec.labels):
            raise ValueError(f"{spec.family} declares labels {spec.labels}, a reading has {labels}")
        metric.add_sample(spec.exposed_name, dict(zip(spec.labels, labels, strict=True)), 0)
    text = encode([metric], text_format).decode().removesuffix("# EOF\n")
    return text if labels is None else text.removeprefix(_rendered(spec, None, text_format)).rpartition(" ")[0]


def encode(metrics: Iterable[Metric], text_format: str) -> bytes:
    from prometheus_client.exposition import generate_latest as classic_text
    from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text

    registry: Any = SimpleNamespace(collect=lambda: metrics)
    return bytes((openmetrics_text if text_format == OPENMETRICS else classic_text)(registry))


@dataclass(slots=True)
class _Text:
    published: int
    mono: float
    plain: bytes
    #: created on first request
    zipped: bytes = b""


class Publisher:
    """Hands the last snapshot from the tick to the server.

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
        self._texts: dict[str, _Text] = {}
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

    def text(self, text_format: str, *, zipped: bool = False) -> bytes:
        """Return all readings in ``text_format``, gzipped on request."""
        cached, now = self._texts.get(text_format), self._clock.mono()
        if cached is None or cached.published != self._published or now - cached.mono > FRESH_SECONDS:
            cached = self._texts[text_format] = self._render(text_format, now)
        if not zipped:
            return cached.plain
        # Level 1 already compresses metrics to a twentieth; level 6 takes three times as long for a fifth less.
        cached.zipped = cached.zipped or gzip.compress(cached.plain, compresslevel=1, mtime=0)
        return cached.zipped

    def _render(self, text_format: str, now: float) -> _Text:
        from prometheus_client import ProcessCollector

        published, process = self._published, ProcessCollector(registry=None)  # process_*: as all Prometheus clients
        plain = text_of(families(self.readings(), self._order), process.collect(), text_format)
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
        except Exception as error:  # noqa: BLE001 - an error in one part's metrics must not cost those of all others
            # Once, not at every scrape.
            if self._complaints.get(readings) != repr(error):
                self._complaints[readings] = repr(error)
                _log.error("no metrics from %s: %r", getattr(readings, "__qualname__", readings), error)
            return []
        self._complaints.pop(readings, None)
        return collected
