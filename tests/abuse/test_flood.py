"""A thousand clients at once at the real daemon, most of them with bad manners: it samples and answers on."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.daemons import Running, daemon, eventually

CLIENTS = 1000
GOOD = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory):
    often = {"WSLGPUD_SAMPLING__INTERVAL_SECONDS": "0.5"}
    with daemon(tmp_path_factory.mktemp("flood"), settings=often) as found:
        eventually(lambda: found.status_of("/-/ready") == 200, "readiness")
        yield found


@pytest.fixture(autouse=True)
def _handles():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * CLIENTS:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * CLIENTS, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def handles(running: Running) -> int:
    return len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))


def connected(running: Running, number: int, saying: bytes = b"") -> list[socket.socket]:
    """Connect this many clients; the bytes they send at once keep them from being dropped as silent."""
    place = urlsplit(running.url)
    clients = []
    for _ in range(number):
        clients.append(socket.create_connection((place.hostname, place.port), timeout=180))
        clients[-1].sendall(saying)
    return clients


def answer(client: socket.socket) -> bytes:
    """Return all data until the server closes the connection, or resets it."""
    parts = []
    try:
        while part := client.recv(1 << 16):
            parts.append(part)
    except ConnectionError:
        pass
    finally:
        client.close()
    return b"".join(parts)


def goes_on(running: Running, before_handles: int) -> None:
    """Assert that samples come, that a scrape is answered, and that nothing is held any more."""
    then = running.samples()["wslgpud_ticks_total"]
    eventually(lambda: running.samples()["wslgpud_ticks_total"] > then + 2, "more samples")
    eventually(lambda: running.samples()["wslgpud_http_connections"] == 1, "the end of all other connections")
    assert handles(running) <= before_handles + 10
    assert running.status_of("/-/healthy") == 200


@pytest.mark.slow
def test_a_thousand_scrapers_at_once_all_get_a_whole_answer(running: Running) -> None:
    before = handles(running)
    clients = connected(running, CLIENTS, GOOD)
    answers = [answer(client) for client in clients]

    heads = {said.split(b"\r\n", 1)[0] for said in answers}
    assert heads == {b"HTTP/1.1 200 OK"}
    assert all(b"wslgpud_memory_available_bytes" in said for said in answers)
    goes_on(running, before)


BAD: dict[str, Callable[[int], bytes]] = {
    "say nothing": lambda _: b"",
    "stop within their head": lambda n: b"GET /metrics HTTP/1.1\r\nHost: local"[: 5 + n % 25],
    "send heads without end": lambda n: b"GET / HTTP/1.1\r\nX: " + b"a" * (60_000 + n),
    "speak TLS": lambda n: b"\x16\x03\x01\x02\x00\x01" + bytes([n % 256]) * 200,
    "climb out of the folder": lambda _: GOOD.replace(b"/metrics", b"/../../../../etc/passwd"),
    "climb out in disguise": lambda _: GOOD.replace(b"/metrics", b"/static/%2e%2e%2f%2e%2e%2fetc%2fpasswd"),
    "come by a name of their own": lambda _: GOOD.replace(b"localhost", b"evil.example"),
    "lie about a body": lambda _: b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\nx",
    "ask for all of a year by the second": lambda n: GOOD.replace(
        b"/metrics", b"/api/v1/range?series=*&start=0&end=9999999999&step=%d" % (1 + n % 3)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("manner", BAD.values(), ids=BAD)
def test_a_good_client_is_answered_among_hundreds_of_bad_ones(running: Running, manner: Callable[[int], bytes]) -> None:
    before = handles(running)
    clients = connected(running, CLIENTS // 5)
    for number, client in enumerate(clients):
        with contextlib.suppress(OSError):  # refused in the middle, as it may be
            client.sendall(manner(number))
    said = answer_of_a_good_one(running)
    told = []
    for client in clients:
        client.setblocking(False)
        with contextlib.suppress(OSError):
            told.append(client.recv(1 << 16))
        client.close()

    assert said.startswith(b"HTTP/1.1 200 OK")
    assert b"root:" not in b"".join(told)
    goes_on(running, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    "said", [b"", b"GET /-/healthy HTTP/1.1\r\nHost: local", GOOD], ids=["", "half a head", "deaf"]
)
def test_a_thousand_held_connections_do_not_block_a_good_client(running: Running, said: bytes) -> None:
    before = handles(running)
    clients = connected(running, CLIENTS, said)
    answers = [answer_of_a_good_one(running) for _ in range(20)]
    for client in clients:
        client.close()

    assert all(said.startswith(b"HTTP/1.1 200 OK") for said in answers)
    goes_on(running, before)


def answer_of_a_good_one(running: Running) -> bytes:
    (client,) = connected(running, 1, GOOD)
    return answer(client)
