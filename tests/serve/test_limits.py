"""Slow, rude, numerous or malicious clients cost the others nothing."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from contextlib import ExitStack, suppress
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serve.support import IMPATIENT, answered, is_cut, receive_all, said_by_the_server, snapshot, wait_until
from wslgpud.serve import Response, Route, listener
from wslgpud.serve.access import network_of
from wslgpud.serve.listener import Deadlines, to_evict
from wslgpud.serve.router import MAX_HEAD_BYTES, MAX_WAITING

BIG = b"x" * 400_000
#: so few that a quarter of the files that a program may usually open is enough for them
PLACES = 256
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


def test_a_client_that_never_finishes_its_second_request_is_cut(serve):
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
        GET + b"X-Big: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
        b"GET /" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
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
    ["//metrics", "/metrics/", "/../metrics", "/metrics;x", "/Metrics", "/metrics%00", "http://localhost/metrics", "*"],
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


def test_garbage_after_a_request_being_answered_is_not_logged(serve, caplog):
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


@pytest.mark.slow
def test_1000_malformed_requests_do_no_harm_and_log_nothing(serve, caplog):
    running = serve(deadlines=IMPATIENT)
    running.publisher.publish(snapshot())
    token = st.one_of(
        st.sampled_from([b"GET ", b"/metrics", b" HTTP/1.1", b"\r\n", b"\r\n\r\n", b"Host: localhost", b": ", b"\0"]),
        st.sampled_from([b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"HEAD"]),
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


def test_two_hundred_concurrent_scrapers_all_get_the_same_answer(serve):
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


#: Deadlines that no test lives to see: whoever leaves was not cut by one of these.
PATIENT = Deadlines(head_seconds=3600, idle_seconds=3600, answer_seconds=3600)


def hold_all_places(running, opened, said=b""):
    """Connect as many clients as there are places; return when the server knows all of them."""
    held = []
    for _ in range(PLACES):
        held.append(opened.enter_context(running.connect()))
        held[-1].sendall(said)
    wait_until(lambda: len(running.server._listener._connections) == PLACES)
    return held


@pytest.mark.parametrize(
    ("said", "what"),
    [(b"", "nothing"), (GET, "half a head"), (GET + b"\r\n", "one request and no other")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_silent_client_gives_up_its_place_to_a_newcomer(serve, said, what):
    running = serve(deadlines=PATIENT)
    with ExitStack() as opened:
        oldest, *others = hold_all_places(running, opened, said)
        assert answers(running)
        answered_before = receive_all(oldest)
        assert answered_before == b"" or answered_before.startswith(b"HTTP/1.1 200 ")
        others[-1].setblocking(False)
        with suppress(BlockingIOError):
            assert others[-1].recv(1)  # not its end: the youngest stay


def test_a_client_that_reads_no_answer_gives_up_its_place_too(serve, monkeypatch):
    monkeypatch.setattr(listener, "MAX_UNREAD_BYTES", 1 << 40)  # or they would leave for that
    running = serve(deadlines=PATIENT, extra_routes=[Route("/big", lambda _: Response(200, BIG))])
    with ExitStack() as opened:
        hold_all_places(running, opened, 3 * b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answers(running)


def test_the_only_client_from_an_address_keeps_its_connection(serve, monkeypatch):
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 3)
    running = serve(deadlines=PATIENT)
    with socket.create_connection(("127.0.0.1", running.port), source_address=("127.0.0.2", 0)) as alone:
        wait_until(lambda: running.server._listener.connections == 1)
        with running.connect() as older, running.connect():
            wait_until(lambda: running.server._listener.connections == 3)
            assert answers(running)
            alone.setblocking(False)
            with pytest.raises(BlockingIOError):  # still open
                alone.recv(1)
            assert is_cut(older)


def answers(running):
    """Tell whether it answers; a machine that is busy with this is late with its samples, too."""
    return running.ask("/-/ready").status in (200, 503)


def test_unread_answers_take_bounded_memory(serve):
    running = serve(deadlines=PATIENT, extra_routes=[Route("/big", lambda _: Response(200, BIG))])
    with ExitStack() as opened:
        for _ in range(PLACES // 2):
            opened.enter_context(running.connect()).sendall(2 * b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: running.server._app._counts["/big", 200] >= PLACES // 2)
        held = sum(one.unread_bytes for one in tuple(running.server._listener._connections))
        assert 2 * len(BIG) < held <= 16 << 20


def test_requests_far_ahead_of_their_answers_are_not_kept(serve):
    release = threading.Event()
    slow = Route("/slow", lambda _: release.wait(60) and Response(200, b"done"), waits=True)
    running = serve(deadlines=PATIENT, extra_routes=[slow])
    with running.connect() as hasty:
        hasty.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n" + (GET + b"\r\n") * 1000)
        assert is_cut(hasty)
    release.set()


def test_of_who_takes_no_answer_nothing_more_is_listened_to(serve):
    running = serve(deadlines=PATIENT, extra_routes=[Route("/big", lambda _: Response(200, b"x" * 10_000_000))])
    with running.connect() as deaf, pytest.raises(ConnectionError):  # noqa: PT012 - until it is cut
        deaf.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: running.server._app._counts["/big", 200])
        while True:
            deaf.sendall(GET + b"\r\n" + b"x" * 1000)


def test_while_all_are_being_answered_who_comes_waits(serve):
    release = threading.Event()
    slow = Route("/slow", lambda _: release.wait(60) and Response(200, b"done"), waits=True)
    running = serve(deadlines=PATIENT, extra_routes=[slow])
    with ExitStack() as opened:
        asking = [opened.enter_context(running.connect()) for _ in range(MAX_WAITING)]
        for sock in asking:
            sock.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        wait_until(lambda: running.server._app._threads._waiting.total() == MAX_WAITING)
        for _ in range(PLACES):  # they push out each other, and nobody who waits for us
            opened.enter_context(running.connect())
        assert answers(running)
        release.set()
        assert {receive_all(sock)[:12] for sock in asking} == {b"HTTP/1.1 200"}


class Seat(NamedTuple):
    network: str
    since: float
    waits_for_client: bool = True


def test_of_those_from_where_most_come_the_oldest_leaves():
    few, many = Seat("192.0.2.1", 1.0), [Seat("198.51.100.7", t) for t in (5.0, 3.0, 4.0)]

    assert to_evict([few, *many]) == many[1]
    assert to_evict([few]) == few
    assert to_evict([many[0]._replace(waits_for_client=False), few]) == few
    assert to_evict([few._replace(waits_for_client=False)]) is None


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_addresses_that_one_client_may_have_at_will_count_as_one(address, network):
    assert network_of(address) == network


def test_a_client_that_keeps_asking_but_never_reads_is_cut(serve):
    running = serve(deadlines=IMPATIENT, extra_routes=[Route("/big", lambda _: Response(200, BIG))])
    with running.connect() as deaf:
        deaf.sendall(50 * b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: b"wslgpud_http_connections 1.0" in running.ask("/metrics").data)


def test_excess_waiting_requests_are_refused_while_scrapes_go_on(serve):
    release = threading.Event()

    def slow(_):
        release.wait(60)
        return Response(200, b"done")

    running = serve(extra_routes=[Route("/slow", slow, waits=True)])
    waiting = [running.connect() for _ in range(MAX_WAITING)]
    for sock in waiting:
        sock.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    wait_until(lambda: running.server._app._threads._waiting.total() == MAX_WAITING)
    refused = running.ask("/slow")
    assert (refused.status, refused.getheader("Retry-After")) == (503, "1")
    assert running.ask("/metrics").status == 200
    release.set()
    for sock in waiting:
        with sock:
            assert sock.recv(100).startswith(b"HTTP/1.1 200 ")
