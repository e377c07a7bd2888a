"""Requests made to mislead, sent as they are to the real daemon: taken to the letter or refused."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tests.serve.support import receive_all
from tests.support.daemons import PATIENCE_SECONDS, Running, daemon, eventually

SECRET = "sentinel-of-a-file-nobody-serves"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("web")
    with daemon(folder, settings={"WSLGPUD_SAMPLING__INTERVAL_SECONDS": "30"}) as found:
        eventually(lambda: found.status_of("/-/ready") == 200, "readiness")
        (found.state / "secret.txt").write_text(SECRET)
        yield found
        _, errors = found.end()
        # Whatever was sent, not a line of it has reached the log.
        assert not re.search(r"Traceback|error|evil|\x1b", errors, re.IGNORECASE), errors


def said(running: Running, request: bytes, *, end: bool = False) -> bytes:
    """Send bytes as they are, and the end of them; return all that comes until the connection ends."""
    place = urlsplit(running.url)
    with socket.create_connection((place.hostname, place.port), timeout=PATIENCE_SECONDS) as sock:
        sock.sendall(request)
        if end:  # else the server waits for the rest of what is no request
            sock.shutdown(socket.SHUT_WR)
        return receive_all(sock)


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


def get(path: bytes = b"/metrics", *headers: bytes, host: bytes = b"localhost") -> bytes:
    return b"\r\n".join((b"GET " + path + b" HTTP/1.1", b"Host: " + host, *headers, b"Connection: close", b"\r\n"))


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example",
        b"localhost.evil.example",
        b"evil.example#localhost",
        b"localhost@evil.example",
        b"localhost:80@evil.example",
        b"evil.example:9655",
        b"localhost, evil.example",
        b"localhost evil.example",
        b"127.0.0.1.nip.io",
        b"127.0.0.1.evil.example",
        b"[::1].evil.example",
        b"[::1",
        b"0x7f.evil",
        b"*",
        b"localhost\\evil",
        b"localhost/../evil",
        b"",
        b"localhost:9655:9655",
        b"xn--lcalhost-3we",
        b"192.168.1.7",
        b"[2001:db8::1]",
    ],
)
def test_a_host_that_is_not_ours_is_misdirected(running: Running, host: bytes) -> None:
    for path in (b"/metrics", b"/", b"/api/v1/live", b"/nothing"):
        answer = said(running, get(path, host=host))
        assert statuses(answer) in ([421], [400])
        assert b"wslgpud_" not in answer


HIDDEN = b"GET /api/v1/self HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
START = b"GET /-/ready HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n",
        b"Content-Length: 0\r\nContent-Length: 80\r\n\r\n",
        b"Content-Length: 0, 80\r\n\r\n",
        b"Content-Length: +0\r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 0x0\r\n\r\n",
        b"Content-Length: 1_0\r\n\r\n",
        b"Content-Length: 99999999999999999999999\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: identity\r\n\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0;a=\n\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffffff\r\n",
        b"X: y\r\n folded: z\r\nContent-Length: 5\r\n\r\n",
        b"X: y\x00\r\nContent-Length: 5\r\n\r\n",
        b"X\x0b: y\r\nContent-Length: 5\r\n\r\n",
    ],
)
def test_no_second_request_hides_in_the_body_of_the_first(running: Running, head: bytes) -> None:
    answer = said(running, START + head + HIDDEN, end=True)

    assert len(statuses(answer)) <= 1
    assert set(statuses(answer)) <= {400, 413, 501}
    assert b"cpu_seconds" not in answer


@pytest.mark.parametrize("head", [b"X: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"X: a\rB: c\r\n\r\n"])
def test_a_bare_line_end_hides_no_header(running: Running, head: bytes) -> None:
    assert set(statuses(said(running, START + head + HIDDEN, end=True))) <= {400, 413}


SECRET_PATH = "../secret.txt"


@pytest.mark.parametrize(
    "path",
    [
        b"/../secret.txt",
        b"/static/../secret.txt",
        b"/static/..%2fsecret.txt",
        b"/static/%2e%2e/secret.txt",
        b"/static/%252e%252e%252fsecret.txt",
        b"/static/..\\secret.txt",
        b"/static/..%5csecret.txt",
        b"/static/%00secret.txt",
        b"/static/index.html%00.js",
        b"//static//index.html",
        b"/static//etc/passwd",
        b"/static/./index.html",
        b"/static;x/index.html",
        b"/metrics;x",
        b"/metrics/",
        b"/METRICS",
        b"/%c0%ae%c0%ae/etc/passwd",
        b"/%ef%bc%8e%ef%bc%8e/etc/passwd",
        b"http://localhost/metrics",
        b"http://evil.example/metrics",
        b"file:///etc/passwd",
        b"/api/v1/incidents/../self",
        b"*",
        b"/api/v1/stress/",
        b"/" + b"x" * 300,
        b"/api/v1/%73elf/",
        b"/api//v1/self",
        b"/static/%e2%80%ae",
    ],
)
def test_a_path_means_itself_and_nothing_else(running: Running, path: bytes) -> None:
    answer = said(running, get(path))

    assert statuses(answer)[0] in {400, 404}
    assert SECRET.encode() not in answer
    assert b"root:" not in answer
    assert b"wslgpud_memory" not in answer


@pytest.mark.parametrize("path", [b"/api/v1/incidents/%0d%0aX-Own:%20evil", b"/%0d%0aevil%1b]0;evil%07", b"/%9b31m"])
def test_line_breaks_and_escapes_in_a_path_are_never_echoed(running: Running, path: bytes) -> None:
    answer = said(running, get(path))

    assert statuses(answer)[0] in {400, 404}
    assert b"x-own" not in answer.partition(b"\r\n\r\n")[0].lower()
    assert b"\x1b" not in answer


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"TRACE /metrics HTTP/1.1", 405),
        (b"CONNECT localhost:22 HTTP/1.1", 405),
        (b"get /metrics HTTP/1.1", 405),
        (b"DELETE /api/v1/incidents/1 HTTP/1.1", 405),
        (b"OPTIONS * HTTP/1.1", 405),
        (b"PROPFIND / HTTP/1.1", 405),
        (b"PRI * HTTP/2.0", 505),
        (b"GET /metrics HTTP/0.9", 505),
        (b"GET /metrics HTTP/9.9", 505),
        (b"GET /metrics", 400),
        (b"GET  /metrics HTTP/1.1", 400),
        (b"GET\t/metrics HTTP/1.1", 400),
        (b"G\x00T /metrics HTTP/1.1", 400),
        (b"GET /m\xc3\xa9 HTTP/1.1", 400),
    ],
)
def test_only_get_and_head_of_http_1_are_understood(running: Running, line: bytes, status: int) -> None:
    answer = said(running, line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n", end=True)

    assert statuses(answer) == [status]
    assert b"wslgpud_" not in answer


@pytest.mark.parametrize(
    "query",
    [
        "start=nan",
        "start=-inf",
        "end=inf",
        "start=1e400",
        "start=-1",
        "step=nan",
        "step=-1",
        "step=1e3",
        "step=" + quote("٣"),
        "points=0",
        "points=99999999",
        "limit=0",
        "start=" + "9" * 2000,
        "step=" + "9" * 5000,
        "points=1&points=2",
        "start=0001-01-01T00:00:00%2B23:59",
        "series=" + quote("x' OR 1=1 --"),
        "series=" + quote("x'; DROP TABLE series; --"),
        "host=" + quote("x' UNION ALL TABLE run --"),
        "series=%00",
        "series=%ff%fe",
        "%00=1",
        "series[]=x",
        "a=1&" * 200,
    ],
    ids=lambda query: query[:30],
)
def test_invalid_numbers_and_sql_in_a_query_are_refused(running: Running, query: str) -> None:
    given = query if "series" in query else f"series=wslgpud_memory_available_bytes&{query}"
    answer = said(running, get(f"/api/v1/range?{given}".encode()))

    assert statuses(answer)[0] in {400, 404}
    assert b"application/problem+json" in answer
    assert b"Traceback" not in answer
    assert running.status_of("/api/v1/series") == 200


def test_a_part_of_an_answer_cannot_be_asked_for(running: Running) -> None:
    answer = said(running, get(b"/static/main.js", b"Range: bytes=0-0,-1,0-", b"If-Range: x"))

    assert statuses(answer)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        (b"Sec-Fetch-Site: cross-site", b"Sec-Fetch-Mode: no-cors"),
        (b"Sec-Fetch-Site: same-site",),
        (b"Sec-Fetch-Site: cross-site", b"Sec-Fetch-Mode: navigate", b"Sec-Fetch-Dest: iframe"),
        (b"Sec-Fetch-Site: of a browser to come",),
        (b"Origin: https://evil.example",),
        (b"Origin: null",),
        (b"Origin: http://localhost:8888",),
    ],
)
@pytest.mark.parametrize("path", [b"/metrics", b"/", b"/api/v1/live", b"/-/healthy", b"/static/main.js"])
def test_what_a_page_of_another_origin_asks_for_is_refused(
    running: Running, path: bytes, headers: tuple[bytes, ...]
) -> None:
    answer = said(running, get(path, *headers))

    assert statuses(answer)[0] == 403
    assert b"a page of another origin asked for this" in answer


LINK = (b"Sec-Fetch-Site: cross-site", b"Sec-Fetch-Mode: navigate", b"Sec-Fetch-Dest: document")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (b"/", LINK, 200),
        (b"/runbook", LINK, 200),
        (b"/api/v1/status", LINK, 403),
        (b"/%61pi/v1/status", LINK, 403),
        (b"/api/v1/live", (b"Sec-Fetch-Site: same-origin", b"Sec-Fetch-Mode: cors"), 200),
        (b"/api/v1/live", (b"Sec-Fetch-Site: none", b"Sec-Fetch-Mode: navigate"), 200),
        (b"/api/v1/live", (b"Origin: http://localhost",), 200),
        (b"/api/v1/live", (), 200),
        (b"/metrics", (), 200),
    ],
)
def test_links_to_pages_and_the_page_itself_are_answered(
    running: Running, path: bytes, headers: tuple[bytes, ...], status: int
) -> None:
    assert statuses(said(running, get(path, *headers)))[0] == status


def test_attackers_make_no_series_of_their_own(running: Running, tmp_path: Path) -> None:
    for number in range(50):
        said(running, get(b"/own/%d" % number))
        said(running, b"OWN%d /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % number)
    counted = [name for name in running.samples() if name.startswith("wslgpud_http_requests_total")]

    assert len(counted) < 60
    assert not any("own" in name.lower() for name in counted)
