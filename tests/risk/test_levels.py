"""Levels at their thresholds: what is still a warning, what already is critical, and when an alarm ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wslgpud.model import Forecast, Level
from wslgpud.risk.levels import Danger, Hysteresis, ending_facts, headroom_for_warning, level_for
from wslgpud.risk.settings import RiskSettings

CARD = RiskSettings()
#: of a cgroup: no margin for growth within seconds
S = CARD.of("cgroup:/build")
OK, INFO, WARNING, CRITICAL, EMERGENCY = Level


@pytest.mark.parametrize(
    ("eta", "share"),
    [
        *[(0.0, 0.275), (8.0, 0.275), (12.0, 0.2675), (16.0, 0.26), (23.0, 0.2425), (30.0, 0.225), (45.0, 0.2175)],
        *[(60.0, 0.21), (900.0, 0.21), (901.0, 0.1), (3600.0, 0.1), (3601.0, 0.0)],
    ],
)
def test_the_headroom_growth_needs_falls_with_its_time_left(eta: float, share: float) -> None:
    assert headroom_for_warning(eta, S) == pytest.approx(share)


def growth(eta: float, probability: float = 0.9, *, rate: float = 0.0, pace: float = 1.0) -> Danger:
    return Danger("growth", probability, eta, 100.0, eta, eta / pace, rate=rate, pace=pace)


def steps(eta: float, next_step: float, last_step: float, probability: float = 0.7) -> Danger:
    return Danger("steps", probability, eta, 5.0, 100.0, next_step=next_step, last_step=last_step)


@pytest.mark.parametrize(
    ("danger", "share", "level"),
    [
        (growth(40, 0.4), 0.15, WARNING),
        (growth(40, 0.39), 0.15, OK),
        (growth(3600), 0.09, WARNING),
        (growth(3601), 0.09, OK),
        (growth(900), 0.2, WARNING),
        (growth(901), 0.2, INFO),
        (growth(300, 0.7), 0.085, CRITICAL),
        (growth(300, 0.7), 0.086, WARNING),
        (growth(301, 0.7), 0.085, WARNING),
        (growth(300, 0.69), 0.085, WARNING),
        (growth(1, 0.55), 0.06, WARNING),
        (growth(10, 0.9, pace=0.5), 0.085, CRITICAL),
        (growth(10, 0.9, pace=0.49), 0.02, WARNING),
        (growth(15), 0.03, EMERGENCY),
        (growth(16), 0.03, CRITICAL),
        (growth(15), 0.031, CRITICAL),
        (Danger("expected", 0.4, 900.0, 10.0), 0.5, WARNING),
        (Danger("expected", 0.39, 900.0, 10.0), 0.5, INFO),
        (Danger("pressure", 0.9, 60.0, 10.0), 0.2, CRITICAL),
        (Danger("pressure", 0.89, 60.0, 10.0), 0.2, WARNING),
        # a step that does not fit, one that does, one that would have to be far higher than the last, a distant one
        (steps(900, 0.3, 0.15), 0.3, WARNING),
        (steps(900, 0.29, 0.15), 0.3, INFO),
        (steps(900, 0.3, 0.14), 0.3, INFO),
        (steps(901, 0.3, 0.15), 0.3, INFO),
        (steps(8, 0.28, 0.15, 0.6), 0.275, CRITICAL),
        (steps(9, 0.28, 0.15, 0.6), 0.275, WARNING),
        (steps(8, 0.28, 0.15, 0.59), 0.275, WARNING),
        (steps(8, 0.29, 0.15, 0.6), 0.276, WARNING),
        (steps(8, 0.1, 0.05), 0.2, WARNING),  # it fits, but little is left
    ],
)
def test_each_level_begins_at_its_thresholds(danger: Danger, share: float, level: Level) -> None:
    assert level_for(danger, share, 0.0, S) == level


def test_faster_growth_turns_critical_closer_to_the_limit() -> None:
    slow = replace(S, act_probability=2.0)  # else what ends within 8 s is critical in any case
    for eta, share in ((1.0, 0.06), (2.0, 0.06), (6.0, 0.0725), (10.0, 0.085), (40.0, 0.085)):
        assert level_for(growth(eta), share - 0.0001, 0.0, slow) == CRITICAL
        assert level_for(growth(eta), share + 0.0001, 0.0, slow) == WARNING


def test_what_will_be_lost_before_the_next_sample_counts_as_lost() -> None:
    losing = growth(60, rate=0.01)

    assert level_for(losing, 0.229, 2.0, S) == WARNING
    assert level_for(losing, 0.231, 2.0, S) == INFO
    assert level_for(steps(60.0, 0.2, 0.2), 0.211, 2.0, S) == INFO, "between two steps nothing is lost"


def test_a_card_is_warned_of_growth_within_seconds_earlier() -> None:
    assert level_for(growth(16.0, 0.5), 0.261, 0.0, S) == INFO
    for eta, share, level in ((16.0, 0.284, WARNING), (16.0, 0.286, INFO), (16.1, 0.27, INFO), (16.1, 0.25, WARNING)):
        assert level_for(growth(eta, 0.5), share, 0.0, CARD) == level


def test_ram_which_refuses_late_gets_later_warnings() -> None:
    ram = CARD.of("ram")

    assert [level_for(growth(60.0, 0.5), share, 0.0, ram) for share in (0.1949, 0.1951)] == [WARNING, INFO]
    assert [level_for(growth(60.0, 0.5), share, 0.0, S) for share in (0.2099, 0.2101)] == [WARNING, INFO]
    assert [level_for(growth(7.0, 0.6), share, 0.0, ram) for share in (0.1499, 0.1501)] == [CRITICAL, WARNING]
    assert [level_for(growth(7.0, 0.6), share, 0.0, S) for share in (0.2499, 0.2501)] == [CRITICAL, WARNING]


def test_two_rates_must_agree_that_seconds_are_left() -> None:
    slower, faster = growth(6.0, pace=0.7), growth(8.0, pace=1.5)

    assert level_for(slower, 0.2, 0.0, S) == WARNING
    assert [level_for(faster, share, 0.0, S) for share in (0.2749, 0.2751)] == [CRITICAL, INFO]


def held(machine: Hysteresis, share: float, want: Level = OK, *, period: float = 0.0, start: int = 1) -> int:
    """Return the seconds after which a level changes, with the same evidence each second."""
    began = machine.level
    for t in range(start, 5000):
        if machine.step(float(t), want, share, 0.0, period) != began:
            return t
    raise AssertionError("it never ends")


def raised(level: Level, still_needed: float, share: float = 0.2, interval: float = 1.0) -> Hysteresis:
    machine = Hysteresis(S, interval=interval)
    machine.step(0.0, level, share, still_needed, 0.0)
    return machine


def test_an_info_outlasts_its_reason_by_half_of_what_was_seen() -> None:
    assert [held(raised(INFO, needed), 0.2) for needed in (0.0, 20.0, 40.0, 180.0, 600.0)] == [10, 10, 20, 90, 90]


def test_an_alarm_ends_after_as_long_as_it_may_still_go_on() -> None:
    assert [held(raised(WARNING, needed), 0.2) for needed in (0.0, 200.0, 2000.0)] == [90, 200, 900]
    assert held(raised(WARNING, 0.0, interval=20.0), 0.2) == 200

    settled = raised(WARNING, 600.0)
    settled.settle()
    assert held(settled, 0.2) == 90


def test_an_alarm_goes_on_between_sawteeth_unless_memory_is_free() -> None:
    assert held(raised(WARNING, 800.0), 0.3, period=100.0) == 1 + 150
    assert held(raised(WARNING, 800.0), 0.3, period=20.0) == 1 + 60
    assert held(raised(WARNING, 800.0), 0.6, period=100.0) == 1 + 60
    assert held(raised(WARNING, 900.0), 0.3, period=5000.0) == 900


def test_a_stopped_growth_steps_down_through_a_warning() -> None:
    stopped, recovered = raised(CRITICAL, 0.0), raised(CRITICAL, 800.0)
    held(stopped, 0.2)
    held(recovered, 0.6)

    assert (stopped.level, recovered.level) == (WARNING, OK)
    assert (stopped.raised_share, stopped.wanted_t) == (0.2, 90.0)


def test_gaps_in_sampling_do_not_count_towards_an_alarms_end() -> None:
    stopped, recovering = raised(WARNING, 200.0), raised(WARNING, 800.0)
    recovering.step(1.0, OK, 0.6, 0.0, 0.0)
    for machine in (stopped, recovering):
        machine.forgive(1000.0)

    assert held(stopped, 0.2, start=1001) == 1200
    assert held(recovering, 0.6, start=1001) == 1061


def test_a_kill_ends_an_alarm_once_room_exceeds_where_it_began() -> None:
    assert Hysteresis(S).room_back == S.kill_headroom
    assert [raised(WARNING, 0.0, share).room_back for share in (0.1, 0.25, 0.58)] == pytest.approx([0.3, 0.33, 0.6])
    assert raised(INFO, 0.0, 0.5).room_back == S.kill_headroom

    worse = raised(WARNING, 0.0, 0.25)
    worse.step(1.0, CRITICAL, 0.1, 0.0, 0.0)
    assert worse.room_back == pytest.approx(0.33), "the alarm began there"
    later = raised(INFO, 0.0, 0.5)
    later.step(1.0, WARNING, 0.25, 0.0, 0.0)
    assert later.room_back == pytest.approx(0.33)


def test_how_memory_came_back_is_told_with_its_time_and_victim() -> None:
    over = Forecast("ram", OK, 30, 100, cause="killed", who="train.py", window_seconds=20.0)
    facts = {"ending": "killed", "ended_wall": 980.0, "free_bytes": 30, "capacity_bytes": 100}

    assert ending_facts(over, 1000.0) == facts | {"victim": "train.py"}
    assert ending_facts(replace(over, who=""), 1000.0) == facts
    assert ending_facts(replace(over, cause="freed", window_seconds=None), 1000.0) == (
        facts | {"ending": "freed", "ended_wall": 1000.0}
    )
    assert ending_facts(replace(over, cause="growth"), 1000.0) == {}
