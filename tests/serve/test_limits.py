"""Clients that are slow, rude, many or mad cost nobody else anything."""

from __future__ import annotations

import asyncio
import re
import socket
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serve.support import (
    IMPATIENT,
    answered,
    is_cut,
    receive_answer,
    said_by_the_server,
    snapshot,
    wait_until,
)
from tests.support.daemons import PATIENCE_SECONDS
from wslgpud.serve import Response, Route
from wslgpud.serve.http import HEAD_BYTES, WAITING_MAX, RateLimiter
from wslgpud.serve.listener import CONNECTIONS_MAX

GET = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n"


def test_a_client_that_sends_its_head_in_drops_is_cut(serve):
    running = serve(deadlines=IMPATIENT)
    with running.connect() as slow:
        slow.sendall(GET + b"X-Slow: ")
        assert is_cut(slow, drop=b"x")
    assert running.ask("/metrics").status == 200


def test_a_client_that_says_nothing_is_cut(serve):
    running = serve(deadlines=IMPATIENT)
    with running.connect() as silent:
        assert is_cut(silent)


def test_a_client_that_does_not_say_its_second_request_to_the_end_is_cut(serve):
    running = serve(deadlines=IMPATIENT)
    with answered(running, GET + b"\r\n") as slow:
        slow.sendall(GET + b"X-Slow: ")
        assert is_cut(slow, drop=b"x")


def test_an_idle_connection_is_ended_in_peace(serve):
    running = serve(deadlines=IMPATIENT)
    with answered(running, GET + b"\r\n") as idle:
        assert idle.recv(1) == b""


@pytest.mark.parametrize("last", [b"", b"Connection: close\r\n"])
def test_a_client_that_never_takes_its_answer_is_cut(serve, last):
    big = Route("/big", lambda _: Response(200, b"x" * 50_000_000))
    running = serve(deadlines=IMPATIENT, extra_routes=[big])
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with deaf:
        deaf.connect(("127.0.0.1", running.port))
        deaf.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\n" + last + b"\r\n")
        wait_until(lambda: b"wslgpud_http_connections 1.0" in running.ask("/metrics").data)


@pytest.mark.parametrize(
    "data",
    [
        GET + b"X-Big: " + b"x" * HEAD_BYTES + b"\r\n\r\n",
        b"GET /" + b"x" * HEAD_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        GET + b"X-Many: x\r\n" * 10_000 + b"\r\n",
    ],
    ids=["long value", "long path", "many headers"],
)
def test_a_head_beyond_all_measure_is_refused(serve, data):
    running = serve()
    answer = running.raw(data, end=True)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")  # nothing where it crossed unread bytes
    assert b'wslgpud_http_requests_total{code="431"' in running.ask("/metrics").data


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_nothing_can_be_done_only_read(serve, method):
    answer = serve().ask("/metrics", method=method)
    assert (answer.status, answer.getheader("Allow")) == (405, "GET, HEAD")


