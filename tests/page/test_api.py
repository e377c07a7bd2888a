"""The API's answers to a program."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import re
import threading
import urllib.error
import urllib.parse
import urllib.request

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.page.stage import Stage, nights, past_incidents, trace
from tests.store.made import as_on_a_server
from tests.words.catalogue import templates
from wslgpud.app.catalogue import catalogue
from wslgpud.model import Level, Reading, Sample, Snapshot, SourceReport, Transition
from wslgpud.series.curves import step_for
from wslgpud.serve import api, api_history, base_routes, commands
from wslgpud.serve.router import Problem
from wslgpud.sources.memory import MEMINFO
from wslgpud.words import TEMPLATES, Message

HEADLINES = {"en": "Memory is fine", "zh": "内存状况良好"}
RAM = "wslgpud_memory_available_bytes"


def ask(stage, path, headers=None, **query):
    """Return (status, headers, document)."""
    connection = http.client.HTTPConnection("127.0.0.1", stage.port, timeout=60)
    text = urllib.parse.urlencode(query, doseq=True)
    connection.request("GET", f"/api/v1/{path}?{text}" if text else f"/api/v1/{path}", headers=headers or {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.getheader("Content-Encoding") == "gzip":
        body = gzip.decompress(body)
    return answer.status, answer.headers, json.loads(body) if body else None


def remember(stage: Stage, *points, spec=MEMINFO["MemAvailable"], labels=()):
    """Record (seconds ago, value) of a series; return what time it is."""
    wall, mono = stage.clock.wall(), stage.clock.mono()
    for number, (ago, value) in enumerate(points):
        report = SourceReport("memory", "ok", Sample((Reading(spec, value, labels),)), mono - ago, 0.0)
        stage.store.append(Snapshot(wall - ago, mono - ago, number, (report,)))
    stage.store.flush()
    return wall


def test_a_series_is_listed_and_returned_as_recorded(stage):
    now = remember(stage, (30, 3 << 30), (20, 2 << 30), (10, 1 << 30))
    _, _, listed = ask(stage, "series", match="*available*")
    _, _, found = ask(stage, "range", series=RAM, start=now - 60, end=now, step=0)

    (series,) = listed["series"]
    assert (series["name"], series["unit"], series["kind"]) == (RAM, "bytes", "gauge")
    (curve,) = found["series"]
    assert curve["value"] == [3 << 30, 2 << 30, 1 << 30]
    assert curve["time"] == pytest.approx([now - 30, now - 20, now - 10], abs=0.002)


def test_steps_hold_mean_minimum_and_maximum_and_gaps_stay(stage):
    now = remember(stage, (305, 8), (304, 2), (5, 4))
    _, _, found = ask(stage, "range", series=RAM, start=now - 600, end=now, step=3600)
    _, _, fine = ask(stage, "range", series=RAM, start=now - 600, end=now, step=30)

    rows = list(zip(*(found["series"][0][name] for name in ("value", "min", "max")), strict=True))
    assert {(min(r[1] for r in rows), max(r[2] for r in rows))} == {(2, 8)}
    assert 2 <= len(fine["series"][0]["time"]) <= 3
    assert found["tier"] == "hours"


def test_a_counter_is_given_as_it_counts(stage):
    spec = catalogue()["swap_in_bytes"]
    now = remember(stage, (30, 100), (20, 300), spec=spec)
    _, _, found = ask(stage, "range", series="wslgpud_swap_in_bytes_total", start=now - 60, end=now, step=1)

    assert found["series"][0]["value"] == [100, 300]
    assert "min" not in found["series"][0]


@given(st.floats(0.001, 1e11), st.integers(10, api_history.MAX_POINTS), st.integers(1, api_history.MAX_SERIES))
def test_no_answer_has_more_points_than_asked_for(span, points, series):
    points = min(points, api_history.MAX_POINTS_IN_ALL // series)
    step = step_for(span, points)

    assert span / step <= points
    assert step == 1 or span / step > points / 8  # and not much fewer
    api_history.check_size(span, step, series)


@pytest.mark.parametrize(
    ("path", "query", "said"),
    [
        ("range", {"series": RAM, "start": 10, "end": 5}, "start must lie before end"),
        ("range", {"series": RAM, "start": 0, "end": 1e9, "step": 1}, "too many"),
        ("range", {"series": RAM, "start": 0, "end": 301, "step": 0}, "too many"),
        ("range", {}, "1 to 20 times"),
        ("range", {"sereis": RAM}, "did you mean series?"),
        ("range", {"series": RAM, "start": "yesterday"}, "2026-11-21T03:30:00Z"),
        ("incidents", {"limit": "٣"}, "whole number from 1 to 500"),
        ("incidents", {"least": "bad"}, "info, warning, critical, emergency"),
        ("incidents/x", {}, "must be a number"),
        ("processes", {"start": 0}, "a week"),
        ("stress", {"limit": [1, 2]}, "only once"),
        ("stress", {"lang": "fr"}, "lang must be one of: en, zh"),
        ("stress", {"lang": b"\xff"}, "cannot be read"),
    ],
)
def test_a_bad_question_gets_a_problem_with_the_remedy(stage, path, query, said):
    remember(stage, (5, 1))
    status, headers, problem = ask(stage, path, **query)

    assert status == 400
    assert headers["Content-Type"] == "application/problem+json"
    assert problem["status"] == 400
    assert said in problem["detail"]


def test_what_the_server_itself_refuses_is_a_problem_too(stage):
    status, headers, problem = ask(stage, "nothing")
    rebound, _, rebound_problem = ask(stage, "live", {"Host": "evil.example"})

    assert (status, problem["title"]) == (404, "Not Found")
    assert headers["Content-Type"] == "application/problem+json"
    assert (rebound, rebound_problem["status"]) == (421, 421)


def test_long_lists_are_paged_without_loss_or_repetition(stage):
    past_incidents(stage)
    stage.store.flush()
    seen, before = [], {}
    while True:
        _, _, page = ask(stage, "incidents", limit=1, **before)
        seen += [i["id"] for i in page["incidents"]]
        if "next" not in page:
            break
        before = {"before": page["next"]}
    _, _, whole = ask(stage, "incidents")

    assert seen == [i["id"] for i in whole["incidents"]] == sorted(seen, reverse=True)
    assert len(seen) == whole["total"] == 4


def test_series_come_page_by_page(stage):
    for name in ("MemAvailable", "MemFree", "Cached"):
        remember(stage, (5, 1), spec=MEMINFO[name])
    _, _, first = ask(stage, "series", limit=2)
    _, _, second = ask(stage, "series", limit=2, after=first["next"])

    assert len(first["series"]) == 2
    assert "next" not in second
    names = [s["name"] for s in first["series"] + second["series"]]
    assert names == sorted({f"wslgpud_memory_{n}_bytes" for n in ("available", "cached", "free")})


def test_an_incident_report_has_its_black_box_in_the_language(stage):
    stage.play(trace("ram-leak_linear-1"), 171)
    _, _, listed = ask(stage, "incidents", least="critical")
    _, _, found = ask(stage, f"incidents/{listed['incidents'][0]['id']}", lang="zh")

    (curve,) = found["headroom"]
    assert curve["resource"] == "ram"
    assert len(curve["levels"]) == len(curve["points"]) > 20
    assert re.search(r"[\u4e00-\u9fff]", found["advice"])
    assert ask(stage, "incidents/999999")[0] == 404


def test_processes_are_told_with_how_they_grew(stage):
    stage.play(trace("ram-leak_linear-1"), 171)
    now = stage.clock.wall()
    _, _, found = ask(stage, "processes", start=now - 3600, end=now, limit=1)

    (largest,) = found["processes"]
    assert largest["name"] == "python3"
    assert largest["grown_bytes"] > 100 << 20
    assert found["total"] > 1


def test_stress_runs_are_listed_briefly_and_told_in_full(stage):
    nights(stage, 3)
    stage.store.flush()
    _, _, listed = ask(stage, "stress")
    _, _, one = ask(stage, f"stress/{listed['runs'][0]['id']}")

    assert [len(run["findings"]) for run in listed["runs"]] == [0, 0, 1]
    assert "detail" not in listed["runs"][0]
    assert len(one["detail"]["chunks"]) == 56


def test_the_daemon_tells_what_it_costs(stage):
    _, _, own = ask(stage, "self")

    assert own["processes"][0]["pss_bytes"] > 10 << 20
    assert own["processes"][0]["cpu_seconds"] > 0
    assert own["store"]["file_bytes"] > 0


def test_the_doctor_is_sent_for_once_however_many_ask(stage, monkeypatch):
    _, _, first = ask(stage, "doctor")
    monkeypatch.setattr(stage, "checkup", list)
    _, _, again = ask(stage, "doctor")

    assert again == first
    assert {"id", "title", "state", "found", "why", "remedy"} <= set(first["findings"][0])


def test_the_doctor_answers_in_the_language_that_is_asked_for(stage, monkeypatch):
    _, _, english = ask(stage, "doctor")
    monkeypatch.setattr(stage, "checkup", list)  # he is not sent for again
    _, _, chinese = ask(stage, "doctor?lang=zh")

    assert (english["findings"][0]["title"], chinese["findings"][0]["title"]) == ("Linux kernel", "Linux 内核")
    assert english["findings"][0]["state"] == chinese["findings"][0]["state"]


def test_live_costs_nothing_while_nothing_is_new(stage):
    stage.play(trace("ram-leak_linear-1"), 60)
    _, headers, first = ask(stage, "live", {"Accept-Encoding": "gzip"})
    status, again, nothing = ask(stage, "live", {"If-None-Match": headers["ETag"]})
    stage.clock.offset += 30
    _, later, _ = ask(stage, "live")

    assert first["values"][RAM] == first["status"]["ram"]["available"]
    assert (status, nothing) == (304, None)
    assert float(again["Wslgpud-Age"]) < 30 <= float(later["Wslgpud-Age"])


def test_live_and_status_are_worded_in_the_requested_language(stage):
    stage.play(trace("ram-leak_linear-1"), 60)
    stage.verdict = {code: {"level": "ok", "headline": words} for code, words in HEADLINES.items()}
    asked = []
    known = stage.known
    stage.known = lambda language: asked.append(language) or known(language)
    headlines = [ask(stage, "live", lang=code)[2]["status"]["verdict"]["headline"] for code in HEADLINES]
    _, english, _ = ask(stage, "live")
    _, chinese, _ = ask(stage, "live", lang="zh")

    assert headlines == list(HEADLINES.values())
    assert asked == ["en", "zh"]
    assert english["ETag"] != chinese["ETag"]
    assert ask(stage, "live", {"If-None-Match": chinese["ETag"]}, lang="zh")[0] == 304
    assert ask(stage, "live", lang="fr")[0] == 400


@pytest.mark.slow
def test_the_words_of_the_page_are_sent_once(stage):
    status, headers, words = ask(stage, "words", lang="zh")
    again, _, nothing = ask(stage, "words", {"If-None-Match": headers["ETag"]}, lang="zh")
    said = {text for text, (_, files) in templates().items() if any("serve/static/" in f for f in files)}

    assert (status, again, nothing) == (200, 304, None)
    labels = {f"{kind}.{name}": word for kind, names in TEMPLATES["label"].items() for name, word in names.items()}
    assert words.keys() == said | labels.keys()
    assert (words["Overview"], words["level.warning"]) == ("总览", "警告")
    assert ask(stage, "words")[2] == labels
    assert ask(stage, "words", lang="fr")[0] == 400


def test_before_the_first_sample_live_says_so(stage):
    _, _, live = ask(stage, "live")
    status, _, problem = ask(stage, "latest")

    assert live["status"]["waiting"]
    assert "values" not in live
    assert (status, problem["status"]) == (503, 503)


def test_a_restart_is_another_instance(stage):
    _, _, before = ask(stage, "live")
    stage.server.stop()
    stage.serve()
    _, _, after = ask(stage, "live")

    assert before["instance"] != after["instance"]


def test_labels_of_any_text_name_their_series_and_find_it_again(stage):
    evil = 'a"b\\c\n<script>{x="1"}'
    now = remember(stage, (5, 7), spec=catalogue()["program_resident_bytes"], labels=(evil,))
    _, _, listed = ask(stage, "series")
    _, _, found = ask(stage, "range", series=listed["series"][0]["name"], start=now - 60, end=now, step=1)

    assert found["series"][0]["labels"] == {"program": evil}
    assert found["series"][0]["value"] == [7]


def test_a_slow_question_to_the_database_delays_no_scrape(stage, monkeypatch):
    asked, release = threading.Event(), threading.Event()

    def slow(*_, **_asked):
        asked.set()
        release.wait(60)
        return []

    monkeypatch.setattr("wslgpud.store.reader.Reader.stress_runs", slow)
    waiting = threading.Thread(target=ask, args=(stage, "stress"))
    waiting.start()
    asked.wait(60)
    connection = http.client.HTTPConnection("127.0.0.1", stage.port, timeout=60)
    connection.request("GET", "/metrics")
    scraped = connection.getresponse().status
    connection.close()
    release.set()
    waiting.join()

    assert scraped == 200


def test_every_path_of_the_api_is_described_and_nothing_else():
    described = set(json.loads(api.OPENAPI.read_text())["paths"])
    of_now = (*base_routes(_NoPublisher(), dict), *api.routes(_NoPublisher(), dict, dict, list))
    routes = (*of_now, commands.seen_route(bool), *api_history.routes(_NoPublisher(), [], list, ""))
    served = {route.path for route in routes if route.path.startswith("/api/")}

    assert described == served


class _NoPublisher:
    """Enough of a publisher to be asked for routes."""

    latest = None


def test_who_may_not_see_the_metrics_may_not_see_this(tmp_path):
    web = tmp_path / "web.yml"
    hashed = bcrypt.hashpw(b"sesame", bcrypt.gensalt(4)).decode()
    web.write_text(f"basic_auth_users:\n  me: {hashed}\n")
    stage = Stage(tmp_path, web=str(web))
    try:
        paths = [path for path, asked in json.loads(api.OPENAPI.read_text())["paths"].items() if "get" in asked]
        answers = {p: ask(stage, p.removeprefix("/api/v1/").replace("{id}", "1")) for p in paths}
        known = base64.b64encode(b"me:sesame").decode()
        allowed, _, _ = ask(stage, "live", {"Authorization": f"Basic {known}"})
        asked = urllib.request.Request(f"{stage.url}/api/v1/seen/1", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(asked)
    finally:
        stage.close()

    assert {status for status, _, _ in answers.values()} == {401}
    assert {headers["Content-Type"] for _, headers, _ in answers.values()} == {"application/problem+json"}
    assert allowed == 200


@pytest.mark.parametrize(
    ("text", "wall"),
    [("1795253531", 1795253531), ("2026-11-21T09:32:11Z", 1795253531), ("2026-11-21T17:32:11 08:00", 1795253531)],
)
def test_a_moment_is_seconds_or_rfc_3339(text, wall):
    assert api.Query(f"start={text}", ("start",)).moment("start") == wall


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e12", "now", "", "2026-13-01T00:00:00Z"])
def test_what_is_no_moment_is_refused(text):
    with pytest.raises(Problem):
        api.Query(f"start={text}", ("start",)).moment("start")


def test_what_is_worse_counts_for_least(stage):
    stage.say(Transition(stage.clock.wall(), 0.0, "ram", "memory_exhaustion", Level.OK, Level.INFO, Message("a note")))
    stage.store.flush()

    assert ask(stage, "incidents")[2]["total"] == 1
    assert ask(stage, "incidents", least="warning")[2]["total"] == 0


def test_each_of_many_machines_can_be_asked_for(stage):
    own, stage.name = stage.name, "trainer-2"
    stage.server.stop()
    stage.store.close()
    stage.reopen()
    remember(stage, (5, 22))
    stage.server.stop()
    stage.store.close()
    as_on_a_server(stage.database)
    stage.name = own
    stage.reopen()
    remember(stage, (5, 1))

    _, _, listed = ask(stage, "series", host="trainer-2")
    _, _, theirs = ask(stage, "range", series=RAM, host="trainer-2", step=1)
    _, _, ours = ask(stage, "range", series=RAM, step=1)
    status, _, problem = ask(stage, "series", host="trainer-3")

    assert listed["hosts"] == [own, "trainer-2"]
    assert [theirs["series"][0]["value"], ours["series"][0]["value"]] == [[22], [1]]
    assert status == 404
    assert "known are: stage, trainer-2" in problem["detail"]


def test_what_runs_and_the_last_stress_run_are_in_the_status(stage):
    nights(stage, 3)
    stage.running = [
        {"kind": "stress", "what": "GPU 0", "pid": 7, "phase": "fill", "elapsed_seconds": 3.2, "done_ratio": 0.4}
    ]
    stage.host("no-gpu", past_seconds=5)
    _, _, live = ask(stage, "live")

    (running,) = live["status"]["running"]
    assert running == stage.running[0] | {"headline": running["headline"]}
    (last,) = live["status"]["stress"]
    assert last["verdict"] == "passed"
    assert last["usable_bytes"] > 14e9
