"""Servers that the daemon fetches from or posts to do their worst: it loses one answer and nothing else."""

from __future__ import annotations

import importlib
import logging
import ssl
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.support.daemons import eventually
from tests.support.hostile import (
    BOMB,
    ELSEWHERE,
    ENDLESS,
    FLOODS,
    NONSENSE,
    REFUSALS,
    UNPACKED_BYTES,
    Peer,
    answers,
    certificate,
    hostile,
    says,
)
from tests.support.receivers import webhook
from tests.support.servers import alertmanager as real_alertmanager
from wslgpud import client as daemons
from wslgpud.alerts.channels import DeliveryError
from wslgpud.alerts.channels.alertmanager import AlertmanagerChannel
from wslgpud.config import Config, Otlp, Windows
from wslgpud.host import Host, SourceError
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading
from wslgpud.security import http_client
from wslgpud.serve import otlp
from wslgpud.sources import windows
from wslgpud.sources.windows import WindowsSource
from wslgpud.words import ENGLISH

#: short, for what never ends; nothing here waits for a good answer under it
HASTY = 0.3
PATIENT = 180.0
SECRET = "hunter2-hunter2"
Fetch = Callable[[str, float], object]


def alertmanager(url: str, seconds: float) -> object:
    place = url.replace("://", f"://me:{SECRET}@")
    return AlertmanagerChannel(place, seconds).send({"level": "warning", "headline": "RAM full"})


def exporter(url: str, seconds: float) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "EXPORTER_SECONDS", seconds)
        return WindowsSource(Host(), replace(Config(), windows=Windows(exporter_url=f"{url}/metrics"))).read()


def collector(url: str, seconds: float) -> object:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.common", reason="needs wslgpud[otlp]")
    settings = Otlp(endpoint=f"{url}/v1/metrics", headers=(f"authorization=Bearer {SECRET}",))
    reading = Reading(MetricSpec("made_bytes", "gauge", "bytes", "A level."), 1)
    return otlp.Push(settings, lambda: [reading], timeout_seconds=seconds).send()


CLIENTS: dict[str, Fetch] = {"Alertmanager": alertmanager, "windows_exporter": exporter, "OTLP": collector}
PROBLEMS = (DeliveryError, SourceError, http_client.ErrorStatus, http_client.Unreachable)
client = pytest.mark.parametrize("fetch", CLIENTS.values(), ids=CLIENTS)


