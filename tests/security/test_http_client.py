"""What counts as an answer, and what is said of one that does not."""

from __future__ import annotations

import pytest

from tests.support.hostile import answers, hostile, says
from wslgpud.security.http_client import Address, ErrorStatus, Unreachable, exchange, parsed


def answer(status: str, body: bytes, max_bytes: int = 1000) -> bytes:
    with hostile(answers(status, body)) as server:
        return exchange(parsed(server.url), deadline_seconds=60.0, max_bytes=max_bytes)


@pytest.mark.parametrize("status", ["200 OK", "299 Fine"])
def test_success_is_an_answer(status: str) -> None:
    assert answer(status, b"body") == b"body"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("300 Choices", "answered 300: it redirects"),
        ("399 Elsewhere", "answered 399: it redirects"),
        ("400 Bad", "answered 400: body$"),
        ("599 Worse", "answered 599: body$"),
    ],
)
def test_anything_else_is_named_by_its_status_and_its_text(status: str, said: str) -> None:
    with pytest.raises(ErrorStatus, match=said):
        answer(status, b"body")


def test_the_detail_of_a_problem_in_json_is_its_text() -> None:
    with pytest.raises(ErrorStatus, match=r"^answered 503: no sample yet$"):
        answer("503 Later", b'{"type":"about:blank","title":"Service Unavailable","detail":"no sample yet"}')


def test_the_text_of_an_error_is_cut_at_200_characters() -> None:
    with pytest.raises(ErrorStatus) as caught:
        answer("500 Oops", b"y" * 900)
    assert str(caught.value) == f"answered 500: {'y' * 199}…"


def test_an_answer_may_fill_its_size_limit_but_not_exceed_it() -> None:
    assert answer("200 OK", b"y" * 1000) == b"y" * 1000
    with pytest.raises(Unreachable, match="it answered more than 1 KiB"):
        answer("200 OK", b"y" * 1001)


def test_what_is_not_http_is_told_from_an_answer_that_breaks_off() -> None:
    for said, answered in (
        ("its answer is not HTTP", b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        ("its answer is incomplete", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbody"),
        ("its answer is incomplete", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nrubbish\r\n"),
    ):
        with hostile(says(answered)) as server, pytest.raises(Unreachable, match=said):
            exchange(parsed(server.url), deadline_seconds=60.0, max_bytes=1000)


def test_a_secret_echoed_by_the_server_is_masked() -> None:
    headers = {"Authorization": "Bearer abc123", "X-Key": "def456", "User-Agent": "wslgpud/1"}
    body = b"no user for Bearer abc123 / abc123, no def456, wslgpud/1 at identity"
    with hostile(answers("403 No", body)) as server, pytest.raises(ErrorStatus) as caught:
        exchange(parsed(server.url), b"x", headers, deadline_seconds=60.0, max_bytes=1000)
    assert str(caught.value) == "answered 403: no user for *** / ***, no ***, wslgpud/1 at identity"


@pytest.mark.parametrize(
    ("url", "address", "place"),
    [
        ("http://pc", Address("http", "pc", None, "/"), "pc"),
        ("https://pc:9/x?y=1#z", Address("https", "pc", 9, "/x?y=1"), "pc:9"),
        ("http://[::1]:9182/metrics", Address("http", "::1", 9182, "/metrics"), "[::1]:9182"),
        ("http://me:p%40ss@pc/", Address("http", "pc", None, "/", "Basic bWU6cEBzcw=="), "pc"),
        ("http://me@pc/", Address("http", "pc", None, "/", "Basic bWU6"), "pc"),
    ],
)
def test_an_address_is_taken_apart(url: str, address: Address, place: str) -> None:
    assert parsed(url) == address
    assert parsed(url).place == place


@pytest.mark.parametrize("url", ["ftp://pc/", "http://", "pc:9182", "http://pc:99999/", "http://me:hunter/2@pc/"])
def test_an_address_that_is_none_of_http_is_not_quoted(url: str) -> None:
    with pytest.raises(ValueError, match=r"^not an address like http://127\.0\.0\.1:9093$"):
        parsed(url)
