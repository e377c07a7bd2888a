"""Where the server listens, what it refuses to expose, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading

import pytest

from tests.serve.support import CATALOGUE, receive_answer, said_by_the_server, wait_until
from wslgpud import config
from wslgpud.config import ConfigError
from wslgpud.serve import HttpServer, Publisher, Response, Route, ServeError, base_routes
from wslgpud.serve.server import bind

EVERYWHERE = "0.0.0.0"


def make(**settings):
    publisher = Publisher(CATALOGUE)
    return HttpServer(config.Server(**settings), publisher, base_routes(publisher, dict))


def test_port_0_picks_a_free_one_and_the_url_names_it(serve):
    running = serve()
    assert running.port > 0
    assert running.server.url == f"http://127.0.0.1:{running.port}/"


def test_a_busy_port_is_one_line_with_the_remedy(serve):
    taken = serve().port
    with pytest.raises(ServeError) as caught:
        make(port=taken).start()
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{taken}: Address already in use; if wslgpud is not already running, "
        "choose another server.address or server.port"
    )


def test_a_foreign_address_is_one_line_with_the_remedy():
    with pytest.raises(ServeError, match=r"^cannot listen on 192\.0\.2\.1:0: Cannot assign requested address; "):
        bind("192.0.2.1", 0)


def test_an_address_that_is_none_is_one_line_that_names_the_key():
    with pytest.raises(ServeError, match=r"^cannot listen on no such host:0: [^(]*; .*server\.address"):
        bind("no such host", 0)


def test_the_end_of_an_answer_waits_for_no_acknowledgement():
    """With Nagle's algorithm each answer on a connection that is kept took 44 ms instead of 1."""
    with bind("127.0.0.1", 0) as sock:
        sock.listen()
        with socket.create_connection(sock.getsockname()), sock.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(("address", "only_v6"), [("::", 0), ("::1", 1)])
def test_only_all_addresses_of_ipv6_include_those_of_ipv4(address, only_v6):
    try:
        sock = bind(address, 0)
    except ServeError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    with sock:
        assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == only_v6


def test_a_kernel_without_ipv6_is_one_line_with_the_reason(monkeypatch):
    def refuse(*_):
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(ServeError, match=r"^cannot listen on \[::\]:0: Address family not supported by protocol; "):
        bind("::", 0)


def test_the_world_is_not_served_without_tls_and_passwords():
    with pytest.raises(ConfigError) as caught:
        make(address=EVERYWHERE)
    assert str(caught.value) == (
        "server.address 0.0.0.0 can be reached by others: give server.web_config_file with TLS and passwords "
        "(or client certificates), or set server.insecure = true"
    )


def test_the_world_is_served_if_the_user_insists(serve):
    running = serve(config.Server(address=EVERYWHERE, port=0, insecure=True))
    assert running.ask("/metrics").status == 200
    assert running.server.url == f"http://localhost:{running.port}/"


@pytest.mark.parametrize("address", ["localhost", "127.0.0.2"])
def test_any_loopback_address_will_do(serve, address):
    running = serve(config.Server(address=address, port=0))
    with socket.create_connection((address, running.port), timeout=30) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert receive_answer(sock).startswith(b"HTTP/1.1 200 ")


def test_ipv6_loopback_is_served_and_its_url_is_a_url(serve):
    try:
        bind("::1", 0).close()
    except ServeError as error:
        pytest.skip(f"no IPv6 here: {error}")
    running = serve(config.Server(address="::1", port=0))
    assert running.server.url == f"http://[::1]:{running.port}/"
    with socket.create_connection(("::1", running.port), timeout=30) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: [::1]\r\n\r\n")
        assert receive_answer(sock).startswith(b"HTTP/1.1 200 ")


def test_stopping_gives_started_answers_their_time(serve):
    entered, release = threading.Event(), threading.Event()

    def slow(_):
        entered.set()
        release.wait(60)
        return Response(200, b"done")

    running = serve(extra_routes=[Route("/slow", slow, waits=True)])
    with running.connect() as waiting:
        waiting.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        entered.wait(60)
        stopper = threading.Thread(target=running.server.stop, args=(60.0,))
        stopper.start()
        wait_until(lambda: is_free(running.port))
        release.set()
        assert receive_answer(waiting).endswith(b"done")
        stopper.join(60)
        assert not stopper.is_alive()


def test_stopping_does_not_wait_for_ever_and_frees_the_port(serve, caplog):
    entered, release = threading.Event(), threading.Event()

    def stuck(_):
        entered.set()
        release.wait(60)
        return Response(200, b"")

    running = serve(extra_routes=[Route("/stuck", stuck, waits=True)])
    with running.connect() as waiting, running.connect(), running.connect() as idle:
        waiting.sendall(b"GET /stuck HTTP/1.1\r\nHost: localhost\r\n\r\n")
        idle.sendall(b"GET /-/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        receive_answer(idle)
        entered.wait(60)
        running.server.stop(0.2)  # the answer that it gives time to would take a minute
        assert not release.is_set()
        assert idle.recv(1) == b""
    wait_until(lambda: is_free(running.port))
    release.set()
    assert said_by_the_server(caplog) == []


def is_free(port):
    try:
        bind("127.0.0.1", port).close()
    except ServeError:
        return False
    return True


def test_stopping_twice_or_before_the_start_does_no_harm(serve):
    make().stop()
    running = serve()
    running.server.stop()
    running.server.stop()


class Troubled(socket.socket):
    """A socket on which clients cannot be accepted at first."""

    errors: list[int]

    def accept(self):
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        return super().accept()


def test_a_client_that_left_is_no_trouble(serve, monkeypatch, caplog):
    def troubled(address, port):
        sock = bind(address, port)
        found = Troubled(fileno=sock.detach())
        found.errors = [errno.ECONNABORTED, errno.EMFILE]
        return found

    monkeypatch.setattr("wslgpud.serve.server.bind", troubled)
    slept, real = [], asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: slept.append(seconds) or real(0))
    running = serve()

    assert running.ask("/-/healthy").status == 200
    assert [line.getMessage() for line in said_by_the_server(caplog)] == [
        "cannot take a connection: Too many open files"
    ]
    assert [seconds for seconds in slept if seconds] == [1]
