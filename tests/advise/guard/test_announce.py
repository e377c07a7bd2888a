"""A command's earlier peak is known to the daemon from its start to its end, and no longer."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.advise.guard.test_guard import GUARD
from tests.support.daemons import eventually
from tests.support.elsewhere import hearing
from wslgpud.active_runs import AnnouncedRuns
from wslgpud.advise.guard import past_runs
from wslgpud.advise.guard.tree import Process
from wslgpud.advise.guard.usage import TreeMemory, most_bytes
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.model import Expected
from wslgpud.sampling.assessor import Assessor
from wslgpud.sampling.noted_runs import expected
from wslgpud.words.units import size

MIB, GIB = 1 << 20, 1 << 30
#: as much as this machine can hold, and so always more than is free
ALL = most_bytes(Host())
HOLD = f"x = bytearray({80 * MIB}); print('held', flush=True); input()"
COMMAND = [sys.executable, "-c", HOLD]


def remembered(folder: Path, **facts) -> None:
    known = past_runs.PastRuns({past_runs.key_of(COMMAND): facts})
    past_runs.save(folder, known)


def start(folder: Path) -> subprocess.Popen:
    guard = subprocess.Popen(
        [*GUARD, "--state", str(folder), "--", *COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert guard.stdout.readline() == "held\n"
    return guard


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[AnnouncedRuns]:
    """What a daemon hears."""
    with hearing(tmp_path) as heard:
        yield heard


def of(guard: subprocess.Popen, runs: AnnouncedRuns) -> list[Expected]:
    """The daemon's view of this guard."""
    return [e for e in expected(runs.read(), ()) if f"(guard {guard.pid})" in e.who]


def test_the_daemon_knows_all_along_what_a_command_will_need(tmp_path, runs):
    remembered(tmp_path, peak_bytes=ALL, vram_bytes={"GPU-1": 5 * GIB})
    guard = start(tmp_path)
    while sum(e.used_bytes for e in of(guard, runs)) < 80 * MIB:
        time.sleep(0.05)

    ram, card = of(guard, runs)
    assert (ram.resource, ram.peak_bytes) == ("ram", ALL)
    assert (card.resource, card.peak_bytes, card.used_bytes) == ("GPU-1", 5 * GIB, 0)
    (note,) = runs.read()
    assert note.document["pids"]
    assert guard.pid not in note.document["pids"]  # who watches is none of the watched
    monitor = Assessor(Config(), Host())
    monitor.runs = runs
    state, _ = monitor.tick()
    monitor.close()
    assert {e.resource for e in state.observation.expected if e.who == ram.who} == {"ram", "GPU-1"}

    _, said = guard.communicate("\n")
    eventually(lambda: of(guard, runs) == [], "its end")
    assert f"an earlier run took {size(ALL)} of memory" in said


def test_nothing_is_announced_of_a_command_that_never_ran(tmp_path, runs):
    guard = start(tmp_path)

    assert of(guard, runs) == []
    guard.communicate("\n")


def test_of_a_killed_guard_nothing_is_left(tmp_path, runs):
    remembered(tmp_path, peak_bytes=ALL)
    guard = start(tmp_path)
    while not of(guard, runs):
        time.sleep(0.05)
    guard.kill()
    guard.communicate()

    assert of(guard, runs) == []


def test_a_build_with_fewer_jobs_is_expected_to_take_less():
    known = past_runs.PastRuns(
        {
            "make": {"peak_bytes": 8 * GIB, "jobs": 8, "compiler_bytes": GIB},
            "train.py": {"peak_bytes": 8 * GIB, "jobs": 8, "compiler_bytes": 0},
        }
    )

    assert known.peaks("make", 4, {}) == {"ram": 4 * GIB}
    assert known.peaks("make", None, {}) == {"ram": 8 * GIB}
    assert known.peaks("train.py", 4, {}) == {"ram": 8 * GIB}
    assert known.peaks("never ran", 4, {}) == {}


def test_a_build_of_too_many_jobs_is_expected_to_fill_memory():
    known = past_runs.PastRuns({"make": {"peak_bytes": 8 * GIB, "jobs": 2, "compiler_bytes": GIB}})

    assert known.peaks("make", 16, {"ram": 24 * GIB}) == {"ram": 24 * GIB}


SIZES = st.integers(-(1 << 50), 1 << 50) | st.none() | st.booleans() | st.floats() | st.just("much")
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "peak_bytes": SIZES,
        "vram_bytes": st.none() | st.dictionaries(st.sampled_from(["GPU-1", "GPU-2"]), SIZES),
        "compiler_bytes": SIZES,
        "jobs": st.none() | st.integers(0, 999),
    },
)


@given(FACTS, st.none() | st.integers(1, 999), st.integers(1, 1 << 45), st.integers(1, 1 << 38))
def test_no_peak_is_believed_that_this_machine_cannot_hold(facts, jobs, ram, vram):
    peaks = past_runs.PastRuns({"make": facts}).peaks("make", jobs, {"ram": ram, "GPU-1": vram})

    assert 0 < peaks.get("ram", 1) <= ram
    assert 0 < peaks.get("GPU-1", 1) <= vram
    recorded = facts.get("peak_bytes")
    assert ("ram" in peaks) <= (type(recorded) is int and 0 < recorded <= ram)


def test_a_sum_that_exceeds_the_machine_is_not_known():
    crowd = [Process(pid, 1, "python3", most_bytes(Host()) // 2) for pid in (1, 2, 3)]

    assert TreeMemory(Host()).now_bytes(crowd[:1]) == crowd[0].bytes
    assert TreeMemory(Host()).now_bytes(crowd) is None
