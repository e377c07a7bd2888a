"""Metrics are pushed to a collector as OTLP, and a collector that is down costs nothing but the pushes."""

from __future__ import annotations

import gzip
import http.server
import sys
import threading

import pytest

from tests.support.daemons import eventually
from wslgpud.config import ConfigError, Otlp
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs wslgpud[otlp]")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from wslgpud.serve.otlp import Push, message

RAM = MetricSpec("made_bytes", "gauge", "bytes", "A level.", ("kind",))
HEAT = MetricSpec("made_celsius", "gauge", "celsius", "A temperature.", decimals=1)
KILLS = MetricSpec("made_kills", "counter", "", "A counter.")
READINGS = (Reading(RAM, 2**40 + 1, ("free",)), Reading(RAM, 7, ("used",)), Reading(HEAT, 61.5), Reading(KILLS, 3))


class Collector:
    """Accepts pushes like OpenTelemetry's collector; ``status`` is its answer."""

    def __init__(self):
        self.status, self.taken, self.headers = 200, [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers["Content-Encoding"] == "gzip":
                    body = gzip.decompress(body)
                outer.headers.append(dict(self.headers))
                if outer.status == 200:
                    outer.taken.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/metrics"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector():
    found = Collector()
    yield found
    found.close()


@pytest.fixture
def push(collector):
    made = []

    def start(**settings):
        made.append(Push(Otlp(endpoint=collector.url, interval_seconds=0.1, **settings), lambda: READINGS))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.close(5.0)


def test_every_value_arrives_with_its_labels_unit_and_kind(collector, push):
    push(headers=("authorization=Bearer 123",))
    eventually(lambda: collector.taken, "a push")
    (resource,) = collector.taken[0].resource_metrics
    (scope,) = resource.scope_metrics
    metrics = {m.name: m for m in scope.metrics}

    ram = metrics["wslgpud_made_bytes"]
    levels = {p.attributes[0].value.string_value: p.as_int for p in ram.gauge.data_points}
    assert (ram.unit, levels) == ("By", {"free": 2**40 + 1, "used": 7})
    assert metrics["wslgpud_made_celsius"].gauge.data_points[0].as_double == 61.5
    kills = metrics["wslgpud_made_kills"].sum
    assert (kills.is_monotonic, kills.aggregation_temporality, kills.data_points[0].as_int) == (True, 2, 3)
    assert {a.key: a.value.string_value for a in resource.resource.attributes}["service.name"] == "wslgpud"
    assert {h.lower(): v for h, v in collector.headers[0].items()}["authorization"] == "Bearer 123"


def test_every_value_carries_the_time_of_its_push():
    (resource,) = message(READINGS, 1_790_000_000.0).resource_metrics
    points = [point for metric in resource.scope_metrics[0].metrics for point in metric.data.data_points]

    assert {(p.start_time_unix_nano, p.time_unix_nano) for p in points} == {(0, 1_790_000_000_000_000_000)}


def test_a_series_is_sent_once_with_text_that_is_utf_8():
    unknown, doubled = Reading(RAM, float("nan"), ("none",)), Reading(RAM, 8, ("used",))
    (resource,) = message((*READINGS, unknown, doubled, Reading(RAM, 1, ("\udcff",))), 1.0).resource_metrics
    (ram,) = (metric for metric in resource.scope_metrics[0].metrics if metric.name == "wslgpud_made_bytes")

    sent = [(point.attributes["kind"], point.value) for point in ram.data.data_points]
    assert sent == [("free", 2**40 + 1), ("used", 8), ("\\udcff", 1)]


def test_a_refusing_collector_is_reported_once_and_retried(collector, push, caplog):
    caplog.set_level("INFO", "wslgpud.serve.otlp")
    collector.status = 400
    one = push()
    eventually(lambda: one.outcomes["failed"] >= 3, "three failures")
    collector.status = 200
    eventually(lambda: one.outcomes["sent"] >= 3, "three pushes")

    refused, again = [r.getMessage() for r in caplog.records if r.name == "wslgpud.serve.otlp"]
    shown = collector.url.removesuffix("/v1/metrics")
    assert refused == f"no push to {shown}: answered 400"
    assert again == f"pushed to {shown} again"
    assert {r.labels[0]: r.value for r in one.readings()}.keys() == {"sent", "failed"}


def test_each_push_counts_once(collector):
    one = Push(Otlp(endpoint=collector.url), lambda: READINGS)
    counts = []
    for status in (200, 400, 200):
        collector.status = status
        counts.append([reading.value for reading in one.readings()])
        one._push()

    assert [*counts, [reading.value for reading in one.readings()]] == [[0, 0], [1, 0], [1, 1], [2, 1]]


def test_the_end_does_not_wait_for_a_collector_that_is_not_there(collector):
    collector.close()
    one = Push(Otlp(endpoint=collector.url, interval_seconds=0.1), lambda: READINGS)
    one.start()
    one.close(60.0)

    assert not one._thread.is_alive()


def test_a_missing_library_and_a_bad_header_are_named(monkeypatch):
    with pytest.raises(ConfigError, match="is not a header"):
        Push(Otlp(endpoint="http://127.0.0.1:1/v1/metrics", headers=("Bearer",)), lambda: READINGS)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.common", None)
    with pytest.raises(ConfigError, match=r"needs OpenTelemetry: .* -m pip install .*/otlp\.txt"):
        Push(Otlp(endpoint="http://127.0.0.1:1/v1/metrics"), lambda: READINGS)
