"""Metrics pushed to an OpenTelemetry collector over HTTP, for fleets without scraping; an extra.

The names are those of /metrics without ``_total``, which Prometheus receivers add again:
https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
"""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from wslgpud import __version__, optional_packages
from wslgpud.config import ConfigError, Otlp
from wslgpud.host import Clock, SystemClock
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading
from wslgpud.security import http_client
from wslgpud.security.redaction import address, parts, without
from wslgpud.serve.publisher import MetricFamily, families
from wslgpud.words import MessageError, cause, say
from wslgpud.words.units import one_line

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData

log = logging.getLogger(__name__)

#: time limit of a push; a failed one is not repeated, as the next carries newer values
TIMEOUT_SECONDS = 10.0
#: limit of an answer: a collector sends a status and at most a few counts
_MAX_BYTES = 1 << 16
#: UCUM units, as OpenTelemetry requires: https://ucum.org/ucum
_UNITS = {"": "", "bytes": "By", "seconds": "s", "ratio": "1", "celsius": "Cel", "watts": "W", "joules": "J"}
_UNITS |= {"hertz": "Hz", "bytes_per_second": "By/s"}
_HELP = "Pushes to the OpenTelemetry collector, by outcome (sent, failed)."
PUSHES = MetricSpec("otlp_pushes", "counter", "", _HELP, ("outcome",), stored=False)
METRICS = (PUSHES,)


class Push:
    """Pushes the result of ``readings`` every ``interval_seconds``, in a thread that nothing waits for."""

    def __init__(
        self,
        settings: Otlp,
        readings: Callable[[], Iterable[Reading]],
        clock: Clock | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Check the configuration; nothing is sent yet.

        Raises ConfigError: the library is missing, or the address or a header is malformed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.common import metrics_encoder  # see above
        except ImportError as error:
            remedy = optional_packages.remedy("otlp")
            raise ConfigError("otlp.endpoint: needs OpenTelemetry: {remedy}", remedy=remedy) from error
        try:
            self._address = http_client.parsed(settings.endpoint)
        except ValueError as error:
            message = say("otlp.endpoint: {error} but with the path, like .../v1/metrics", error=cause(error))
            raise ConfigError(message) from error
        self._headers = {"Content-Type": "application/x-protobuf", **dict(map(_header, settings.headers))}
        self._encode = metrics_encoder.encode_metrics
        self._settings, self._readings, self._clock = settings, readings, clock or SystemClock()
        self._timeout = timeout_seconds
        self._stop = threading.Event()
        self._error = ""
        self.outcomes = {"sent": 0, "failed": 0}
        self._thread = threading.Thread(target=self._loop, name="wslgpud-otlp", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self) -> None:
        """Push once. Raises ``http_client.ErrorStatus`` or ``http_client.Unreachable``."""
        body = self._encode(message(self._readings(), self._clock.wall())).SerializeToString()
        http_client.exchange(self._address, body, self._headers, deadline_seconds=self._timeout, max_bytes=_MAX_BYTES)

    def readings(self) -> list[Reading]:
        return [Reading(PUSHES, count, (outcome,)) for outcome, count in self.outcomes.items()]

    def close(self, timeout_seconds: float) -> None:
        """Stop, without waiting for a collector that does not respond."""
        self._stop.set()
        self._thread.join(timeout_seconds)

    def _loop(self) -> None:
        while not self._stop.wait(self._settings.interval_seconds):
            self._push()

    def _push(self) -> None:
        error, place = "", address(self._settings.endpoint)
        try:
            self.send()
        except Exception as fault:  # noqa: BLE001 - a library's fault must not end the pushes for good
            error = str(fault) if isinstance(fault, MessageError) else one_line(repr(fault))
        self.outcomes["failed" if error else "sent"] += 1
        if error and error != self._error and not self._stop.is_set():
            log.warning("no push to %s: %s", place, without(error, parts(self._settings.endpoint)))
        elif self._error and not error:
            log.info("pushed to %s again", place)
        self._error = error


def message(readings: Iterable[Reading], wall: float) -> MetricsData:
    from opentelemetry.sdk.metrics import export  # see above
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    now = round(wall * 1e9)

    def metric(family: MetricFamily) -> Metric:
        spec, series = family
        points = [
            export.NumberDataPoint(dict(zip(spec.labels, labels, strict=True)), 0, now, value)
            for labels, value in series.items()
        ]
        data: Any = export.Gauge(points)
        if spec.kind == "counter":
            data = export.Sum(points, export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        name = spec.family if spec.kind == "counter" else spec.exposed_name
        return export.Metric(name, spec.help, _UNITS[spec.unit], data)

    host = platform.node()
    who = {"service.name": "wslgpud", "service.version": __version__, "service.instance.id": host, "host.name": host}
    metrics = [metric(family) for family in families(readings, {})]
    scope = export.ScopeMetrics(InstrumentationScope("wslgpud", __version__), metrics, "")
    return export.MetricsData([export.ResourceMetrics(Resource(who), [scope], "")])


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(say("otlp.headers: one of them is not a header: write name=value"))
    return name.strip(), value.strip()
