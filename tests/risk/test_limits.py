"""The limits of a warning and of each resource's room, at the value and just beside it."""

import pytest

from wslgpud.model import CgroupState, GpuSample, Level, Observation, RamState
from wslgpud.risk.headroom import Taken, cgroup_room, gpu_room
from wslgpud.risk.levels import Cause, Danger, headroom_for_warning, level_for
from wslgpud.risk.settings import RiskSettings

GIB, MIB = 1 << 30, 1 << 20


@pytest.mark.parametrize(
    ("eta", "share"),
    [
        (0.0, 0.275),
        (8.0, 0.275),
        (12.0, 0.2675),
        (16.0, 0.26),
        (23.0, 0.25),
        (30.0, 0.24),
        (45.0, 0.2275),
        (60.0, 0.215),
        (900.0, 0.215),
        (900.1, 0.1),
        (3600.0, 0.1),
        (3600.1, 0.0),
    ],
)
def test_how_much_may_be_left_for_a_warning_falls_evenly_between_the_points_of_the_page(
    eta: float, share: float
) -> None:
    assert headroom_for_warning(eta, RiskSettings()) == pytest.approx(share)


@pytest.mark.parametrize(
    ("total", "reserve"),
    [(2 * GIB, int(0.04 * 2 * GIB)), (2 * GIB + 1, 512 * MIB), (12 * GIB, 512 * MIB), (16 * GIB, int(0.64 * GIB))],
)
def test_under_wsl2_half_a_gib_or_4_percent_of_a_card_are_never_to_be_had(total: int, reserve: int) -> None:
    room = gpu_room(GpuSample(0, "u", "card", total, 0), wsl=True)
    assert room is not None
    assert room.capacity == total - reserve


def test_ram_that_a_host_took_counts_as_in_use_for_ten_minutes_and_more_ram_counts_at_once() -> None:
    taken = Taken()
    seen = [(0.0, 24), (1.0, 20), (601.0, 20), (601.1, 20), (602.0, 22)]
    assert [taken.total(Observation(t=t, ram=RamState(gib, 1))) for t, gib in seen] == [24, 24, 24, 20, 22]
    assert taken.total(Observation(t=603.0)) == 22


def test_a_groups_swap_is_no_more_than_its_limit_leaves_and_than_the_machine_has() -> None:
    group = CgroupState("/a", 100, 60, swap_limit=20, swap_current=5)
    rooms = [cgroup_room(group, free) for free in (None, 15, 14, 0)]
    assert [room and (room.headroom, room.capacity, room.swap) for room in rooms] == [
        (55, 120, True),
        (55, 120, True),
        (54, 120, True),
        (40, 120, True),
    ]
    alone = cgroup_room(CgroupState("/a", 100, 60), 50)
    assert alone is not None
    assert (alone.headroom, alone.capacity, alone.swap) == (40, 100, False)


@pytest.mark.parametrize(
    ("eta", "probability", "pace", "share", "level"),
    [
        (40.0, 0.4, 1.0, 0.3, Level.INFO),
        (40.0, 0.399, 1.0, 0.3, Level.OK),
        (3600.0, 0.9, 1.0, 0.3, Level.INFO),
        (3600.1, 0.9, 1.0, 0.3, Level.OK),
        (40.0, 0.9, 1.0, 0.2318, Level.INFO),
        (40.0, 0.9, 1.0, 0.2316, Level.WARNING),
        (60.0, 0.9, 1.0, 0.0851, Level.WARNING),
        (60.0, 0.9, 1.0, 0.085, Level.CRITICAL),
        (9.0, 0.9, 1.0, 0.082, Level.WARNING),
        (9.0, 0.9, 1.0, 0.0818, Level.CRITICAL),
        (300.1, 0.9, 1.0, 0.05, Level.WARNING),
        (300.0, 0.9, 1.0, 0.05, Level.CRITICAL),
        (60.0, 0.699, 1.0, 0.05, Level.WARNING),
        (60.0, 0.7, 1.0, 0.05, Level.CRITICAL),
        (60.0, 0.9, 0.49, 0.05, Level.WARNING),
        (60.0, 0.9, 0.5, 0.05, Level.CRITICAL),
        (15.1, 0.9, 1.0, 0.03, Level.CRITICAL),
        (15.0, 0.9, 1.0, 0.0301, Level.CRITICAL),
        (15.0, 0.9, 1.0, 0.03, Level.EMERGENCY),
    ],
)
def test_each_level_of_a_growth_begins_at_its_limit(
    eta: float, probability: float, pace: float, share: float, level: Level
) -> None:
    danger = Danger("growth", probability, eta, 100.0, early_seconds=eta, pace=pace)
    assert level_for(danger, share, 0.0, RiskSettings()) == level


@pytest.mark.parametrize(
    ("cause", "probability", "level"),
    [
        ("expected", 0.39, Level.INFO),
        ("expected", 0.4, Level.WARNING),
        ("pressure", 0.89, Level.WARNING),
        ("pressure", 0.9, Level.CRITICAL),
    ],
)
def test_what_is_no_growth_is_judged_by_its_certainty_alone(cause: Cause, probability: float, level: Level) -> None:
    assert level_for(Danger(cause, probability, 60.0, 10.0), 0.5, 0.0, RiskSettings()) == level


def test_what_will_be_lost_until_the_next_sample_is_gone_already() -> None:
    danger = Danger("growth", 0.9, 40.0, 100.0, early_seconds=40.0, rate=0.01)
    assert [level_for(danger, 0.28, seconds, RiskSettings()) for seconds in (4.0, 5.0)] == [Level.INFO, Level.WARNING]


def test_without_swap_a_growth_within_16_seconds_is_warned_of_earlier() -> None:
    for eta, level in ((16.0, Level.WARNING), (16.1, Level.INFO)):
        danger = Danger("growth", 0.5, eta, 100.0, early_seconds=eta)
        assert level_for(danger, 0.28, 0.0, RiskSettings(), margin=0.025) == level
