"""What the description of the API promises holds, to the last entry of a page and the last character of a hint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.page.stage import Stage, nights
from tests.page.test_api import RAM, ask, remember
from wslgpud.app.catalogue import catalogue
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading, Sample, Snapshot, SourceReport
from wslgpud.serve import Publisher, Request, api
from wslgpud.serve.router import Problem
from wslgpud.sources.memory import MEMINFO

#: parameters without which a path is not answered
NEEDED = {"range": {"series": RAM, "start": 0, "end": 1}, "processes": {"start": 0, "end": 1}}
AVAILABLE, UP = MEMINFO["MemAvailable"], catalogue()["gpu_up"]


def whole_numbers() -> Iterator[tuple[str, str, dict[str, int]]]:
    """Yield path, name and schema of each parameter that is a whole number."""
    document = json.loads(api.OPENAPI.read_text())
    for path, asked in document["paths"].items():
        for parameter in asked.get("get", {}).get("parameters", ()):
            shared = parameter.get("$ref", "").rpartition("/")[2]
            given = document["components"]["parameters"][shared] if shared else parameter
            if given["schema"].get("type") == "integer" and given["in"] == "query":
                yield path.removeprefix("/api/v1/"), given["name"], given["schema"]


def test_an_integer_is_accepted_only_within_its_documented_range(stage: Stage) -> None:
    remember(stage, (5, 1))
    for path, name, schema in whole_numbers():
        least, most = schema["minimum"], schema["maximum"]
        statuses = [ask(stage, path, **NEEDED.get(path, {}), **{name: n})[0] for n in (least, most, most + 1)]
        assert (path, name, statuses) == (path, name, [200, 200, 400])
        assert ask(stage, path, **NEEDED.get(path, {}), **{name: least - 1})[0] == 400


def test_a_page_has_50_entries_and_the_next_continues_after_it(stage: Stage) -> None:
    nights(stage, 51)
    stage.store.flush()
    _, _, page = ask(stage, "stress")
    _, _, rest = ask(stage, "stress", before=page["next"])

    assert (len(page["runs"]), page["total"], page["next"]) == (50, 51, page["runs"][-1]["id"])
    assert ([run["id"] for run in rest["runs"]], "next" in rest) == ([page["next"] - 1], False)


def test_a_step_of_zero_returns_every_sample(stage: Stage) -> None:
    now = remember(stage, (1.2, 8), (1.1, 2))
    _, _, samples = ask(stage, "range", series=RAM, start=now - 9, end=now, step=0)
    _, _, seconds = ask(stage, "range", series=RAM, start=now - 9, end=now, step=1)

    assert samples["series"][0]["value"] == [8, 2]
    assert samples["series"][0].keys() & {"min", "max"} == set()
    assert seconds["series"][0].keys() >= {"min", "max"}


def test_a_new_series_is_listed_before_it_is_recorded(stage: Stage) -> None:
    build, stored_nowhere = catalogue()["build"], catalogue()["ticks"]
    remember(stage, (5, 1))
    new = (Reading(UP, 1, ("0", "GPU-a")), Reading(build, 1, ("1", "3.14")), Reading(stored_nowhere, 1))
    stage.publisher.publish(Snapshot(1.0, 1.0, 0, (SourceReport("gpu", "ok", Sample(new), 1.0, 0.0),)))
    here, named = (ask(stage, "series", **more)[2]["series"] for more in ({}, {"host": "stage"}))

    assert [series["name"] for series in here] == ['wslgpud_gpu_up{gpu="0",uuid="GPU-a"}', RAM]
    assert [series["name"] for series in named] == [RAM]


def test_a_metric_of_another_version_is_listed_by_its_name_alone(stage: Stage) -> None:
    remember(stage, (5, 1), spec=MetricSpec("gone", "counter", "", "of old"), labels=())
    remember(stage, (5, 1), spec=catalogue()["swap_in_bytes"])
    gone, known = ask(stage, "series")[2]["series"]

    assert gone == {"name": "wslgpud_gone", "metric": "wslgpud_gone", "labels": {}, "kind": "unknown"}
    assert (known["name"], known["kind"], known["unit"]) == ("wslgpud_swap_in_bytes_total", "counter", "bytes")
    assert known["help"] == catalogue()["swap_in_bytes"].help


def test_a_wrong_name_is_repeated_up_to_200_characters(stage: Stage) -> None:
    remember(stage, (5, 1))
    series, host = (ask(stage, "range", series="x" * 201), ask(stage, "series", host="y" * 201))

    assert (series[0], host[0]) == (404, 404)
    assert series[2]["detail"] == f"there is no series {'x' * 200}; /api/v1/series lists them all"
    assert host[2]["detail"] == f"no history of '{'y' * 200}'; known are: stage"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("&".join(["series=a"] * 101), "the query cannot be read: Max number of fields exceeded"),
        ("ser=a", "unknown parameter 'ser'; did you mean series?"),
        (f"{'x' * 41}=1", f"unknown parameter '{'x' * 40}'; known are: series"),
    ],
)
def test_parameters_that_are_too_many_or_unknown_are_refused(query: str, said: str) -> None:
    with pytest.raises(Problem) as refused:
        api.Query(query, ("series",))

    assert refused.value.detail == said
    assert api.Query("&".join(["series=a"] * 100), ("series",)).all("series") == ["a"] * 100


def test_the_last_moment_is_in_the_year_5138() -> None:
    assert api.Query("end=1e11", ("end",)).moment("end") == 1e11
    with pytest.raises(Problem):
        api.Query("end=100000000001", ("end",)).moment("end")


def latest(stage: Stage, **query: str) -> Any:
    return ask(stage, "latest", **query)[2]


def test_latest_values_can_be_matched_by_full_name_or_metric(stage: Stage) -> None:
    readings = (Reading(AVAILABLE, 7), Reading(UP, 1, ("0", "GPU-a")))
    taken = (SourceReport("all", "ok", Sample(readings), 1.0, 0.0),)
    mono = stage.clock.mono() - 2.34567
    stage.publisher.publish(Snapshot(1234.56789, mono, 0, taken, 0.0, 0.98765))
    card = 'wslgpud_gpu_up{gpu="0",uuid="GPU-a"}'

    assert latest(stage) == {
        "wall": 1234.568,
        "interval_seconds": 0.988,
        "age_seconds": 2.346,
        "values": {card: 1, RAM: 7},
    }
    assert [latest(stage, match=m)["values"] for m in ("*avail*", "wslgpud_gpu_up", "*GPU-a*", "avail")] == [
        {RAM: 7},
        {card: 1},
        {card: 1},
        {},
    ]


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        (True, "the doctor is looking at the machine; try again in a moment"),
        (False, "the doctor could not look at the machine; the daemon's log says why"),
    ],
)
def test_who_asks_for_the_doctor_too_early_is_told_why(looks: bool, said: str) -> None:
    def doctor() -> None:
        if looks:
            raise TimeoutError

    (route,) = (r for r in api.routes(Publisher(()), dict, dict, doctor) if r.path == "/api/v1/doctor")
    with pytest.raises(Problem) as refused:
        route.handler(Request("GET", route.path, "", {}))

    assert refused.value.status == 503
    assert refused.value.detail == said


def test_the_daemon_says_for_how_long_it_runs(stage: Stage) -> None:
    stage.server.stop()
    stage.serve()
    stage.clock.offset += 12.345

    assert ask(stage, "self")[2]["uptime_seconds"] == 12.3
