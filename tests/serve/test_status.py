"""The document that says how things stand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from wslgpud.alerts.incidents import OpenIncident, UnseenLoss, after
from wslgpud.client import in_one_line
from wslgpud.model import (
    Forecast,
    GpuProcess,
    GpuSample,
    Level,
    Observation,
    ProcessSample,
    RamState,
    Reading,
    Sample,
    Snapshot,
    SourceReport,
    StressResult,
    SwapState,
    Transition,
)
from wslgpud.serve.status import TickState, judged, status
from wslgpud.sources import windows
from wslgpud.verdict import Verdict, decide
from wslgpud.words import Message, from_json, translator

GIB = 1 << 30


def document(*forecasts: Forecast, language: str = "en") -> dict[str, Any]:
    state = replace(Snapshot(0.0, 0.0, 1, ()), observation=Observation(0.0), forecasts=forecasts)
    found: dict[str, Any] = json.loads(
        json.dumps(status(TickState(state, decide(forecasts, ())), translator(language)))
    )
    return found


def test_memory_exhausted_now_outranks_memory_exhausted_soon() -> None:
    soon = Forecast("gpu0", Level.EMERGENCY, 2 * GIB, 16 * GIB, 1e8, eta_seconds=21.0, cause="growth")
    now = Forecast("ram", Level.EMERGENCY, 0, 32 * GIB, 1e8, eta_seconds=0.0, cause="growth")
    calm = Forecast("gpu1", Level.OK, 9 * GIB, 16 * GIB)

    for forecasts in ((soon, now, calm), (calm, now, soon)):
        assert document(*forecasts)["verdict"]["subject"] == "ram"


def test_the_verdict_is_worded_in_the_requested_language() -> None:
    growing = Forecast("ram", Level.WARNING, GIB, 16 * GIB, 1e7, eta_seconds=40.0, cause="growth")
    growing = replace(growing, who="train.py")
    english, chinese = document(growing)["verdict"], document(growing, language="zh")["verdict"]

    assert english["headline"] == "RAM full in about 40 s: train.py +9.5 MiB/s, 1.0 of 16 GiB left"
    assert "train.py" in chinese["headline"]
    assert "full" not in chinese["headline"]
    assert english["message"] == chinese["message"]
    assert translator("zh").text(from_json(english["message"])) == chinese["headline"]
    assert document(growing)["level"] == english["level"] == "warning"


def test_the_document_has_what_is_known_and_omits_what_is_not() -> None:
    card = {windows.GPU_SIZE: 16 * GIB, windows.GPU_SHARED: GIB}
    sample = Sample(
        readings=(
            Reading(windows.AVAILABLE, 5 * GIB),
            *(Reading(spec, value, ("luid_0x0",)) for spec, value in card.items()),
        ),
        processes=tuple(ProcessSample(pid, 1, "python3", GIB, 7, roles=frozenset("cb")) for pid in (8, 9)),
    )
    reports = (
        SourceReport("ok", "ok", sample, 98.7654321, 0.12345678, last_success_wall=1.7e9),
        SourceReport("ahead", "ok", Sample(), 101.0, 0.0),
        SourceReport("gone", "failed", Sample(), 90.0, 0.0, "no answer", failures_total=3),
    )
    snapshot = Snapshot(1.7e9, 100.0, 1, reports, lateness_seconds=0.0123456, interval_seconds=1.0004)
    swap, forecasts = SwapState(8 * GIB, GIB), (Forecast("ram", Level.OK, 9 * GIB, 16 * GIB),)
    state = replace(
        snapshot, observation=Observation(0.0, ram=RamState(16 * GIB, 9 * GIB), swap=swap), forecasts=forecasts
    )
    found = status(
        TickState(
            state,
            decide(forecasts, ()),
            stress=[
                StressResult(1.7e9, uuid, 0, "a card", "passed", "", values={"usable_bytes": usable})
                for uuid, usable in (("GPU-1", 1), ("GPU-1", GIB), ("GPU-2", 7))
            ],
            paused_jobs=[{"pids": [8]}],
        ),
        translator("en"),
    )

    assert found["lateness_seconds"] == 0.012
    assert found["interval_seconds"] == 1.0
    assert (found["ram"]["available"], found["swap"]["free"]) == (9 * GIB, GIB)
    assert found["windows"] == {
        "memory_available_bytes": 5 * GIB,
        "gpus": [{"adapter": "luid_0x0", "size_bytes": 16 * GIB, "shared_bytes": GIB}],
    }
    assert [one["name"] for one in found["forecasts"]] == ["RAM + swap"]
    process = {"name": "python3", "command": "", "rss_bytes": GIB, "swap_bytes": 7}
    assert found["processes"] == [
        {"pid": 8, **process, "roles": ["b", "c", "paused"]},
        {"pid": 9, **process, "roles": ["b", "c"]},
    ]
    assert found["sources"] == [
        {"name": "ok", "health": "ok", "failures_total": 0, "age_seconds": 1.235, "duration_seconds": 0.123457},
        {"name": "ahead", "health": "ok", "failures_total": 0, "age_seconds": 0.0, "duration_seconds": 0.0},
        {"name": "gone", "health": "failed", "failures_total": 3, "error": "no answer", "duration_seconds": 0.0},
    ]
    assert [(one["uuid"], one["usable_bytes"]) for one in found["stress"]] == [("GPU-1", GIB), ("GPU-2", 7)]


def test_the_document_omits_swap_and_trouble_that_do_not_exist() -> None:
    found = document(Forecast("ram", Level.OK, 9 * GIB, 16 * GIB))

    assert [one["name"] for one in found["forecasts"]] == ["RAM"]
    assert not found.keys() & {"ram", "swap", "windows", "held", "tally"}


def opened(rule: str, resource: str, level: Level, **facts: Any) -> OpenIncident:
    row = Transition(1.7e9, 0.0, resource, rule, Level.OK, level, Message("it happened"), facts=facts)
    return OpenIncident(after(None, 1, row), acknowledged=False, silenced_until_wall=None)


def of(incidents: list[OpenIncident], *forecasts: Forecast) -> dict[str, Any]:
    state = replace(Snapshot(0.0, 0.0, 1, ()), observation=Observation(0.0), forecasts=forecasts)
    return status(TickState(state, decide(forecasts, incidents), incidents), translator("en"))


def test_an_incident_of_memory_is_no_worse_than_memory_is_now() -> None:
    kill, full = opened("oom_kill", "ram", Level.CRITICAL), opened("memory_exhaustion", "ram", Level.CRITICAL)
    slow, paused = opened("vram_stress", "ram", Level.WARNING), opened("brake", "ram", Level.CRITICAL, left_bytes=GIB)
    calm = Forecast("ram", Level.OK, 9 * GIB, 16 * GIB)
    worse = replace(calm, level=Level.EMERGENCY)

    def levels(*forecasts: Forecast) -> list[str]:
        return [one["level"] for one in of([kill, full, slow, paused], *forecasts)["incidents"]]

    assert levels(calm) == ["ok", "ok", "warning", "critical"]
    assert levels(worse) == levels() == ["critical", "critical", "warning", "critical"]
    assert levels(replace(calm, resource="gpu0")) == ["critical", "critical", "warning", "critical"]


def test_memory_has_the_level_that_the_verdict_gives_it() -> None:
    short = opened("windows_memory_low", "windows", Level.CRITICAL, available_bytes=GIB, total_bytes=64 * GIB)
    host, ram = (Forecast(resource, Level.OK, GIB, 64 * GIB) for resource in ("windows", "ram"))

    assert [one["level"] for one in of([short], ram, host)["forecasts"]] == ["ok", "critical"]


def test_memory_that_waits_for_a_paused_job_is_said_to_be_paused() -> None:
    paused, calm = opened("brake", "ram", Level.CRITICAL, left_bytes=GIB), Forecast("ram", Level.OK, 9 * GIB, 16 * GIB)
    card = replace(calm, resource="gpu0")

    assert [one.get("outlook") == "paused" for one in of([paused], calm, card)["forecasts"]] == [True, False]
    assert [one.get("outlook") == "paused" for one in of([], calm, card)["forecasts"]] == [False, False]


def test_the_verdict_counts_what_else_is_open() -> None:
    found = [opened("vram_stress", f"gpu{number}", Level.WARNING) for number in range(3)]

    assert "more" not in of(found[:1])["verdict"]
    assert of(found[:2])["verdict"]["more"] == "and 1 more is open"
    assert of(found)["verdict"]["more"] == "and 2 more are open"


def test_a_card_is_shown_as_the_driver_reports_it() -> None:
    card = GpuSample(0, "GPU-1", "RTX", 16 * GIB, 12 * GIB)
    report = SourceReport("gpu", "ok", Sample(gpus=(card,)), 0.0, 0.0)
    state = replace(Snapshot(0.0, 0.0, 1, (report,)), observation=Observation(0.0), forecasts=())
    (found,) = status(TickState(state, decide((), ())), translator("en"))["gpus"]

    assert (found["uuid"], found["used_bytes"], "self_reported" in found) == ("GPU-1", 12 * GIB, False)


def test_the_culprit_is_named_only_once() -> None:
    english = translator("en")
    named, unnamed = (
        Verdict(Level.WARNING, Message(text), who="train.py (pid 7)") for text in ("train.py was paused", "RAM is full")
    )
    nobody = unnamed._replace(who="")

    assert [judged(one, english, 0.0).get("byline") for one in (named, unnamed, nobody)] == [
        None,
        "train.py (pid 7)",
        None,
    ]
    assert [in_one_line(judged(one, english, 0.0)) for one in (named, unnamed, nobody)] == [
        "train.py was paused",
        "RAM is full · train.py (pid 7)",
        "RAM is full",
    ]


def test_a_card_tells_which_programs_of_windows_hold_it() -> None:
    held = (GpuProcess(0, "chrome.exe", 2 * GIB), GpuProcess(0, "dwm.exe", GIB))
    card = GpuSample(0, "GPU-1", "RTX", 16 * GIB)
    reports = (SourceReport("gpu", "ok", Sample(gpus=(card,)), 0.0, 0.0),)
    seen = Observation(0.0, gpus=(replace(card, in_windows=held),))
    state = replace(Snapshot(0.0, 0.0, 1, reports), observation=seen, forecasts=())
    (shown,) = status(TickState(state, decide((), ())), translator("en"))["gpus"]

    assert shown["windows"] == "Windows: chrome.exe 2.0 GiB, dwm.exe 1.0 GiB"
    assert shown["in_windows"][1] == {"name": "dwm.exe", "used_bytes": GIB}


def test_a_lost_job_is_told_beside_the_verdict() -> None:
    facts: dict[str, Any] = {"who": "train.py (pid 9)", "killed_wall": 100.0}
    warned = after(None, 4, Transition(60.0, 0.0, "ram", "memory_exhaustion", Level.OK, Level.WARNING))
    killed = after(warned, 6, Transition(100.5, 0.0, "ram", "oom_kill", Level.OK, Level.CRITICAL, facts=facts))
    calm = decide([Forecast("ram", Level.OK, 9 * GIB, 16 * GIB)], (), lost=UnseenLoss(killed, 2))
    when = translator("en").fact("_clock", 100.0)
    found = judged(calm, translator("en"), 130.0)

    assert (found["level"], found["state"]) == ("ok", "killed")
    assert found["headline"] == "Memory is fine: RAM 9.0 of 16 GiB left"
    assert found["lost"] == {
        "incident": 4,
        "resource": "ram",
        "headline": f"train.py (pid 9) was killed for lack of memory at {when}, warned 40 s before",
        "at": "1970-01-01T00:01:40.000+00:00",
        "seen": "wslgpud alerts ack 4",
        "more": "and 2 more before it",
    }
    assert in_one_line(judged(calm, translator("en"), 130.0)) == f"{found['lost']['headline']} · {found['headline']}"
    assert judged(calm, translator("zh"), 130.0)["lost"]["headline"].startswith("train.py (pid 9) 因内存不足被终止，")


def test_a_present_danger_is_said_before_a_lost_job() -> None:
    killed = after(None, 6, Transition(100.5, 0.0, "ram", "oom_kill", Level.OK, Level.CRITICAL))
    growing = Forecast("ram", Level.WARNING, GIB, 16 * GIB, 1e7, eta_seconds=40.0, cause="growth")
    said = decide([growing], (), lost=UnseenLoss(killed))
    line = in_one_line(judged(said, translator("en"), 130.0))

    assert judged(said, translator("en"), 130.0)["state"] == "warning"
    assert line.startswith("RAM full in about 40 s")
    assert line.endswith(", not warned")
