"""A run starts only where it disturbs no one, and gives way when another program starts."""

from __future__ import annotations

import pytest

from tests.stress.support import MIB, gpu
from wslgpud.config import Stress
from wslgpud.stress.gates import Surroundings, obstacles, reason_to_leave

IDLE = [gpu() for _ in range(30)]


def test_an_idle_gpu_may_be_tested():
    assert not [*obstacles(Surroundings(IDLE), Stress())]


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
        (Surroundings(IDLE, jump_age_seconds=30.0), "woke up only 30 s ago"),
        (Surroundings(IDLE, hung_since_boot=True), "hangs in the driver: restart WSL"),
        (Surroundings(IDLE, recent_gpu_errors=True), "errors of the GPU driver"),
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
