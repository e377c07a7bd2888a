"""How an answer is written, and what the log and the counts keep of a request."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import threading

import pytest

from wslgpud.serve import Request, Response, Route
from wslgpud.serve.router import MAX_GUESSES, CachedDocument, Threads, packed, response_headers

ZIPPING = Request("GET", "/", "", {"accept-encoding": "gzip"})
PLAIN = Request("GET", "/", "", {})


@pytest.mark.parametrize(
    ("size", "request_", "zipped"), [(1399, ZIPPING, False), (1400, ZIPPING, True), (1400, PLAIN, False)]
)
def test_json_is_zipped_from_1400_bytes_on_for_who_takes_it(size, request_, zipped):
    body = b"1" * size
    answer = packed(request_, body)

    assert (answer.status, answer.content_type, answer.headers["Vary"]) == (200, "application/json", "Accept-Encoding")
    assert answer.body == (gzip.compress(body, 1, mtime=0) if zipped else body)
    assert answer.headers.get("Content-Encoding") == ("gzip" if zipped else None)


def test_a_kept_document_is_given_plain_or_zipped_or_not_again():
    kept, tag = CachedDocument(b"text", "text/css"), f'"{hashlib.sha256(b"text").hexdigest()}"'
    plain, zipped = kept.answer(PLAIN, {"X": "y"}), kept.answer(ZIPPING, {})
    same, other = (kept.answer(Request("GET", "/", "", {"if-none-match": known}), {}) for known in (tag, '"x"'))

    assert (plain.status, plain.body, plain.content_type) == (200, b"text", "text/css")
    assert plain.headers == {"Vary": "Accept-Encoding", "ETag": tag, "X": "y"}
    assert (zipped.status, zipped.body) == (200, gzip.compress(b"text", 1, mtime=0))
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert (same.status, same.body, other.status) == (304, b"", 200)


def test_every_answer_but_not_modified_states_its_length():
    found = dict(response_headers(Response(200, b"12345")))
    nothing = dict(response_headers(Response(304, b"", "")))

    assert found[b"content-length"] == b"5"
    assert nothing.keys() & {b"content-length", b"content-type"} == set()


def test_the_log_keeps_200_characters_of_a_failed_path(serve, caplog):
    def broken(_):
        raise RuntimeError("disk on fire")

    running = serve(extra_routes=[Route("/broken/{name}", broken)])
    assert running.ask("/broken/" + "x" * 200).status == 500

    (line,) = caplog.messages
    begun = broken.__code__.co_firstlineno
    assert line == f"/broken/{'x' * 192} failed: RuntimeError('disk on fire') in {__file__}:{begun + 1}"


@pytest.mark.parametrize(("threads", "most"), [(Threads(1, "any"), 64), (Threads(1, "guesses", MAX_GUESSES), 8)])
def test_64_requests_may_wait_and_8_passwords_of_one_client(threads, most):
    release = threading.Event()

    async def ask_for_all():
        asked = [asyncio.ensure_future(threads.run(release.wait, "a")) for _ in range(most + 2)]
        await asyncio.sleep(0)
        release.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    *answered, refused, again = asyncio.run(ask_for_all())
    threads.close()
    assert answered == [True] * most
    assert (refused.status, again.status) == (503, 503)
