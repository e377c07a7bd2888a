"""Processors, load, and which boot this is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wslgpud.config import Config
from wslgpud.host import Host, SourceError
from wslgpud.sources.cpu import CpuSource

FILES = {
    "/proc/stat": "cpu  25600 1 28735 201068 951 2 287 31 99 0\ncpu0 1 2 3 4\ncpu1 1 2 3 4\n"
    "intr 5 6 7\nctxt 99\nbtime 1795240746\nprocesses 77\nprocs_running 3\nprocs_blocked 4\nsoftirq 1 2\n",
    "/proc/loadavg": "1.05 0.64 0.41 2/150 12345\n",
    "/proc/uptime": "1288.32 2010.68\n",
    "/proc/sys/kernel/random/boot_id": "1aab45c7-52f4-48ed-b7e7-2fde39f21a56\n",
    "/proc/sys/kernel/osrelease": "6.6.87.2-microsoft-standard-WSL2\n",
}


def test_every_number_is_where_it_belongs(machine, values):
    per_second = os.sysconf("SC_CLK_TCK")
    found = values(CpuSource(machine(FILES), Config()).read())
    assert found == {
        "cpu_seconds_total{user}": 25600 / per_second,
        "cpu_seconds_total{nice}": 1 / per_second,
        "cpu_seconds_total{system}": 28735 / per_second,
        "cpu_seconds_total{idle}": 201068 / per_second,
        "cpu_seconds_total{iowait}": 951 / per_second,
        "cpu_seconds_total{irq}": 2 / per_second,
        "cpu_seconds_total{softirq}": 287 / per_second,
        "cpu_seconds_total{steal}": 31 / per_second,
        "cpus": 2,
        "load1": 1.05,
        "load5": 0.64,
        "load15": 0.41,
        "processes_running": 3,
        "processes_blocked": 4,
        "boot_time_seconds": 1795240746,
        "uptime_seconds": 1288.32,
        "boot_info{1aab45c7-52f4-48ed-b7e7-2fde39f21a56,6.6.87.2-microsoft-standard-WSL2}": 1,
    }


def test_cpu_times_are_kept_where_a_container_hides_the_rest(machine, values):
    found = values(CpuSource(machine({"/proc/stat": FILES["/proc/stat"]}), Config()).read())
    assert found["cpus"] == 2
    assert "load1" not in found


def test_a_time_taken_back_by_the_kernel_does_not_fall(machine, values):
    host, per_second = machine(FILES), os.sysconf("SC_CLK_TCK")
    source = CpuSource(host, Config())
    source.read()
    seen = []
    for iowait in (950, 949, 951 + 3 * per_second, 952, 951, 0):
        Path(host.path("/proc/stat")).write_text(FILES["/proc/stat"].replace(" 951 ", f" {iowait} "))
        seen.append(round(values(source.read())["cpu_seconds_total{iowait}"] * per_second))

    # A decrease of three seconds is real.
    assert seen == [951, 951, 951 + 3 * per_second, 951 + 3 * per_second, 951, 0 if per_second < 317 else 951]


def test_a_stat_without_processors_is_an_error(machine):
    with pytest.raises(SourceError, match="/proc/stat"):
        CpuSource(machine({"/proc/stat": "btime 5\n"}), Config()).read()


def test_this_machine_has_as_many_processors_as_python_counts(values):
    assert values(CpuSource(Host(), Config()).read())["cpus"] == os.cpu_count()
