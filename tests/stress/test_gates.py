"""A run starts only where it disturbs no one, and gives way when another program starts."""

from __future__ import annotations

import pytest

from tests.stress.support import MIB, gpu
from wslgpud.config import Stress
from wslgpud.stress.conditions import obstacles, reason_to_leave

IDLE = [gpu() for _ in range(30)]


def test_an_idle_gpu_may_be_tested():
    assert not [*obstacles(Stress(), IDLE)]


@pytest.mark.parametrize(
    ("still_good", "too_much", "said"),
    [
        (
            [gpu(utilization_ratio=0.049)] * 30,
            [gpu(utilization_ratio=0.05)] * 30,
            "the GPU is busy: 5 % in the last 30 s",
        ),
        (
            [*IDLE[:16], *[gpu(utilization_ratio=0.1)] * 14],
            [*IDLE[:15], *[gpu(utilization_ratio=0.1)] * 15],
            "the GPU is busy: 10 % in the last 30 s",
        ),
        (
            [*IDLE[:29], gpu(utilization_ratio=0.2)],
            [*IDLE[:28], *[gpu(utilization_ratio=0.2)] * 2],
            "the GPU is busy: 20 % in the last 30 s",
        ),
        ([*IDLE, gpu(used_bytes=1128 * MIB)], [*IDLE, gpu(used_bytes=1129 * MIB)], "memory in use varies by 129 MiB"),
        (
            [gpu(total_bytes=1000 * MIB, free_bytes=600 * MIB)],
            [gpu(total_bytes=1000 * MIB, free_bytes=594 * MIB)],
            "only 59 % of the memory is free",
        ),
        ([gpu(temperature_celsius=75.0)], [gpu(temperature_celsius=76.0)], "the GPU is hot: 76 °C"),
    ],
)
def test_a_little_is_no_obstacle_and_a_little_more_is(still_good, too_much, said):
    assert not [*obstacles(Stress(), still_good)]
    assert [*map(str, obstacles(Stress(), too_much))] == [said]


def test_of_many_programs_the_first_five_are_named():
    [obstacle] = obstacles(Stress(), IDLE, holders=list("gfedcba"))

    assert str(obstacle) == "programs are using the GPU: a, b, c, d, e"


def test_a_reserve_that_leaves_nothing_to_test_is_named():
    [obstacle] = obstacles(Stress(reserve_bytes=15000 * MIB), IDLE)

    assert str(obstacle) == "stress.reserve_bytes leaves nothing of 15 GiB to test"


def test_the_desktop_may_flicker():
    flickering = [gpu(used_bytes=(1000 + n % 5 * 20) * MIB, utilization_ratio=0.02) for n in range(30)]

    assert not [*obstacles(Stress(), flickering)]


@pytest.mark.parametrize(
    ("samples", "facts", "said"),
    [
        ([], {}, "the GPU does not answer"),
        ([gpu(utilization_ratio=0.4)] * 30, {}, "the GPU is busy: 40 % in the last 30 s"),
        ([gpu(utilization_ratio=0.9 * (n > 20)) for n in range(30)], {}, "the GPU is busy: 90 %"),
        ([gpu(used_bytes=(1000 + 10 * n) * MIB) for n in range(30)], {}, "varies by 290 MiB"),
        ([gpu(used_bytes=None)], {}, "does not report how much memory is in use"),
        ([gpu(free_bytes=8000 * MIB)], {}, "only 49 % of the memory is free"),
        ([gpu(temperature_celsius=80.0)], {}, "the GPU is hot: 80 °C"),
        (IDLE, {"holders": ["python3 (pid 42)"]}, "programs are using the GPU: python3 (pid 42)"),
        (IDLE, {"on_battery": True}, "is running on battery"),
        (IDLE, {"hung_since_boot": True}, "hangs in the driver: restart WSL"),
    ],
)
def test_each_obstacle_is_named(samples, facts, said):
    [obstacle] = obstacles(Stress(), samples, **facts)

    assert said in str(obstacle)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({}, ""),
        ({"holders": ["python3 (pid 42)"]}, "python3 (pid 42) wants the GPU"),
        ({"waiting": True}, "a program is waiting for the GPU's lock file"),
        ({"gpu_errors": True}, "the kernel reports errors of the GPU driver"),
        ({"silent_seconds": 10.0}, ""),
        ({"silent_seconds": 11.0}, "the driver has not answered for 11 s"),
    ],
)
def test_a_run_leaves_for_others_and_for_trouble(seen, said):
    assert str(reason_to_leave(**seen)) == said
