"""Incidents open, escalate, ease and close as rows, and go on after a restart."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.alerts.ticks import START, fold, tick, transition
from wslgpud.alerts import report
from wslgpud.alerts.incidents import IncidentLedger
from wslgpud.alerts.messages import closing, end_facts, outcome
from wslgpud.alerts.rules import RuleEngine
from wslgpud.model import Forecast, Level, ProcessSample, Transition
from wslgpud.words import Fact

GIB = 1 << 30
OK, INFO, WARNING, CRITICAL = Level.OK, Level.INFO, Level.WARNING, Level.CRITICAL


def test_rows_from_ok_to_ok_are_one_incident() -> None:
    rows = [
        (3, transition(1, OK, WARNING)),
        (5, transition(2, OK, CRITICAL, rule="swap_thrash")),
        (6, transition(3, WARNING, CRITICAL, headline="worst")),
        (8, transition(4, CRITICAL, WARNING, headline="better")),
        (9, transition(5, WARNING, OK)),
    ]
    memory, thrash = fold(rows)

    assert (memory.id, memory.worst, str(memory.message)) == (3, CRITICAL, "worst")
    assert memory.closed_wall == rows[4][1].wall
    assert (memory.first, memory.last) == (rows[0][1], rows[4][1])
    assert memory.last_id == 9
    assert (thrash.id, thrash.level, thrash.closed_wall) == (5, CRITICAL, None)


def kill(t: float, **facts: str | float) -> Transition:
    row = transition(t, OK, CRITICAL, rule="oom_kill", headline="killed")
    return replace(row, facts={"who": "python3 train.py (pid 7)", "killed_wall": START + t, **facts})


def short(t: float, old: Level, new: Level, left: int = 5, **facts: Fact) -> Transition:
    forecast = Forecast("ram", new, left * GIB, 100 * GIB, who="python3 train.py (pid 7)", who_pid=7)
    return replace(transition(t, old, new), forecast=forecast, facts=facts)


def told(*rows: Transition) -> list[tuple[int, str]]:
    """Return number and outcome of the incidents that the rows make up."""
    return [(i.id, str(outcome(i))) for i in fold(enumerate(rows, start=1))]


def clock(t: float) -> str:
    return f"{datetime.fromtimestamp(START + t).astimezone():%H:%M:%S}"


def test_an_exhaustion_that_ends_in_a_kill_is_that_kills_story() -> None:
    rows = [short(1, OK, INFO), short(3, INFO, WARNING), kill(40), short(41, WARNING, OK, 90)]
    (incident,) = fold(enumerate(rows, start=1))

    assert (incident.rule, str(incident.message), incident.closed_wall) == ("memory_exhaustion", "killed", None)
    assert told(*rows) == [(1, f"killed {clock(40)}, warned 37 s before")]
    assert str(closing(incident, rows[-1])) == f"killed {clock(40)}, warned 37 s before"


def test_a_kill_without_a_prior_exhaustion_counts_as_unwarned() -> None:
    assert told(kill(40)) == [(1, f"killed {clock(40)}, not warned")]
    assert told(short(40, OK, CRITICAL), kill(40)) == [(1, f"killed {clock(40)}, not warned")]


def test_a_story_begins_no_later_than_its_kill() -> None:
    alone, warned = [kill(8.4, killed_wall=START + 8)], [short(1, OK, WARNING), kill(8.4, killed_wall=START + 8)]
    long_before = [kill(100, killed_wall=START + 8)]  # seen when the daemon came back

    assert [fold(enumerate(rows))[0].opened_wall - START for rows in (alone, warned, long_before)] == [8, 1, 100]


def test_a_kill_reported_late_still_ends_its_exhaustion() -> None:
    before = [short(1, OK, WARNING), short(40, WARNING, OK, 90, end="exited")]

    assert told(*before, kill(48, killed_wall=START + 39)) == [(1, f"killed {clock(39)}, warned 38 s before")]
    assert told(*before, kill(100)) == [(1, "program ended"), (3, f"killed {clock(100)}, not warned")]


def test_who_fills_the_memory_once_more_begins_another_story() -> None:
    first = [short(1, OK, WARNING), kill(40), short(41, WARNING, OK, 90)]
    again = [short(100, OK, WARNING), kill(120)]

    assert told(*first, *again) == [
        (1, f"killed {clock(40)}, warned 39 s before"),
        (4, f"killed {clock(120)}, warned 20 s before"),
    ]


def test_a_kill_again_and_again_is_one_story() -> None:
    again = replace(kill(80), old=CRITICAL)

    assert told(kill(40), again) == [(1, f"killed {clock(40)}, last {clock(80)}, not warned")]


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("exited", "program ended"),
        ("freed", "memory given back, 20 of 100 GiB left"),
        ("stopped", "stopped by itself, 20 of 100 GiB left"),
        ("gone", "ended with RAM"),
    ],
)
def test_an_exhaustion_that_killed_nobody_says_how_it_ended(end: str, said: str) -> None:
    assert told(short(1, OK, WARNING)) == [(1, "still open")]
    assert told(short(1, OK, WARNING), short(60, WARNING, OK, 20, end=end, room_bytes=(20 * GIB, 100 * GIB))) == [
        (1, said)
    ]


def test_what_still_runs_and_is_left_tells_how_exhaustion_ended() -> None:
    (incident,) = fold([(1, short(1, OK, WARNING, 5))])
    python, other = (ProcessSample(pid, 1, "python3", 1, 0) for pid in (7, 8))

    def end(left: int, *running: ProcessSample, cause: str = "") -> object:
        row = short(60, WARNING, OK, left)
        assert row.forecast is not None
        return end_facts(incident, replace(row, forecast=replace(row.forecast, cause=cause)), running).get("end")

    assert end(90, other) == "exited"
    assert end(90, python, other) == "freed"
    assert end(6, python) == "stopped"
    assert end(6, python, cause="gone") == "gone"
    assert end(90) == "freed", "an empty list of processes tells nothing"


def test_trouble_other_than_memory_says_how_long_it_lasted() -> None:
    disk = [transition(0, OK, WARNING, rule="read_only_disk"), transition(240, WARNING, OK, rule="read_only_disk")]

    assert told(*disk) == [(1, "over after 4 min")]
    assert told(transition(0, OK, INFO, rule="clock_jump")) == [(1, "None")]


def test_an_incident_left_open_by_a_crash_closes_at_the_next_one() -> None:
    first, second = fold([(1, transition(1, OK, WARNING)), (2, transition(50, OK, WARNING))])

    assert (first.closed_wall, second.closed_wall) == (first.opened_wall, None)


def test_an_end_whose_beginning_was_purged_makes_no_incident() -> None:
    assert fold([(7, transition(1, WARNING, OK))]) == []


def test_an_engine_that_began_anew_does_not_open_what_is_open() -> None:
    ledger = IncidentLedger(fold([(1, transition(1, OK, WARNING))]), 0.0, START)

    assert ledger.reconcile(transition(9, OK, WARNING)) is None
    row = ledger.reconcile(transition(9, OK, CRITICAL))
    assert row is not None
    assert (row.old, row.new) == (WARNING, CRITICAL)
    assert ledger.take(2, row)[0].id == 1


def test_an_incident_not_seen_again_after_a_restart_times_out() -> None:
    ledger = IncidentLedger(fold([(1, transition(1, OK, WARNING))]), 100.0, START + 100)

    assert ledger.overdue(150.0, []) == []
    assert ledger.overdue(170.0, [Forecast("ram", WARNING, 1, 10)]) == []
    assert [(r.rule, r.resource) for r in ledger.overdue(170.0, [])] == [("memory_exhaustion", "ram")]


def test_a_restart_ends_no_warning_while_memory_is_still_as_low() -> None:
    row = replace(transition(1, OK, WARNING), forecast=Forecast("ram", WARNING, 20, 100))
    ledger = IncidentLedger(fold([(1, row)]), 100.0, START + 100)

    def ended(t: float, left: int) -> list[Transition]:
        return ledger.overdue(t, [Forecast("ram", OK, left, 100)])

    assert (ended(150, 70), ended(200, 17), ended(900, 15)) == ([], [], [])
    assert [r.rule for r in ended(200, 70)] == [r.rule for r in ended(1001, 20)] == ["memory_exhaustion"]


def test_an_engine_restart_leaves_no_incident_open_forever() -> None:
    ledger = IncidentLedger([], 0.0, START)
    ledger.take(1, transition(1, OK, WARNING))
    calm = [Forecast("ram", OK, 9, 10)]

    assert [ledger.overdue(t, calm) for t in (2.0, 60.0)] == [[], []]
    assert [r.resource for r in ledger.overdue(63.0, calm)] == ["ram"]


@pytest.mark.parametrize(
    ("ago_seconds", "at", "over"),
    [(0, 5, False), (29, 5, False), (31, 5, True), (36000, 5, True), (20, 14, False), (20, 16, True)],
)
def test_a_kill_stays_open_for_the_whole_burst_across_restarts(ago_seconds: float, at: float, over: bool) -> None:
    ledger, engine = IncidentLedger(fold([(1, kill(0))]), 5.0, START + ago_seconds), RuleEngine()
    engine.resume(ledger.held().values(), 5.0)

    assert [row.rule for row in engine.observe(tick(at)) if row.new == OK] == ["oom_kill"] * over


def test_a_second_victim_is_added_to_the_same_incident() -> None:
    ledger = IncidentLedger([], 0.0, START)

    first = ledger.reconcile(kill(1))
    assert first is not None
    ledger.take(1, first)
    assert ledger.reconcile(kill(2)) is None
    again = ledger.reconcile(kill(40))
    assert again is not None
    assert ledger.take(2, again)[0].id == 1
    assert ledger.reconcile(transition(50, OK, WARNING)) is not None


wanted = st.lists(
    st.tuples(
        st.sampled_from(["ram", "gpu0"]),
        st.sampled_from(["memory_exhaustion", "oom_kill"]),
        st.sampled_from(list(Level)),
        st.sampled_from([1.0, 20.0, 100.0]),
    ),
    max_size=40,
)


@given(wanted, st.integers(0, 40))
def test_rows_form_whole_incidents_whenever_the_daemon_restarts(
    steps: list[tuple[str, str, Level, float]], restart: int
) -> None:
    rows: list[tuple[int, Transition]] = []
    ledger, t = IncidentLedger(fold(rows), 0.0, START), 0.0
    for number, (resource, rule, level, later) in enumerate(steps):
        t += later
        if number == restart:
            ledger = IncidentLedger(fold(rows), t, START + t)
        row = ledger.reconcile(transition(t, OK, level, resource=resource, rule=rule))
        if row is not None:
            rows.append((number, row))
            ledger.take(number, row)

    assert {i.key: i.held for i in fold(rows) if i.closed_wall is None} == {
        key: i.held for key, i in ledger.open.items()
    }
    for incident in fold(rows):
        own = [t for n, t in rows if incident.id <= n <= incident.last_id and t.resource == incident.resource]
        assert own[0].old == OK
        assert (incident.first, incident.last) == (own[0], own[-1])
        assert incident.worst == max(t.new for t in own)
        for rule in {t.rule for t in own}:
            levels = [t.new for t in own if t.rule == rule]
            assert [t.old for t in own if t.rule == rule] == [OK, *levels[:-1]]


@pytest.mark.parametrize(("late", "reach"), [(70.0, 73), (500.0, 120), (None, 60)])
def test_curves_of_an_open_incident_cover_its_whole_forecast(late: float | None, reach: float) -> None:
    warned = short(3, INFO, WARNING)
    assert warned.forecast is not None
    warned = replace(warned, forecast=replace(warned.forecast, eta_late_seconds=late) if late else None)
    (incident,) = fold([(1, warned)])

    assert report._framed(START, START + 60, incident, [], warned) == (START, START + reach)
