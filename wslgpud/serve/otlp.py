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

from wslgpud import __version__, extras
from wslgpud.config import ConfigError, Otlp
from wslgpud.host import Clock, SystemClock
from wslgpud.masking import address, parts, without
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import Metric, MetricsData

log = logging.getLogger(__name__)

#: how long one push may take, its own retries included
TIMEOUT_SECONDS = 10.0
#: of UCUM, as OpenTelemetry asks for: https://ucum.org/ucum
_UNITS = {
    "": "", "bytes": "By", "seconds": "s", "ratio": "1", "celsius": "Cel", "watts": "W", "joules": "J",
    "hertz": "Hz", "bytes_per_second": "By/s",
}  # fmt: skip
PUSHES = MetricSpec(
    "otlp_pushes", "counter", "", "Pushes to the OpenTelemetry collector, by outcome (sent, failed).",
    ("outcome",), stored=False,
)  # fmt: skip


class _LastWord(logging.Handler):
    """Keeps what the exporter says of a failure, which it tells nobody else."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


def exporter(settings: Otlp) -> OTLPMetricExporter:
    """Return what sends; nothing is sent yet.

    Raises:
        ConfigError: the library is missing, or a header is none.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http import metric_exporter  # noqa: PLC0415 - only for this
    except ImportError as error:
        raise ConfigError(f"otlp.endpoint: needs OpenTelemetry: {extras.remedy('otlp')}") from error
    return metric_exporter.OTLPMetricExporter(
        settings.endpoint, headers=dict(map(_header, settings.headers)), timeout=TIMEOUT_SECONDS
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
        self._exporter = exporter(settings)
        self._said, its_log = _LastWord(), logging.getLogger("opentelemetry")
        its_log.addHandler(self._said)
        its_log.propagate = False
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
        self._exporter.shutdown(timeout_millis=0)
        self._thread.join(timeout_seconds)

    def _loop(self) -> None:
        while not self._stop.wait(self._settings.interval_seconds):
            self._push()

    def _push(self) -> None:
        self._said.text, error = "", ""
        try:
            result = self._exporter.export(message(self._readings(), self._clock.wall()))
            if result.name != "SUCCESS":
                error = self._said.text or "refused"
        except Exception as fault:  # noqa: BLE001 - a library's fault must not end the pushes for good
            error = repr(fault)
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
        raise ConfigError("otlp.headers: one of them is no header: write name=value")
    return name.strip(), value.strip()