@pytest.mark.parametrize("body", [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n"])
def test_a_body_is_refused_unread_and_ends_the_connection(serve, body):
    assert serve().raw(GET + body).startswith(b"HTTP/1.1 413 ")


def test_an_endless_body_is_not_listened_to(serve):
    running = serve(deadlines=IMPATIENT)
    with running.connect() as talker, pytest.raises(ConnectionError):  # noqa: PT012 - until it is cut
        talker.sendall(GET + b"Content-Length: 100000000000\r\n\r\n")
        while True:
            talker.sendall(b"x" * 65536)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["no host", "two hosts", "nul", "two lengths", "space before colon", "tls"],
)
def test_what_is_not_http_is_refused(serve, data):
    assert serve().raw(data, end=True).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 505 "))


@pytest.mark.parametrize(
    "path",
    [
        "//metrics",
        "/metrics/",
        "/../metrics",
        "/metrics;x",
        "/Metrics",
        "/metrics%00",
        "http://localhost/metrics",
        "*",
    ],
)
def test_paths_are_taken_to_the_letter(serve, path):
    answer = serve().raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"metrics" not in answer.partition(b"\r\n\r\n")[2]


def test_an_upgrade_to_something_else_is_answered_as_plain_http(serve):
    wish = b"Upgrade: websocket\r\nConnection: upgrade, close\r\n\r\n"
    assert serve().raw(GET + wish, end=True).startswith(b"HTTP/1.1 200 ")


def test_pipelined_requests_are_answered_in_order(serve):
    answer = serve().raw(GET + b"\r\n" + b"GET /nix HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"404"]


def test_nonsense_behind_a_request_that_is_being_answered_makes_no_noise(serve, caplog):
    entered, release = threading.Event(), threading.Event()

    def slow(_):
        entered.set()
        release.wait(60)
        return Response(200, b"done")

    running = serve(extra_routes=[Route("/slow", slow, waits=True)])
    with running.connect() as rude:
        rude.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        rude.sendall(b"this is no chunk\r\n")
        rude.recv(1000)
    release.set()
    assert running.ask("/metrics").status == 200
    assert said_by_the_server(caplog) == []


def test_a_thousand_malformed_requests_leave_it_healthy_and_its_log_empty(serve, caplog):
    running = serve(deadlines=IMPATIENT)
    running.publisher.publish(snapshot())
    token = st.one_of(
        st.sampled_from(
            [b"GET ", b"/metrics", b" HTTP/1.1", b"\r\n", b"\r\n\r\n", b"Host: localhost", b": ", b"\0"]
        ),
        st.sampled_from(
            [b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"HEAD"]
        ),
        st.binary(max_size=40),
    )

    @settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(token, max_size=12).map(b"".join))
    def attack(data):
        answer = running.raw(data, end=True)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 ")

    attack()
    assert running.ask("/-/ready").status == 200
    assert running.ask("/metrics").status == 200
    assert said_by_the_server(caplog) == []


def status_and_rest(answer):
    """Return the status line, and how many bytes are missing."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], int(re.search(rb"content-length: (\d+)", head)[1]) - len(body)


def test_two_hundred_scrapers_at_once_all_get_the_same_whole_answer(serve):
    running = serve()
    running.publisher.publish(snapshot())

    async def scrape():
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read(-1)
        writer.close()
        await writer.wait_closed()
        return answer

    async def scrape_all():
        return await asyncio.gather(*(scrape() for _ in range(200)))

    answers = asyncio.run(scrape_all())
    assert {status_and_rest(a) for a in answers} == {(b"HTTP/1.1 200 OK", 0)}


def test_more_connections_than_places_wait_their_turn(serve):
    running = serve()
    held = [running.connect() for _ in range(CONNECTIONS_MAX)]
    with running.connect() as late:
        late.sendall(GET + b"\r\n")
        late.settimeout(0.3)
        with pytest.raises(TimeoutError):
            late.recv(1)
        for sock in held:
            sock.close()
        late.settimeout(PATIENCE_SECONDS)
        assert receive_answer(late).startswith(b"HTTP/1.1 200 ")


def test_more_waiting_requests_than_may_wait_are_told_to_come_back_while_scrapes_go_on(serve):
    release = threading.Event()

    def slow(_):
        release.wait(60)
        return Response(200, b"done")

    running = serve(extra_routes=[Route("/slow", slow, waits=True)])
    waiting = [running.connect() for _ in range(WAITING_MAX)]
    for sock in waiting:
        sock.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    wait_until(lambda: running.server._app._threads._waiting._value == 0)
    refused = running.ask("/slow")
    assert (refused.status, refused.getheader("Retry-After")) == (503, "1")
    assert running.ask("/metrics").status == 200
    release.set()
    for sock in waiting:
        with sock:
            assert sock.recv(100).startswith(b"HTTP/1.1 200 ")


def test_the_rate_limit_lets_a_burst_through_and_then_one_an_interval():
    limiter = RateLimiter()
    assert [limiter.allows(1.0, 3, 0.0) for _ in range(4)] == [True, True, True, False]
    assert [limiter.allows(1.0, 3, t) for t in (0.9, 1.0, 1.1, 100.0)] == [False, True, False, True]
