"""The answer of each path to a person, a browser, Prometheus or systemd."""

from __future__ import annotations

import gzip
import json
import subprocess
import threading
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from tests.serve.support import CATALOGUE, HandClock, snapshot
from tests.support.servers import program
from wslgpud.serve import Publisher, Response, Route
from wslgpud.serve.routes import unhealthy
from wslgpud.store import StoreError
from wslgpud.words import ENGLISH


def test_metrics_show_the_last_snapshot(serve):
    running = serve()
    running.publisher.publish(snapshot(available=123))
    answer = running.ask("/metrics")
    assert answer.status == 200
    assert answer.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    assert b"\nwslgpud_memory_available_bytes 123.0\n" in answer.data


def test_metrics_come_as_openmetrics_and_zipped_for_who_asks_so(serve):
    running = serve()
    running.publisher.publish(snapshot())
    wish = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
    answer = running.ask("/metrics", headers=wish)
    assert answer.getheader("Content-Encoding") == "gzip"
    assert answer.getheader("Content-Type").startswith("application/openmetrics-text; version=1.0.0")
    assert answer.getheader("Vary") == "Accept, Accept-Encoding"
    names = {f.name for f in parse_openmetrics(gzip.decompress(answer.data).decode())}
    assert {"wslgpud_memory_available_bytes", "wslgpud_http_connections", "process_cpu_seconds"} <= names


def test_promtool_is_content_with_the_real_endpoint(serve):
    promtool = program("prometheus", "promtool")
    running = serve()
    running.publisher.publish(snapshot())
    running.ask("/nothing-here")
    scrape = running.ask("/metrics").data
    checked = subprocess.run([promtool, "check", "metrics"], input=scrape, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_metrics_of_the_daemon_exist_before_the_first_sample(serve):
    answer = serve().ask("/metrics")
    assert answer.status == 200
    assert b"wslgpud_ticks_total 0.0" in answer.data
    assert b"process_resident_memory_bytes" in answer.data


def test_requests_are_counted_and_strangers_paths_share_a_series(serve):
    running = serve()
    for path in ("/", "/", "/secret", "/%2e%2e/etc/passwd"):
        running.ask(path)
    text = running.ask("/metrics").data
    assert b'wslgpud_http_requests_total{code="200",path="/"} 2.0' in text
    assert b'wslgpud_http_requests_total{code="404",path="other"} 2.0' in text
    assert b"secret" not in text


def test_not_ready_until_the_first_sample_with_the_reason(serve):
    running = serve()
    before = running.ask("/-/ready")
    running.publisher.publish(snapshot())
    after = running.ask("/-/ready")
    assert (before.status, before.data) == (503, b"waiting for the first sample\n")
    assert after.status == 200


@pytest.mark.parametrize(("silence", "status"), [(9.9, 200), (10.1, 503), (3600, 503)])
def test_healthy_while_samples_come(serve, silence, status):
    clock = HandClock()
    running = serve(publisher=Publisher(CATALOGUE, clock))
    running.publisher.publish(snapshot(mono=clock.mono()))
    clock.advance(silence)
    answer = running.ask("/-/healthy")
    assert answer.status == status
    if status == 503:
        told = ENGLISH.duration(silence)
        assert answer.data == f"No sample for {told} (one every 1 s was planned).\n".encode()


def test_a_daemon_that_never_sampled_becomes_unhealthy_too(serve):
    clock = HandClock()
    running = serve(publisher=Publisher(CATALOGUE, clock))
    assert running.ask("/-/healthy").status == 200
    clock.advance(11)
    answer = running.ask("/-/healthy")
    assert (answer.status, answer.data) == (503, b"No sample for 11 s (one every 1 s was planned).\n")


def test_a_slow_schedule_has_patience_of_five_intervals():
    slow = replace(snapshot(), interval_seconds=60.0)
    assert unhealthy(slow, 299) == ""
    assert str(unhealthy(slow, 301)) == "No sample for 5 min (one every 60 s was planned)."


def test_status_is_what_the_daemon_says_of_itself_as_json(serve):
    answer = serve(status=lambda _: {"level": "ok", "who": "训练"}).ask("/api/v1/status")
    assert answer.getheader("Content-Type") == "application/json"
    assert json.loads(answer.data) == {"level": "ok", "who": "训练"}


def test_head_gives_the_headers_of_get_and_no_body(serve):
    running = serve()
    got, head = running.ask("/-/healthy"), running.ask("/-/healthy", method="HEAD")
    assert head.status == 200
    assert head.data == b""
    assert head.getheader("Content-Length") == got.getheader("Content-Length") == "3"


@pytest.mark.parametrize("path", ["/", "/metrics", "/nothing-here", "/-/ready"])
def test_answers_carry_security_headers_and_no_software_name(serve, path):
    answer = serve().ask(path)
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("X-Frame-Options") == "DENY"
    assert answer.getheader("Referrer-Policy") == "no-referrer"
    assert "frame-ancestors 'none'" in answer.getheader("Content-Security-Policy")
    assert answer.getheader("Server") is None
    assert answer.getheader("Date").endswith("GMT")
    assert "uvicorn" not in str(answer.headers).lower()


def test_a_failing_handler_is_a_500_and_the_server_goes_on(serve, caplog):
    def broken(_):
        raise RuntimeError("disk on fire")

    running = serve(extra_routes=[Route("/broken", broken)])
    answer = running.ask("/broken")
    assert answer.status == 500
    assert b"fire" not in answer.data
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 1
    assert "/broken failed: RuntimeError('disk on fire') in " in lines[0]
    assert running.ask("/metrics").status == 200


def test_a_history_that_cannot_be_read_says_why(serve, caplog):
    def unread(_):
        raise StoreError("{name}: is damaged", name="wslgpud.db")

    answer = serve(extra_routes=[Route("/api/v1/series", unread, heavy=True)]).ask("/api/v1/series")

    assert (answer.status, json.loads(answer.data)["detail"]) == (503, "wslgpud.db: is damaged")
    assert caplog.messages == []


def test_a_handler_that_waits_delays_nobody_else(serve):
    release = threading.Event()

    def slow(_):
        release.wait(60)
        return Response(200, b"done")

    running = serve(extra_routes=[Route("/slow", slow, waits=True)])
    with running.connect() as waiting:
        waiting.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert running.ask("/metrics").status == 200
        release.set()
        assert waiting.recv(100).startswith(b"HTTP/1.1 200 ")
