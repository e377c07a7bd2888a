"""What strangers may ask for costs the real daemon little memory, which it gives back, and little time."""

from __future__ import annotations

import http.client
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tests.page.stage import Stage
from tests.page.test_api import RAM, ask, remember
from tests.support.daemons import Running, daemon, eventually
from wslgpud.advise import checkups
from wslgpud.serve import api_history
from wslgpud.serve.router import HEAVY_THREADS, Problem
from wslgpud.store.records import shell_pattern

MIB = 1 << 20
#: what the daemon may keep of all that is asked below; before, 300 patterns alone left 70 MiB
KEPT_BYTES = 24 * MIB
#: how many times the time of an innocent request a hostile one may take; it was 60 to 100 with patterns
TIMES = 40


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A daemon that has answered each kind of request once, so that all lazy imports are done."""
    # Few samples: what they cost must not be taken for the cost of requests.
    settings = {"WSLGPUD_SAMPLING__INTERVAL_SECONDS": "30"}
    with daemon(tmp_path_factory.mktemp("cost"), settings=settings) as found:
        eventually(lambda: found.status_of("/-/ready") == 200, "readiness")
        asked(found, lambda _: "/api/v1/latest", 100)
        for hostile in HOSTILE.values():
            asked(found, hostile, 4)
        yield found


def asked(running: Running, path: Callable[[int], str], many: int) -> set[int]:
    """Ask one after another on one connection; return the statuses that came."""
    place = urlsplit(running.url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=180)
    statuses = set()
    for number in range(many):
        connection.request("GET", path(number))
        answer = connection.getresponse()
        answer.read()
        statuses.add(answer.status)
    connection.close()
    return statuses


def pss_bytes(running: Running) -> int:
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{running.process.pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def cpu_seconds(running: Running) -> float:
    fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def nested(number: int, length: int) -> str:
    """Return a different pattern for each number, with a star before each character."""
    return quote((f"*{number}" + "*a*[b-y]?" * length)[:length])


HOSTILE: dict[str, Callable[[int], str]] = {
    "long patterns": lambda n: f"/api/v1/latest?match={n}" + "[a-z]*" * 2400,
    "long patterns for series": lambda n: f"/api/v1/series?match={n}" + "?*" * 6000,
    "the longest patterns allowed": lambda n: f"/api/v1/latest?match={nested(n, 256)}",
    "the same for series": lambda n: f"/api/v1/series?match={nested(n, 256)}",
    "names nearly right": lambda n: f"/api/v1/range?series=wslgpud_memory_availible_bytes{n}",
    "long names": lambda n: f"/api/v1/range?series={n}" + "wslgpud_memory_available_bytes" * 400,
    "many names": lambda n: "/api/v1/range?" + "&".join(f"series=x{n}.{i}" for i in range(99)),
    "unknown parameters": lambda n: "/api/v1/range?" + f"{'s' * 15000}{n}=1",
    "all of time in steps of odd seconds": lambda n: (
        f"/api/v1/range?series={RAM}&start=0&end=90000000000&step={2_591_999 - n % 7}"
    ),
    "a week of processes": lambda n: f"/api/v1/processes?end={1_800_000_000 + n}&start=1799395201&limit=500",
    "hosts that there are not": lambda n: "/api/v1/series?host=" + f"{n}" * 3000,
    "the doctor": lambda _: "/api/v1/doctor",
    "paths": lambda n: f"/{'x' * 15000}{n}",
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_hostile_requests_cost_little_time_and_leave_no_trace(running: Running, hostile: Callable[[int], str]) -> None:
    before = cpu_seconds(running)
    asked(running, lambda _: "/api/v1/latest?match=*", 60)
    between, held = cpu_seconds(running), pss_bytes(running)
    statuses = asked(running, hostile, 30)

    assert (cpu_seconds(running) - between) / 30 < TIMES * max((between - before) / 60, 0.001)
    assert pss_bytes(running) - held < KEPT_BYTES / 4
    assert statuses <= {200, 400, 404}


def test_hundreds_of_patterns_are_not_kept(running: Running) -> None:
    held = pss_bytes(running)
    asked(running, HOSTILE["long patterns"], 300)
    asked(running, HOSTILE["the longest patterns allowed"], 100)

    assert pss_bytes(running) - held < KEPT_BYTES


def test_a_pattern_with_endless_backtracking_is_decided_at_once() -> None:
    assert not shell_pattern("*a" * 127 + "b")("a" * 100_000)
    assert shell_pattern("*a" * 127 + "b")("a" * 100_000 + "b")


@pytest.mark.parametrize("path", ["latest", "series"])
def test_a_pattern_longer_than_any_name_is_refused(stage: Stage, path: str) -> None:
    remember(stage, (5, 1))
    status, _, problem = ask(stage, path, match="*" * 257)

    assert (status, problem["detail"]) == (400, "match may have at most 256 characters")
    if path == "series":
        assert ask(stage, path, match="wslgpud_memory_*" + "*" * 200)[2]["series"][0]["name"] == RAM


@pytest.mark.parametrize("step", [2_591_999, 86_401, 7 * 86_400 + 60, 61])
def test_a_step_that_reads_all_samples_for_few_points_is_refused(step: int) -> None:
    with pytest.raises(Problem, match=r"leave step out, or ask for \d+ s"):
        api_history.check_size(4000 * step, step, 1)
    api_history.check_size(60 * 60, step, 1)


def test_only_a_few_of_the_largest_answers_are_made_at_a_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    now, most, release = [], [], threading.Event()

    def slow(*_: object, **_asked: object) -> list[object]:
        now.append(1)
        most.append(len(now))
        release.wait(60)
        now.pop()
        return []

    monkeypatch.setattr("wslgpud.store.reader.Reader.stress_runs", slow)
    askers = [threading.Thread(target=ask, args=(stage, "stress")) for _ in range(12)]
    for asker in askers:
        asker.start()
    eventually(lambda: stage.server._app._heavy._waiting.total() == len(askers), "all of them")
    statuses = [ask(stage, path)[0] for path in ("status", "self", "live")]
    release.set()
    for asker in askers:
        asker.join()

    assert statuses == [200, 200, 200]
    assert max(most) == HEAVY_THREADS


def test_answers_that_take_too_long_hold_up_only_their_own_kind(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release = [], threading.Event()

    def hanging(*_: object, **_asked: object) -> list[object]:
        begun.append(1)
        release.wait(60)
        return []

    monkeypatch.setattr("wslgpud.store.reader.Reader.stress_runs", hanging)
    monkeypatch.setattr("wslgpud.serve.router.HANDLER_SECONDS", 0.3)
    late = [ask(stage, "stress")[0] for _ in range(4)]
    others = [ask(stage, path)[0] for path in ("live", "openapi.json")]
    release.set()

    assert late == [504] * 4
    assert others == [200, 200]
    assert len(begun) == HEAVY_THREADS


def test_a_doctor_who_fails_is_not_sent_for_by_each_who_asks(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def failing() -> list[dict[str, object]]:
        sent.append(1)
        raise OSError("no driver")

    monkeypatch.setattr(stage, "checkup", failing)
    stage.serve()
    answers = [ask(stage, "doctor")[0] for _ in range(20)]
    stage.clock.offset += checkups.RETRY_SECONDS
    answers.append(ask(stage, "doctor")[0])

    assert answers == [500, *[503] * 19, 500]
    assert len(sent) == 2
