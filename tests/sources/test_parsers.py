"""Whatever the kernel's files hold, a source returns readings or reports no data, and does nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wslgpud.config import Config
from wslgpud.host import NoData, RecordedHost, SourceError
from wslgpud.model import Reading
from wslgpud.sampling.sampler import SOURCES
from wslgpud.sources import cpu, decimal, disk, memory, network, parse_uint
from wslgpud.sources.kernel_lines import LineParser, parse_line
from wslgpud.sources.procfs import parse_stat

TEXTS: dict[str, tuple[Callable[[str], list[Reading]], str]] = {
    "meminfo": (
        lambda text: [Reading(memory.MEMINFO["MemFree"], size) for size in memory.meminfo(text).values()],
        "MemTotal:       24684096 kB\nMemAvailable:   24065884 kB\nSwapFree: 0 kB\nHugetlb: 0 kB\n",
    ),
    "vmstat": (memory.vmstat, "pswpin 3\npswpout 5\nallocstall_normal 1\npgscan_direct 4\noom_kill 2\n"),
    "pressure": (
        lambda text: memory.pressure("memory", text),
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=1.00 avg60=2.00 avg300=0.00 total=99\n",
    ),
    "stat": (cpu.stat, "cpu  25600 1 28735 201068 951 2 287 31\ncpu0 1 2 3\nbtime 17\nprocs_running 3\n"),
    "diskstats": (disk.diskstats, " 254 0 vda 5 1 343 17 74 29 479 11 0 91 29 7 4 7 4 17 5\n"),
    "network": (network.parse, "Inter-|   Receive | Transmit\n face |bytes\n  eth0: 4 1 0 0 0 0 0 0 7 8 0 0 0 0 0 0\n"),
}

NASTY = st.sampled_from(
    ["-1", "nan", "inf", "-inf", "1e999", "9" * 30, "9" * 5000, "1_0", "٣", "²", "", " ", "\n", ":", "=", "\0"]
)


@st.composite
def broken(draw: st.DrawFn, text: str) -> str:
    """Return the text with pieces cut out, put in and exchanged."""
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 40)))
        text = text[:start] + draw(NASTY | st.text(max_size=12)) + text[end:]
    return text


@pytest.mark.parametrize("name", TEXTS)
@given(data=st.data())
def test_a_broken_file_gives_fewer_numbers_never_impossible_ones(name: str, data: Any):
    parse, good = TEXTS[name]
    try:
        readings = parse(data.draw(broken(good)))
    except (NoData, SourceError):
        return
    for reading in readings:
        assert math.isfinite(reading.value)
        assert reading.value >= 0
        assert len(reading.labels) == len(reading.spec.labels)
        if reading.spec.unit == "ratio":
            assert reading.value <= 1


@pytest.mark.parametrize("name", TEXTS)
def test_the_whole_file_gives_numbers(name: str):
    parse, good = TEXTS[name]
    assert parse(good)


STAT = "42 (python3) S 1 42 42 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 1000 8589934592 500 18446744073709551615 1\n"


@given(broken(STAT))
def test_a_broken_process_is_none_or_has_possible_numbers(text: str):
    row = parse_stat(text)
    if row is not None:
        assert min(row.pid, row.start_ticks, row.virtual_bytes, row.rss_bytes) >= 0


KILL = (
    "Memory cgroup out of memory: Killed process 77 (cc1plus) total-vm:900kB, anon-rss:800kB, "
    "file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:8kB oom_score_adj:0"
)


@given(broken(f"6,1,200000,-;{KILL}"))
@example(f"6,1,200000,-;{KILL}")
def test_a_broken_log_line_is_nothing_or_has_possible_numbers(record: str):
    line = parse_line(record)
    found = LineParser().add(line.text) if line else None
    if found is not None:
        assert min((figure for figure in found.fields.values() if isinstance(figure, int)), default=0) >= 0


class Spoiled(RecordedHost):
    """A machine of which one file holds something else."""

    def __init__(self, folder: Path, path: str, text: str) -> None:
        super().__init__(folder)
        self._path = path
        self._text = text

    def read(self, path: str) -> str:
        return self._text if path == self._path else super().read(path)


HOSTS = Path(__file__).parent.parent / "hosts"
FILES = {
    f"{name}{path}": (HOSTS / name, path, (HOSTS / name / "root" / path.lstrip("/")).read_text())
    for name in ("cgroup-limit", "wsl2-swap-thrash", "wsl2-vram-full")
    for file in sorted((HOSTS / name / "root").rglob("*"))
    if file.is_file() and (path := "/" + str(file.relative_to(HOSTS / name / "root")))
}


@given(st.sampled_from(sorted(FILES)), st.data())
def test_one_broken_file_on_a_whole_machine_breaks_no_source(name: str, data: Any):
    folder, path, text = FILES[name]
    host = Spoiled(folder, path, data.draw(broken(text)))
    for source in (kind(host, Config()) for kind in SOURCES if kind.name != "gpu"):
        try:
            sample = source.read()
        except (NoData, SourceError):
            continue
        for reading in sample.readings:
            assert math.isfinite(reading.value)
            assert reading.value >= 0
        for process in sample.processes or ():
            assert min(process.pid, process.rss_bytes, process.swap_bytes) >= 0


@given(st.integers(0, 10**18 - 1))
def test_a_count_is_read_as_it_was_written(number: int):
    assert parse_uint(str(number)) == number


@given(NASTY | st.text())
def test_what_is_no_plain_number_is_not_known(text: str):
    assert (parse_uint(text) or 0) >= 0
    value = decimal(text)
    assert value is None or (math.isfinite(value) and value >= 0)


def test_not_known_is_not_zero():
    assert parse_uint(None) is None
    assert parse_uint("") is None
    assert decimal("nan") is None
    assert parse_uint("0") == 0
