"""A run starts only where it disturbs no one, and gives way when another program starts."""

from __future__ import annotations

import pytest

from tests.stress.support import MIB, gpu
from wslgpud.config import Stress
from wslgpud.stress.conditions import Surroundings, obstacles, reason_to_leave

IDLE = [gpu() for _ in range(30)]


def test_an_idle_gpu_may_be_tested():
    assert not [*obstacles(Surroundings(IDLE), Stress())]


@pytest.mark.parametrize(
    ("still_good", "too_much", "said"),
    [
        (
            Surroundings([gpu(utilization_ratio=0.049)] * 30),
            Surroundings([gpu(utilization_ratio=0.05)] * 30),
            "the GPU is busy: 5 % in the last 30 s",
        ),
        (
            Surroundings([*IDLE[:16], *[gpu(utilization_ratio=0.1)] * 14]),
            Surroundings([*IDLE[:15], *[gpu(utilization_ratio=0.1)] * 15]),
            "the GPU is busy: 10 % in the last 30 s",
        ),
        (
            Surroundings([*IDLE[:29], gpu(utilization_ratio=0.2)]),
            Surroundings([*IDLE[:28], *[gpu(utilization_ratio=0.2)] * 2]),
            "the GPU is busy: 20 % in the last 30 s",
        ),
        (
            Surroundings([*IDLE, gpu(used_bytes=1128 * MIB)]),
            Surroundings([*IDLE, gpu(used_bytes=1129 * MIB)]),
            "memory in use varies by 129 MiB",
        ),
        (
            Surroundings([gpu(total_bytes=1000 * MIB, free_bytes=600 * MIB)]),
            Surroundings([gpu(total_bytes=1000 * MIB, free_bytes=594 * MIB)]),
            "only 59 % of the memory is free",
        ),
        (
            Surroundings([gpu(temperature_celsius=75.0)]),
            Surroundings([gpu(temperature_celsius=76.0)]),
            "the GPU is hot: 76 °C",
        ),
    ],
)
def test_a_little_is_no_obstacle_and_a_little_more_is(still_good, too_much, said):
    assert not [*obstacles(still_good, Stress())]
    assert [*map(str, obstacles(too_much, Stress()))] == [said]


def test_of_many_programs_the_first_five_are_named():
    [obstacle] = obstacles(Surroundings(IDLE, holders=list("gfedcba")), Stress())

    assert str(obstacle) == "programs are using the GPU: a, b, c, d, e"


def test_a_reserve_that_leaves_nothing_to_test_is_named():
    [obstacle] = obstacles(Surroundings(IDLE), Stress(reserve_bytes=15000 * MIB))

    assert str(obstacle) == "stress.reserve_bytes leaves nothing of 15 GiB to test"


def test_the_desktop_may_flicker():
    flickering = [gpu(used_bytes=(1000 + n % 5 * 20) * MIB, utilization_ratio=0.02) for n in range(30)]

    assert not [*obstacles(Surroundings(flickering), Stress())]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (Surroundings([]), "the GPU does not answer"),
        (Surroundings([gpu(utilization_ratio=0.4)] * 30), "the GPU is busy: 40 % in the last 30 s"),
        (Surroundings([gpu(utilization_ratio=0.9 * (n > 20)) for n in range(30)]), "the GPU is busy: 90 %"),
        (Surroundings([gpu(used_bytes=(1000 + 10 * n) * MIB) for n in range(30)]), "varies by 290 MiB"),
        (Surroundings([gpu(used_bytes=None)]), "does not report how much memory is in use"),
        (Surroundings([gpu(free_bytes=8000 * MIB)]), "only 49 % of the memory is free"),
        (Surroundings([gpu(temperature_celsius=80.0)]), "the GPU is hot: 80 °C"),
        (Surroundings(IDLE, holders=["python3 (pid 42)"]), "programs are using the GPU: python3 (pid 42)"),
        (Surroundings(IDLE, on_battery=True), "is running on battery"),
        (Surroundings(IDLE, hung_since_boot=True), "hangs in the driver: restart WSL"),
    ],
)
def test_each_obstacle_is_named(seen, said):
    [obstacle] = obstacles(seen, Stress())

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