def cases(table: dict[str, Any] | Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("behaviour", table.values(), ids=table)


@contextmanager
def memory() -> Iterator[Callable[[], int]]:
    """Yield what tells the most bytes that were held at once since."""
    with suppress(ImportError):  # whoever comes first imports it, which takes as much as the limit
        importlib.import_module("opentelemetry.exporter.otlp.proto.common.metrics_encoder")
        otlp.message([], 0.0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield lambda: tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def failed(fetch: Fetch, url: str, seconds: float) -> str:
    """Return how the client puts it: one line that no terminal obeys and that holds no secret."""
    with pytest.raises(PROBLEMS) as caught:
        fetch(url, seconds)
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 600
    assert SECRET not in said
    return said


@client
@cases(ENDLESS)
def test_what_never_ends_ends_at_the_deadline(fetch, behaviour):
    with hostile(behaviour) as server:
        assert f"no complete answer within {ENGLISH.duration(HASTY)}" in failed(fetch, server.url, HASTY)


@client
@cases(FLOODS)
def test_a_flood_is_cut_off_at_a_size(fetch, behaviour, monkeypatch):
    monkeypatch.setattr(windows, "MAX_BYTES", 1 << 20)
    with hostile(behaviour) as server, memory() as peak:
        failed(fetch, server.url, PATIENT)
        assert peak() < 4 << 20


@client
@cases(NONSENSE)
def test_what_is_no_whole_answer_is_none(fetch, behaviour):
    with hostile(behaviour) as server:
        failed(fetch, server.url, PATIENT)


@client
@cases(REFUSALS)
def test_a_refusal_becomes_one_short_line(fetch, behaviour):
    with hostile(behaviour) as server, memory() as peak:
        assert "answered" in failed(fetch, server.url, PATIENT)
        assert len(server.asked) == 1  # no second try with more credentials
        assert peak() < 4 * windows.MAX_BYTES


@client
@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Same", "308 Same"])
@pytest.mark.parametrize("place", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_redirect_leads_nowhere(fetch, status, place):
    with hostile(answers("200 OK", b"windows_memory_available_bytes 1\n")) as other:
        location = place.format(other=other.place)
        with hostile(answers(status, Location=location)) as server:
            assert "redirects" in failed(fetch, server.url, PATIENT)

    assert len(server.asked) == 1
    assert not other.asked


@client
def test_a_password_echoed_by_a_server_is_not_logged(fetch):
    def echo(peer: Peer) -> None:
        answers("400 Bad Request", server.asked[-1])(peer)

    with hostile(echo) as server:
        failed(fetch, server.url, PATIENT)


@client
@pytest.mark.parametrize("names", [("127.0.0.1",), ("example.org",)], ids=["nobody's", "another name's"])
def test_a_certificate_that_proves_nothing_gets_no_word_from_us(fetch, names):
    context, _ = certificate(*names)
    with hostile(answers("200 OK", b"windows_memory_available_bytes 1\n"), context) as server:
        assert "certificate verify failed" in failed(fetch, server.url, PATIENT)

    assert not server.asked


@pytest.mark.parametrize(
    ("names", "expired", "complaint"),
    [
        (("127.0.0.1",), False, ""),
        (("127.0.0.1",), True, "certificate has expired"),
        (("example.org",), False, "IP address mismatch"),
    ],
)
def test_a_trusted_certificate_must_be_valid_and_match_the_name(names, expired, complaint, monkeypatch, tmp_path):
    context, authority = certificate(*names, expired=expired)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with hostile(answers("200 OK", b"windows_memory_available_bytes 1\n"), context) as server:
        if complaint:
            assert complaint in failed(exporter, server.url, PATIENT)
        else:
            assert exporter(server.url, PATIENT)

    assert bool(server.asked) is not complaint


@client
def test_a_proxy_of_the_environment_is_not_asked(fetch, monkeypatch):
    with hostile(answers("200 OK", b"windows_memory_available_bytes 7\n")) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        with hostile(answers("200 OK", b"windows_memory_available_bytes 1\n")) as server:
            fetch(server.url, PATIENT)

    assert not proxy.asked
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "page",
    [
        b'windows_gpu_info{luid="0x0_0x1",' + b"a" * (7 << 20) + b"} 1\n",
        b"windows_gpu_info{" + b'a="' * (2 << 20) + b"} 1\n",
        b"windows_gpu_info{" + b"} " * (3 << 20) + b"1\n",
        b"windows_" + b"a" * (7 << 20) + b"\n",
    ],
    ids=["one long word", "open quotes", "many ends", "one long name"],
)
def test_a_page_made_to_keep_a_parser_busy_is_passed_over(page):
    """A pattern that takes quadratic time held up every thread of the daemon: for 7 MB, for days."""
    with hostile(answers("200 OK", page + b"\nwindows_memory_available_bytes 5\n")) as server:
        sample = exporter(server.url, PATIENT)

    assert [reading.value for reading in sample.readings] == [5]


def test_a_flood_of_cards_is_cut_to_sixteen_with_short_names():
    rows = [
        f'windows_gpu_info{{luid="0x0_{i:#x}",name="\x1b]0;owned\x07card {i} {"x" * 500}"}} 1\n'
        f'windows_gpu_adapter_memory_dedicated_bytes{{luid="0x0_{i:#x}"}} {i}\n'
        for i in range(1, 5000)
    ]
    with hostile(answers("200 OK", "".join(rows).encode())) as server:
        sample = exporter(server.url, PATIENT)

    names = {label for reading in sample.readings for label in reading.labels}
    assert len(names) == 16
    assert all(name.isprintable() and len(name) <= 100 for name in names)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "1e400", "0x10", "1" * 3000, "", "\x1b[2J"])
def test_what_is_no_size_is_not_known(value):
    assert windows.from_exporter(f"windows_memory_available_bytes {value}\n") == windows.Facts({}, (), {})


