"""Pressure: the kernel's stall times, or silence where the kernel has none."""

from __future__ import annotations

import errno
import os

import pytest

from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources.memory import PressureSource

MEMORY = """\
some avg10=12.34 avg60=5.00 avg300=1.00 total=123456789
full avg10=100.01 avg60=2.50 avg300=0.50 total=23456789
"""
CPU = """\
some avg10=1.00 avg60=0.00 avg300=0.00 total=1000000
full avg10=0.00 avg60=0.00 avg300=0.00 total=0
"""


def test_totals_are_seconds_and_averages_are_ratios(machine, values):
    host = machine({"/proc/pressure/memory": MEMORY, "/proc/pressure/io": MEMORY, "/proc/pressure/cpu": CPU})
    found = values(PressureSource(host, Config()).read())
    assert found["pressure_waiting_seconds_total{memory}"] == 123.456789
    assert found["pressure_stalled_seconds_total{io}"] == 23.456789
    assert found["pressure_waiting_ratio{memory,10s}"] == 0.1234
    assert found["pressure_waiting_ratio{memory,60s}"] == 0.05
    assert found["pressure_stalled_ratio{memory,10s}"] == 1.0
    assert found["pressure_waiting_seconds_total{cpu}"] == 1.0


def test_a_full_stall_of_the_cpu_means_nothing_and_is_not_shown(machine, values):
    found = values(PressureSource(machine({"/proc/pressure/cpu": CPU}), Config()).read())
    assert not [name for name in found if "stalled" in name]


def test_a_kernel_without_psi_is_no_fault(machine):
    with pytest.raises(NoData, match="psi=1"):
        PressureSource(machine(), Config()).read()


class Refusing(Host):
    """A kernel whose pressure files answer every read with one error."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def read(self, path: str) -> str:
        raise SourceError(f"cannot read {path}") from OSError(self.number, os.strerror(self.number))


def test_psi_that_is_built_in_but_off_is_no_fault():
    with pytest.raises(NoData, match="psi=1"):
        PressureSource(Refusing(errno.EOPNOTSUPP), Config()).read()


def test_psi_that_may_not_be_read_is_a_fault():
    with pytest.raises(SourceError, match="/proc/pressure/memory"):
        PressureSource(Refusing(errno.EACCES), Config()).read()
