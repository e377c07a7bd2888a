"""The one thing that a client can do: say that somebody has seen a lost job."""

from __future__ import annotations

import json

import pytest

from wslgpud.serve import commands

PATH = "/api/v1/seen/7"


@pytest.fixture
def told():
    return []


@pytest.fixture
def running(serve, told):
    def see(number):
        told.append(number)
        return number == 7

    return serve(extra_routes=[commands.seen_route(see)])


def test_a_lost_job_is_marked_as_seen(running, told):
    answer = running.ask(PATH, method="POST")

    assert (answer.status, json.loads(answer.data), told) == (200, {"seen": 7}, [7])


@pytest.mark.parametrize(("name", "status"), [("8", 404), ("x", 400), ("-1", 400), ("1e3", 400), ("9" * 40, 400)])
def test_what_is_no_lost_job_is_refused(name, status, running):
    assert running.ask(f"/api/v1/seen/{name}", method="POST").status == status


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_reading_marks_nothing(method, running, told):
    answer = running.ask(PATH, method=method)

    assert (answer.status, answer.getheader("Allow"), told) == (405, "POST", [])


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
    ids=["a form", "another port", "an older browser", "a sandbox"],
)
def test_a_page_of_another_origin_marks_nothing(headers, running, told):
    assert running.ask(PATH, method="POST", headers=headers).status == 403
    assert told == []


def test_a_body_is_refused(running, told):
    assert running.ask(PATH, method="POST", body=b"x").status == 413
    assert told == []


def test_a_disk_that_is_full_is_said(serve):
    def full(number):
        raise OSError(28, "No space left on device")

    answer = serve(extra_routes=[commands.seen_route(full)]).ask(PATH, method="POST")

    assert (answer.status, b"No space left on device" in answer.data) == (503, True)
