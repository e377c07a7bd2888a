"""Incidents open, escalate, ease and close as rows, and go on after a restart."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.alerts.ticks import START, transition
from wslgpud.alerts.incidents import Incident, Ledger, fold
from wslgpud.model import Forecast, Level, Transition

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
    assert (memory.told_id, memory.last_id) == (6, 9)
    assert (thrash.id, thrash.level, thrash.closed_wall) == (5, CRITICAL, None)


def test_an_incident_whose_end_was_lost_in_a_crash_ends_when_the_next_one_opens() -> None:
    first, second = fold([(1, transition(1, OK, WARNING)), (2, transition(50, OK, WARNING))])

    assert (first.closed_wall, second.closed_wall) == (first.opened_wall, None)


def test_the_end_of_an_incident_whose_beginning_was_purged_is_none() -> None:
    assert fold([(7, transition(1, WARNING, OK))]) == []


def test_an_engine_that_began_anew_does_not_open_what_is_open() -> None:
    ledger = Ledger(fold([(1, transition(1, OK, WARNING))]), 0.0, START)

    assert ledger.fit(transition(9, OK, WARNING)) is None
    row = ledger.fit(transition(9, OK, CRITICAL))
    assert row is not None
    assert (row.old, row.new) == (WARNING, CRITICAL)
    assert ledger.record(2, row)[0].id == 1


def test_what_nothing_holds_open_after_a_restart_is_overdue_after_a_grace() -> None:
    key = ("memory_exhaustion", "ram")
    ledger = Ledger(fold([(1, transition(1, OK, WARNING))]), 100.0, START + 100)

    assert ledger.overdue(150.0, []) == []
    assert ledger.overdue(170.0, [Forecast("ram", WARNING, 1, 10)]) == []
    assert [i.key for _, i in ledger.overdue(170.0, [])] == [key]


def test_where_no_more_is_left_than_when_it_warned_a_restart_is_no_reason_to_call_it_over() -> None:
    row = replace(transition(1, OK, WARNING), forecast=Forecast("ram", WARNING, 20, 100))
    ledger = Ledger(fold([(1, row)]), 100.0, START + 100)

    def ended(t: float, left: int) -> list[tuple[str, Incident]]:
        return ledger.overdue(t, [Forecast("ram", OK, left, 100)])

    assert (ended(150, 70), ended(200, 17), ended(900, 15)) == ([], [], [])
    assert (
        [rule for rule, _ in ended(200, 70)] == [rule for rule, _ in ended(1001, 20)] == ["memory_exhaustion"]
    )


def test_an_engine_that_failed_and_began_anew_leaves_nothing_open_for_ever() -> None:
    ledger = Ledger([], 0.0, START)
    ledger.record(1, transition(1, OK, WARNING))
    calm = [Forecast("ram", OK, 9, 10)]

    assert [ledger.overdue(t, calm) for t in (2.0, 60.0)] == [[], []]
    assert [i.id for _, i in ledger.overdue(63.0, calm)] == [1]


def test_a_kill_stays_open_for_as_long_as_a_burst_lasts_however_often_the_daemon_starts() -> None:
    kill = fold([(1, transition(0, OK, CRITICAL, rule="oom_kill"))])
    after = {t: Ledger(kill, 5.0, START + t).overdue(5.0, []) for t in (0, 29, 31, 36000)}
    assert {t: bool(ended) for t, ended in after.items()} == {0: False, 29: False, 31: True, 36000: True}

    soon = Ledger(kill, 5.0, START + 20)
    assert soon.overdue(14.0, []) == []
    assert soon.overdue(16.0, []) == [("oom_kill", kill[0])]


def test_a_second_victim_is_a_row_of_the_same_incident_but_not_one_every_second() -> None:
    ledger = Ledger([], 0.0, START)

    def kill(t: float) -> Transition:
        return transition(t, OK, CRITICAL, rule="oom_kill")

    first = ledger.fit(kill(1))
    assert first is not None
    ledger.record(1, first)
    assert ledger.fit(kill(2)) is None
    again = ledger.fit(kill(40))
    assert again is not None
    assert ledger.record(2, again)[0].id == 1
    assert ledger.fit(transition(50, OK, WARNING)) is not None


wanted = st.lists(st.tuples(st.sampled_from(["ram", "gpu0"]), st.sampled_from(list(Level))), max_size=40)


@given(wanted, st.integers(0, 40))
def test_whatever_is_wanted_and_whenever_it_restarts_the_rows_form_whole_incidents(
    steps: list[tuple[str, Level]], restart: int
) -> None:
    rows: list[tuple[int, Transition]] = []
    ledger = Ledger(fold(rows), 0.0, START)
    for number, (resource, level) in enumerate(steps):
        if number == restart:
            ledger = Ledger(fold(rows), 0.0, START)
        row = ledger.fit(transition(number, OK, level, resource=resource))
        if row is not None:
            rows.append((number, row))
            ledger.record(number, row)

    for incident in fold(rows):
        own = [t for n, t in rows if incident.id <= n <= incident.last_id and t.resource == incident.resource]
        levels = [t.new for t in own]
        assert [t.old for t in own] == [OK, *levels[:-1]]
        assert (levels[-1] == OK) == (incident.closed_wall is not None)
    assert {i.key: i.level for i in fold(rows) if i.closed_wall is None} == dict(ledger.levels())
