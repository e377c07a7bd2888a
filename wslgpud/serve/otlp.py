"""Metrics pushed to an OpenTelemetry collector over HTTP, for fleets that do not scrape; an extra.

The names are those of /metrics without ``_total``, which receivers for Prometheus put there again:
https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
"""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from wslgpud import __version__, extras, outgoing
from wslgpud.config import Otlp
from wslgpud.config_key import ConfigError
from wslgpud.host import Clock, SystemClock
from wslgpud.masking import address, parts, without
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading
from wslgpud.units import one_line
from wslgpud.words import cause, say

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData

log = logging.getLogger(__name__)

#: how long one push may take; one that fails is not repeated: the next carries newer values of the same
TIMEOUT_SECONDS = 10.0
#: a collector answers with a status and at most a few counts
_MOST_BYTES = 1 << 16
#: of UCUM, as OpenTelemetry asks for: https://ucum.org/ucum
_UNITS = {
    "": "", "bytes": "By", "seconds": "s", "ratio": "1", "celsius": "Cel", "watts": "W", "joules": "J",
    "hertz": "Hz", "bytes_per_second": "By/s",
}  # fmt: skip
PUSHES = MetricSpec(
    "otlp_pushes", "counter", "", "Pushes to the OpenTelemetry collector, by outcome (sent, failed).",
    ("outcome",), stored=False,
)  # fmt: skip


class Collector:
    """Where the pushes go."""

    def __init__(self, settings: Otlp, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Understand the configuration; nothing is sent yet.

        Raises:
            ConfigError: the library is missing, or the address or a header is none.
        """
        try:
            from opentelemetry.exporter.otlp.proto.common import metrics_encoder  # noqa: PLC0415 - see above
        except ImportError as error:
            raise ConfigError(
                say("otlp.endpoint: needs OpenTelemetry: {remedy}", remedy=extras.remedy("otlp"))
            ) from error
        try:
            self._address = outgoing.parsed(settings.endpoint)
        except ValueError as error:
            raise ConfigError(
                say("otlp.endpoint: {error} but with the path, like .../v1/metrics", error=cause(error))
            ) from error
        self.place = self._address.place
        self._headers = {"Content-Type": "application/x-protobuf", **dict(map(_header, settings.headers))}
        self._encode = metrics_encoder.encode_metrics
        self._timeout = timeout_seconds

    def send(self, data: MetricsData) -> None:
        """Push once.

        Raises:
            outgoing.Refused: the collector does not want it.
            outgoing.Unreachable: it cannot be reached or does not answer in time.
        """
        body = self._encode(data).SerializeToString()
        outgoing.exchange(
            self._address, body, self._headers, deadline_seconds=self._timeout, most_bytes=_MOST_BYTES
        )


class Push:
    """A thread that pushes what ``readings`` gives, every ``interval_seconds``; nothing waits for it."""

    def __init__(
        self, settings: Otlp, readings: Callable[[], Iterable[Reading]], clock: Clock | None = None
    ) -> None:
        """Start to push.

        Raises:
            ConfigError: the library is missing, or a header is none.
        """
        self._settings, self._readings, self._clock = settings, readings, clock or SystemClock()
        self._collector = Collector(settings)
        self._stop = threading.Event()
        self._error = ""
        self.outcomes = {"sent": 0, "failed": 0}
        self._thread = threading.Thread(target=self._loop, name="wslgpud-otlp", daemon=True)
        self._thread.start()

    def readings(self) -> Iterator[Reading]:
        """Tell how the pushes went."""
        for outcome, count in self.outcomes.items():
            yield Reading(PUSHES, count, (outcome,))

    def close(self, timeout_seconds: float) -> None:
        """End, without waiting for a collector that does not answer."""
        self._stop.set()
        self._thread.join(timeout_seconds)

    def _loop(self) -> None:
        while not self._stop.wait(self._settings.interval_seconds):
            self._push()

    def _push(self) -> None:
        error = ""
        try:
            self._collector.send(message(self._readings(), self._clock.wall()))
        except (outgoing.Refused, outgoing.Unreachable) as problem:
            error = str(problem)
        except Exception as fault:  # noqa: BLE001 - a library's fault must not end the pushes for good
            error = one_line(repr(fault))
        self.outcomes["failed" if error else "sent"] += 1
        if error and error != self._error and not self._stop.is_set():
            told = without(error, parts(self._settings.endpoint))
            log.warning("no push to %s: %s", address(self._settings.endpoint), told)
        elif self._error and not error:
            log.info("pushed to %s again", address(self._settings.endpoint))
        self._error = error


def message(readings: Iterable[Reading], wall: float) -> MetricsData:
    """Return readings as OpenTelemetry's SDK hands them to an exporter."""
    from opentelemetry.sdk.metrics import export  # noqa: PLC0415 - see above
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    now = round(wall * 1e9)
    points: dict[MetricSpec, list[Any]] = {}
    for spec, value, labels in readings:
        attributes = dict(zip(spec.labels, labels, strict=True))
        points.setdefault(spec, []).append(export.NumberDataPoint(attributes, 0, now, value))

    def family(spec: MetricSpec) -> Metric:
        data: Any = export.Gauge(points[spec])
        if spec.kind == "counter":
            data = export.Sum(points[spec], export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        name = spec.family if spec.kind == "counter" else spec.sample
        return export.Metric(name, spec.help, _UNITS[spec.unit], data)

    host = platform.node()
    who = {
        "service.name": "wslgpud",
        "service.version": __version__,
        "service.instance.id": host,
        "host.name": host,
    }
    scope = export.ScopeMetrics(InstrumentationScope("wslgpud", __version__), [*map(family, points)], "")
    return export.MetricsData([export.ResourceMetrics(Resource(who), [scope], "")])


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(say("otlp.headers: one of them is no header: write name=value"))
    return name.strip(), value.strip()