def test_a_bomb_stays_packed():
    with hostile(answers("200 OK", BOMB, Content_Encoding="gzip")) as server, memory() as peak:
        assert "has no memory, gpu or process metrics" in failed(exporter, server.url, PATIENT)
        assert peak() < UNPACKED_BYTES / 10


def test_a_hanging_collector_delays_neither_shutdown_nor_others(caplog):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.common", reason="needs wslgpud[otlp]")
    caplog.set_level(logging.INFO)
    with hostile(ENDLESS["a dripping body"]) as server:
        push = otlp.Push(Otlp(endpoint=server.url, interval_seconds=0.01), list)
        push.start()
        while not server.asked:
            push._thread.join(0.01)
        push.close(0.01)  # it does not wait for the answer

    assert "\x1b" not in caplog.text


def test_an_unusual_server_that_is_honest_is_understood():
    """The limits take nothing from who keeps to the protocol."""
    page = b"windows_memory_available_bytes 5\n"
    honest = {
        "chunks and trailers": b"Transfer-Encoding: chunked\r\n\r\n21;x=y\r\n" + page + b"\r\n0\r\nX: y\r\n\r\n",
        "no length": b"\r\n" + page,
        "a length": b"Content-Length: 33\r\nConnection: keep-alive\r\n\r\n" + page,
    }
    for rest in honest.values():
        with hostile(says(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n" + rest)) as server:
            assert [r.value for r in exporter(server.url, PATIENT).readings] == [5]


@pytest.mark.parametrize("value", [f"{SECRET}\r\nX: y", f"{SECRET}\0"])
def test_a_header_http_cannot_carry_is_refused_but_not_quoted(value):
    with hostile(answers("200 OK", b"")) as server, pytest.raises(http_client.Unreachable) as caught:
        http_client.exchange(http_client.parsed(server.url), b"", {"X": value}, deadline_seconds=PATIENT, max_bytes=100)

    assert str(caught.value) == "a header or the path has characters that HTTP does not allow"
    assert not server.asked


@pytest.mark.parametrize(
    ("url", "port"), [("http://a.example", 80), ("https://a.example", 443), ("https://a.example:9", 9)]
)
def test_an_address_without_a_port_means_the_schemes(url, port, monkeypatch):
    asked = []

    def nowhere(host, number, *_):
        asked.append((host, number))
        return []

    monkeypatch.setattr("socket.getaddrinfo", nowhere)
    with pytest.raises(http_client.Unreachable, match="has no address"):
        http_client.exchange(http_client.parsed(url), None, {}, deadline_seconds=60, max_bytes=1)

    assert asked == [("a.example", port)]


def test_an_address_keeps_its_password_to_itself():
    address = http_client.parsed(f"http://me:{SECRET}@[::1]:9093/am?x=1")

    assert (address.place, address.target) == ("[::1]:9093", "/am?x=1")
    assert SECRET not in repr(address)
    assert ssl.create_default_context().check_hostname  # what the client relies on


@pytest.mark.parametrize(
    "behaviour", [ENDLESS["a dripping body"], FLOODS["body"], REFUSALS["escapes"]], ids=["drip", "flood", "escapes"]
)
def test_an_impostor_on_a_dead_daemons_port_gains_nothing(behaviour, monkeypatch):
    monkeypatch.setattr(daemons, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(daemons, "SECONDS", HASTY)
    with hostile(behaviour) as server, pytest.raises(daemons.Unanswered) as refusal:
        daemons.DaemonClient(server.url).status()

    line = str(refusal.value)
    assert "does not answer: " in line or "refuses: answered 500: " in line
    assert line.isprintable()


@pytest.mark.servers
def test_a_template_in_a_name_is_text_to_a_real_alertmanager(tmp_path):
    name = '{{ .ExternalURL }}{{ printf "%s" .Status }} <script> @everyone\x1b[2J'
    with webhook() as receiver, real_alertmanager(tmp_path, receiver.url) as real:
        AlertmanagerChannel(real.url).send(
            {"level": "critical", "rule": "oom_kill", "resource": f"cgroup:/{name}", "headline": name}
        )
        (alert,) = eventually(real.alerts, "the alert")

    assert alert["labels"]["resource"] == f"cgroup:/{name}"
    assert alert["annotations"]["summary"] == name
