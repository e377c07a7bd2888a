"""At which second and byte an incident goes on, is over, was justified, or was warned of in time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.alerts.test_incidents import CRITICAL, INFO, OK, WARNING, kill, short
from tests.alerts.ticks import START, fold, transition
from wslgpud.alerts import incidents
from wslgpud.alerts.incidents import Incident, IncidentLedger, false_alarm, score
from wslgpud.alerts.manager import Control, Silence
from wslgpud.alerts.messages import tally
from wslgpud.model import Forecast, Level, Transition
from wslgpud.words import Message


def incident(*rows: Transition) -> Incident:
    """Return the only incident of these rows."""
    (one,) = fold(enumerate(rows, start=1))
    return one


def ids(*rows: Transition) -> list[int]:
    return [one.id for one in fold(enumerate(rows, start=1))]


def brake(t: float, **facts: Any) -> Transition:
    return replace(transition(t, OK, CRITICAL, rule="brake"), facts=facts)


@pytest.mark.parametrize(
    ("level", "left", "still"), [(WARNING, 0, True), (CRITICAL, 38, True), (CRITICAL, 37, False), (CRITICAL, 99, True)]
)
def test_memory_stands_still_in_a_pause_unless_others_take_much(level: Level, left: int, still: bool) -> None:
    now = Forecast("ram", level, left, 1000)

    assert incident(brake(1, left_bytes=50)).stands_still(now) is still
    assert incident(brake(1, left_bytes=50)).stands_still(None)
    assert incident(brake(1)).stands_still(now) is (level == WARNING), "it is not known how much was left"
    assert not incident(short(1, OK, CRITICAL)).stands_still(now)
    assert not incident(short(1, OK, CRITICAL)).stands_still(None)


@pytest.mark.parametrize(("left", "close"), [(9, True), (10, False)])
def test_an_alarm_was_justified_if_less_than_a_tenth_was_left(left: int, close: bool) -> None:
    rows = [short(1, OK, WARNING, 40), short(2, WARNING, CRITICAL, left), short(3, CRITICAL, OK, 60)]

    assert incident(*rows).close_call is close
    assert false_alarm(incident(*rows), []) is not close
    assert not incident(transition(1, OK, WARNING)).close_call


def test_the_least_memory_left_is_judged_as_a_share_of_the_total() -> None:
    def of(whole: int, left: int) -> Transition:
        return replace(transition(1, WARNING, CRITICAL), forecast=Forecast("ram", CRITICAL, left, whole))

    assert incident(short(1, OK, WARNING, 20), of(200, 30)).least_bytes == (30, 200)
    assert incident(replace(of(200, 30), old=OK), of(100, 16)).least_bytes == (30, 200)


def test_a_kill_up_to_15_seconds_after_the_end_is_how_it_ended() -> None:
    before = [short(1, OK, WARNING), short(40, WARNING, OK, 90)]

    assert ids(*before, kill(55)) == [1]
    assert ids(*before, kill(56)) == [1, 3]
    assert ids(*before, kill(24)) == [1, 3], "the clock was set back"
    assert ids(*before, transition(55, OK, WARNING, resource="gpu0"), kill(55)) == [1, 3]
    assert ids(*before, replace(kill(45), old=CRITICAL, new=OK)) == [1], "the end of a kill is none"


def test_memory_filling_30_s_after_a_kill_is_a_new_incident() -> None:
    before = [short(1, OK, WARNING), kill(40), short(41, WARNING, OK, 90)]

    assert ids(*before, short(70, OK, WARNING)) == [1]
    assert ids(*before, short(70.1, OK, WARNING)) == [1, 4]


def test_a_repeated_event_gets_its_own_row_after_half_a_minute() -> None:
    ledger = IncidentLedger([], 0.0, START)
    ledger.take(1, kill(1))
    ledger.take(2, brake(1, job=1))

    assert ledger.reconcile(kill(30.9)) is None
    again = ledger.reconcile(kill(31))
    assert again is not None
    assert (again.old, again.new) == (CRITICAL, CRITICAL)
    assert ledger.reconcile(brake(100, job=1)) is None
    assert ledger.reconcile(brake(2, job=2)) == replace(brake(2, job=2), old=CRITICAL)


def test_only_a_warning_before_the_kernel_time_of_a_kill_counts() -> None:
    warned = [short(1, OK, INFO), short(10, INFO, WARNING)]

    assert (incident(*warned, kill(20)).killed_wall, incident(*warned, kill(20)).lead_seconds) == (START + 20, 10)
    assert incident(*warned, replace(kill(20), facts={})).killed_wall == START + 20
    assert incident(*warned, kill(20, killed_wall=START + 9)).lead_seconds is None
    assert incident(short(1, OK, INFO), kill(20)).lead_seconds is None
    assert incident(*warned).lead_seconds is None


def overdue(ledger: IncidentLedger, mono: float, *forecasts: Forecast) -> list[str]:
    return [row.rule for row in ledger.overdue(mono, forecasts)]


def test_the_report_of_an_unclean_end_is_open_for_ten_minutes() -> None:
    ledger = IncidentLedger([], 0.0, START)
    ledger.take(1, transition(0, OK, WARNING, rule="unclean_end"))

    assert overdue(ledger, 600.0) == []
    assert overdue(ledger, 600.1) == ["unclean_end"]


def test_after_a_restart_alarms_of_removed_rules_are_over() -> None:
    rules = ("rule_of_another_version", "vram_stress", "brake", "swap_thrash")
    rows = [transition(1, OK, WARNING, rule=rule, resource=rule) for rule in rules]

    assert overdue(IncidentLedger(fold(enumerate(rows)), 0.0, START), 9000.0) == ["rule_of_another_version"]


@pytest.mark.parametrize(
    ("then", "now", "grace_seconds"),
    [
        (Forecast("ram", WARNING, 20, 100), Forecast("ram", OK, 27, 100), 900),
        (Forecast("ram", WARNING, 20, 100), Forecast("ram", OK, 28, 100), 60),
        (Forecast("ram", WARNING, 20, 0), Forecast("ram", OK, 20, 100), 60),
        (Forecast("ram", WARNING, 20, 100), Forecast("ram", OK, 20, 0), 60),
        (None, Forecast("ram", OK, 20, 100), 60),
    ],
    ids=["as short", "8 % more", "its size was not known", "its size is not known", "without a forecast"],
)
def test_an_alarm_outlives_a_restart_longer_if_memory_is_as_low(
    then: Forecast | None, now: Forecast, grace_seconds: float
) -> None:
    ledger = IncidentLedger(fold([(1, replace(transition(1, OK, WARNING), forecast=then))]), 100.0, START + 100)

    assert overdue(ledger, 100 + grace_seconds, now) == []
    assert overdue(ledger, 100.1 + grace_seconds, now) == ["memory_exhaustion"]


def test_an_incident_left_open_never_has_a_negative_age() -> None:
    def since(wall: float) -> float:
        ledger = IncidentLedger(fold([(1, kill(10))]), 500.0, wall)
        return ledger.held()["oom_kill", "ram"].mono

    assert (since(START + 30), since(START)) == (480, 500)


def told(*incidents: Incident) -> dict[tuple[str, ...], float]:
    return {(reading.spec.name, *reading.labels): reading.value for reading in score(incidents)}


@pytest.mark.parametrize(("lead", "in_time"), [(4.9, 0), (5.0, 1), (61.25, 1)])
def test_a_warning_five_seconds_before_the_kill_was_in_time(lead: float, in_time: int) -> None:
    warned = incident(short(0, OK, WARNING), kill(lead))

    assert told(warned, incident(kill(9)))[incidents.EXHAUSTIONS.name, "yes"] == in_time
    assert told(warned, incident(kill(9)))[incidents.EXHAUSTIONS.name, "no"] == 2 - in_time
    assert (incidents.LEAD.name,) not in told(warned, incident(kill(9))), "the last one was not warned of"
    assert told(incident(kill(9)), warned)[incidents.LEAD.name,] == round(lead, 1)
    assert told() == {
        (incidents.EXHAUSTIONS.name, "yes"): 0,
        (incidents.EXHAUSTIONS.name, "no"): 0,
        (incidents.FALSE_ALARMS.name,): 0,
    }


def needless(*rows: Transition, ends: Iterable[float] = ()) -> bool:
    known = [incident(transition(t, OK, INFO, rule="unclean_end")) for t in ends]
    return false_alarm(incident(*rows), known)


def test_a_memory_warning_without_any_loss_is_a_false_alarm() -> None:
    alarm = [short(100, OK, WARNING, 50), short(200, WARNING, OK, 60)]

    assert needless(*alarm)
    assert not needless(alarm[0]), "it is still open"
    assert not needless(short(100, OK, INFO, 50), short(200, INFO, OK, 60))
    assert not needless(*alarm, kill(210))
    assert not needless(transition(1, OK, WARNING, rule="read_only_disk"))
    assert [needless(*alarm, ends=[t]) for t in (99, 100, 260, 261)] == [True, False, False, True]


def test_only_memory_warnings_of_the_observed_time_are_counted() -> None:
    late, early = [incident(short(t, OK, WARNING, 50), short(t + 9, WARNING, OK, 60)) for t in (100, 99)]
    noted, disk = incident(short(200, OK, INFO)), incident(transition(200, OK, WARNING, rule="read_only_disk"))

    told = str(tally([late, early, noted, disk], START + 100, 7 * 86400.0))
    assert told == "7 d watched: 1 memory warning, 1 needless"
    assert str(tally([late], START + 100, 86400.0)) == "24 h watched: 1 memory warning, 1 needless"
    assert tally([late], START + 100, 86399.0) is None


def test_a_pause_keeps_its_headline_unless_a_worse_alarm_comes() -> None:
    before = [short(1, OK, WARNING), replace(brake(2), message=Message("paused"))]
    full = replace(short(3, WARNING, CRITICAL), message=Message("full"))

    assert str(incident(*before, full).message) == "paused"
    assert str(incident(*before, replace(full, new=Level.EMERGENCY)).message) == "full"
    assert str(incident(replace(full, old=OK), replace(full, message=Message("fuller"))).message) == "fuller"


def test_a_silence_covers_its_rule_and_resource_until_it_ends() -> None:
    silences = [Silence("oom_kill", "*", 10.0), Silence("*", "gpu0", 20.0), Silence("oom_kill", "gpu0", 5.0)]
    control = Control(tuple(silences))

    assert [control.silenced_until("oom_kill", "ram", wall) for wall in (1.0, 9.9, 10.0)] == [10.0, 10.0, None]
    assert control.silenced_until("oom_kill", "gpu0", 1.0) == control.silenced_until("gpu_lost", "gpu0", 1.0) == 20.0
    assert control.silenced_until("gpu_lost", "ram", 1.0) is None
