"""The report of an incident: which time it shows, who grew, which row explains it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.alerts.test_incident_limits import incident
from tests.alerts.test_incidents import CRITICAL, INFO, OK, WARNING, kill, short
from tests.alerts.test_manager import Life, Recorder
from tests.alerts.ticks import START, oom_kill, transition
from wslgpud.alerts import report as of_incident
from wslgpud.alerts.incidents import grouped
from wslgpud.alerts.report import report, summaries
from wslgpud.model import Event, Forecast, GpuProcess, GpuSample, ProcessSample, Reading, Transition
from wslgpud.risk.risk_metrics import CAPACITY, HEADROOM, LEVEL
from wslgpud.sources.gpu import FED
from wslgpud.store import SeriesRef
from wslgpud.words import ENGLISH

MIB, GIB = 1 << 20, 1 << 30
GPU_USED = next(spec for spec in FED if spec.name == "gpu_memory_used_bytes")
HOUR = 3600.0


def shown(*rows: Transition, box: Event | None = None, latest: float | None = None) -> tuple[float, float, float]:
    """Return the end of an incident and the time shown, in seconds; ``latest`` is the last value of its resource."""
    series = SeriesRef("headroom_bytes", (("resource", "ram"),))
    history: Any = SimpleNamespace(
        series=lambda _: [series],
        latest=lambda: {} if latest is None else {series: SimpleNamespace(wall=START + latest)},
    )
    moment, start, end = of_incident._span(history, incident(*rows), box)
    return moment - START, start - START, end - START


@pytest.mark.parametrize(
    ("lasted", "before", "after"), [(10, 120, 20), (150, 150, 60), (30, 120, 30), (900, 600, 60), (5 * HOUR, 600, 60)]
)
def test_the_time_shown_around_an_exhaustion_scales_with_it(lasted: float, before: float, after: float) -> None:
    rows = short(1000, OK, WARNING), short(1000 + lasted, WARNING, OK, 90)

    assert shown(*rows) == (1000 + lasted, 1000 - before, 1000 + lasted + after)


def test_of_a_long_exhaustion_the_last_six_hours_are_shown() -> None:
    rows = short(0, OK, WARNING), short(7 * HOUR, WARNING, OK, 90)

    assert shown(*rows) == (7 * HOUR, HOUR, 7 * HOUR + 60)


def test_an_open_exhaustion_is_shown_up_to_its_latest_data() -> None:
    rows = short(1000, OK, WARNING), short(1050, WARNING, CRITICAL)

    assert shown(*rows, latest=1300) == (1300, 700, 1300)
    assert shown(*rows, latest=1020) == (1050, 880, 1050)
    assert shown(*rows) == (1050, 880, 1050)


def test_a_report_ends_shortly_after_the_kill_even_if_told_late() -> None:
    assert shown(short(1000, OK, WARNING), kill(1050)) == (1050, 880, 1080 + 20)
    assert shown(kill(1050, killed_wall=START + 1040)) == (1040, 920, 1060)


def test_of_other_trouble_its_beginning_is_shown() -> None:
    opened = transition(1000, OK, WARNING, rule="read_only_disk")

    def closed(t: float) -> Transition:
        return transition(t, WARNING, OK, rule="read_only_disk")

    assert shown(opened) == (1000, 880, 1000)
    assert shown(opened, closed(1300)) == (1000, 700, 1360)
    assert shown(opened, closed(9000)) == (1000, 400, 1660)
    assert shown(opened, closed(900)) == (1000, 880, 1020), "the clock was set back"


def test_of_an_unclean_end_the_ten_minutes_before_are_shown() -> None:
    box = Event("black_box", START, "", {"ended_wall": START + 5000})

    assert shown(transition(9000, OK, WARNING, rule="unclean_end"), box=box) == (5000, 4400, 5060)


def test_only_an_open_incident_shows_its_forecast() -> None:
    warned = short(3, INFO, WARNING)
    assert warned.forecast is not None
    warned = replace(warned, forecast=replace(warned.forecast, eta_seconds=90.0))
    curve = of_incident.HeadroomCurve("ram", 1.0, [(START + 20, 1.0, OK), (START + 30, 1.0, OK)])
    rows = transition(1, OK, INFO), warned

    def framed(*more: Transition) -> tuple[float, float]:
        start, end = of_incident._framed(START, START + 100, incident(*rows, *more), [curve], warned)
        return start - START, end - START

    assert framed() == (20, 100)
    assert of_incident._framed(START, START + 60, incident(*rows), [], warned) == (START, START + 93)
    assert of_incident._framed(START, START + 60, incident(*rows), [], None) == (START, START + 60)
    assert framed(short(60, WARNING, OK, 90)) == framed(kill(60)) == (20, 100)


def test_an_incident_is_explained_by_its_kill_if_there_was_one() -> None:
    opened, warned, over = short(1, OK, INFO), short(2, INFO, WARNING), short(9, WARNING, OK, 90)
    explains = of_incident._row_that_explains
    disk = transition(1, OK, WARNING, rule="read_only_disk"), transition(2, WARNING, CRITICAL, rule="read_only_disk")

    assert explains(incident(opened, warned, kill(5)), warned) == kill(5)
    assert explains(incident(opened, warned), warned) == warned
    assert explains(incident(opened, warned, over), warned) == warned
    assert explains(incident(opened, over), None) == opened
    assert explains(incident(*disk), None) == disk[0]


def test_a_report_cites_the_first_warning_that_foretold_a_time() -> None:
    noted, vague, exact = short(1, OK, INFO), short(2, INFO, WARNING), short(3, WARNING, CRITICAL)
    assert exact.forecast is not None
    exact = replace(exact, forecast=replace(exact.forecast, eta_seconds=20.0))

    assert of_incident._first_warning([noted, vague, exact]) == exact
    assert of_incident._first_warning([noted, vague]) == vague
    assert of_incident._first_warning([noted, transition(2, INFO, WARNING), kill(3)]) is None


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    one = Life(tmp_path, Recorder())
    yield one
    one.end()


def grown(pid: int, name: str, mib: int) -> ProcessSample:
    return ProcessSample(pid, 70, name, mib * MIB, 0, command=f"/usr/bin/{name} x.py")


def run_out(life: Life, resource: str = "ram", **facts: Any) -> dict[str, Any]:
    """Let ``resource`` run out within 40 s, with two neighbours; return the report."""
    uuid, other = "GPU-1", "GPU-2"
    for t in range(0, 41, 10):
        life.clock.t = float(t)
        left = {"ram": 64 - t, "gpu0": 60 - t, "cgroup:/a": 50 - t}
        readings = [Reading(HEADROOM, gib * GIB, (name,)) for name, gib in left.items()]
        readings += [Reading(CAPACITY, 64 * GIB, (name,)) for name in left]
        readings += [Reading(LEVEL, t // 10, (name,)) for name in left]
        readings += [Reading(GPU_USED, 1, (card, name)) for card, name in (("0", uuid), ("1", other))]
        cards = [
            GpuSample(n, name, "RTX", processes=(GpuProcess(30 + n, "julia", (100 + (n + 1) * 10 * t) * MIB),))
            for n, name in enumerate((uuid, other))
        ]
        processes = (grown(7, "python", 100 + 20 * t), grown(8, "make", 50 + 2 * t), grown(9, "sh", 50 + t))
        life.store.append(life.tick(*readings, gpus=tuple(cards), processes=processes))
    forecast = Forecast(resource, WARNING, 24 * GIB, 64 * GIB, eta_seconds=20.0, who="python x.py (pid 7)", who_pid=7)
    row = Transition(
        life.clock.wall(), 40.0, resource, "memory_exhaustion", OK, WARNING, forecast=forecast, facts=facts
    )
    life.manager.tick(life.tick(), [forecast], [row])
    life.rows()
    found = report(life.store.reader, life.manager.standing()[0].incident.id, ENGLISH)
    assert found is not None
    return found.document


def growing(document: dict[str, Any]) -> list[tuple[str, int, float]]:
    return [(g["who"], g["grown_bytes"] // MIB, g["seconds"]) for g in document["growing"]]


def test_a_report_names_each_program_that_grew_by_64_mib_or_more(life: Life) -> None:
    assert growing(run_out(life)) == [("python x.py (pid 7)", 800, 40.0), ("make (pid 8)", 80, 40.0)]


def test_the_report_of_a_card_names_who_grew_on_that_card(life: Life) -> None:
    assert growing(run_out(life, "gpu0")) == [("julia (pid 30)", 400, 40.0)]


def test_the_report_of_a_cgroup_names_only_its_processes(life: Life) -> None:
    assert growing(run_out(life, "cgroup:/a", pids="8 9")) == [("make (pid 8)", 80, 40.0)]


def test_of_other_resources_nobody_is_said_to_have_grown(life: Life) -> None:
    assert growing(run_out(life, "windows")) == []


@pytest.mark.parametrize(
    ("resource", "order"),
    [
        ("ram", ["ram", "cgroup:/a", "gpu0"]),
        ("gpu0", ["gpu0", "ram", "cgroup:/a"]),
        ("gpu", ["gpu0", "ram", "cgroup:/a"]),
        ("cgroup:/a", ["cgroup:/a", "ram", "gpu0"]),
    ],
)
def test_the_curve_of_the_resource_comes_first_and_ram_next(life: Life, resource: str, order: list[str]) -> None:
    curves = run_out(life, resource)["headroom"]

    assert [curve["resource"] for curve in curves] == order
    assert {curve["capacity_bytes"] for curve in curves} == {64 * GIB}
    points = next(curve["points"] for curve in curves if curve["resource"] == "ram")
    assert points == [[START + t, (64 - t) * GIB] for t in range(0, 41, 10)]


def test_a_report_says_when_it_was_warned_of_and_what_was_sent(life: Life) -> None:
    document = run_out(life)

    assert document["warned"] == document["opened"] == document["forecast"]["at"]
    assert {"closed", "killed"}.isdisjoint(document)
    assert document["false_alarm"] is False
    assert [(step["level"], step["eta_seconds"]) for step in document["levels"]] == [("warning", 20.0)]
    assert [(sent["channel"], sent["attempts"], "sent" in sent) for sent in document["messages"]] == [
        ("people", 0, False)
    ]


def test_a_false_alarm_comes_without_advice(life: Life) -> None:
    life.memory(1, OK, WARNING, left=60)
    opened = report(life.store.reader, life.rows()[0][0], ENGLISH)
    life.memory(50, WARNING, OK, left=70)
    life.rows()
    reader = life.store.reader
    (listed,) = summaries(grouped(reader.changes(brief=True)), ENGLISH)
    closed = report(reader, listed["id"], ENGLISH)

    assert opened is not None
    assert closed is not None
    assert ("advice" in opened.document, opened.document["false_alarm"]) == (True, False)
    assert ("advice" in closed.document, closed.document["false_alarm"]) == (False, True)
    assert listed["outcome"] == closed.document["outcome"]
    assert listed["outcome"].startswith("memory given back")


def test_a_report_lists_only_events_of_its_time_and_resource(life: Life) -> None:
    def event(kind: str, t: float, text: str) -> Event:
        return Event(kind, START + t, text, {})

    inside, elsewhere = oom_kill("ld", 5, cgroup="/a", wall=START + 20), oom_kill("cc", 6, cgroup="/b", wall=START + 21)
    many = [event("clock_jump", 30 + n / 10, f"jump {n}") for n in range(60)]
    twice = [event("dxg_error", 25.0, "dxg"), event("dxg_error", 25.2, "dxg"), event("black_box", 26, "box")]
    life.clock.t = 1.0
    life.store.append(life.tick(events=(inside, elsewhere, *twice)))
    rows = [short(10, OK, WARNING), short(40, WARNING, OK, 90)]
    group = incident(*(replace(row, resource="cgroup:/a") for row in rows))
    assert life.store.flush()

    def told(one: Any) -> list[tuple[str, str]]:
        found = of_incident._events(life.store.reader, one, START, START + 60, ENGLISH)
        return [(e["kind"], e["at"][17:19]) for e in found]

    assert told(group) == [("oom_kill", "20"), ("dxg_error", "25")]
    assert told(incident(*rows)) == [("oom_kill", "20"), ("oom_kill", "21"), ("dxg_error", "25")]
    life.store.append(life.tick(events=tuple(many)))
    assert life.store.flush()
    found = of_incident._events(life.store.reader, group, START, START + 60, ENGLISH)
    assert [e["text"] for e in found] == [f"jump {n}" for n in range(10, 60)]
