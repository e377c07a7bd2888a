"""The limits of a warning and of each resource's room, at the value and just beside it."""

import pytest

from wslgpud.model import CgroupState, GpuSample, Observation, RamState
from wslgpud.risk.headroom import Taken, cgroup_room, gpu_room
from wslgpud.risk.levels import headroom_for_warning
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
def test_how_much_may_be_left_for_a_warning_falls_evenly_between_the_points_of_the_page(eta: float, share: float):
    assert headroom_for_warning(eta, RiskSettings()) == pytest.approx(share)


@pytest.mark.parametrize(
    ("total", "reserve"),
    [(2 * GIB, int(0.04 * 2 * GIB)), (2 * GIB + 1, 512 * MIB), (12 * GIB, 512 * MIB), (16 * GIB, int(0.64 * GIB))],
)
def test_under_wsl2_half_a_gib_or_4_percent_of_a_card_are_never_to_be_had(total: int, reserve: int):
    room = gpu_room(GpuSample(0, "u", "card", total, 0), wsl=True)
    assert room is not None
    assert room.capacity == total - reserve


def test_ram_that_a_host_took_counts_as_in_use_for_ten_minutes_and_more_ram_counts_at_once():
    taken = Taken()
    seen = [(0.0, 24), (1.0, 20), (601.0, 20), (601.1, 20), (602.0, 22)]
    assert [taken.total(Observation(t=t, ram=RamState(gib, 1))) for t, gib in seen] == [24, 24, 24, 20, 22]
    assert taken.total(Observation(t=603.0)) == 22


def test_a_groups_swap_is_no_more_than_its_limit_leaves_and_than_the_machine_has():
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
