"""A command's earlier peak is known to the daemon from its start to its end, and no longer."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.advise.guard.test_guard import GUARD
from tests.support.elsewhere import Elsewhere
from wslgpud.active_runs.note_reader import RunNotes
from wslgpud.active_runs.notes import PLACES, Claim, Note, name_of
from wslgpud.advise.guard import capacity, past_runs
from wslgpud.advise.guard.capacity import Process
from wslgpud.advise.guard.usage import TreeMemory, most_bytes
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.model import Expected
from wslgpud.sampling.noted_runs import expected
from wslgpud.sampling.pipeline import SamplingPipeline
from wslgpud.security.safe_files import Folder
from wslgpud.words.units import size

MIB, GIB = 1 << 20, 1 << 30
#: as much as this machine can hold, and so always more than is free
ALL = most_bytes(Host())
HOLD = f"x = bytearray({80 * MIB}); print('held', flush=True); input()"
COMMAND = [sys.executable, "-c", HOLD]


def remembered(folder: Path, **facts) -> None:
    known = past_runs.PastRuns({capacity.key_of(COMMAND): facts})
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


def of(guard: subprocess.Popen) -> list[Expected]:
    """The daemon's view of this guard; others may run on this machine."""
    return [e for e in expected(RunNotes(Host()).read(), ()) if f"(guard {guard.pid})" in e.who]


def test_the_daemon_knows_all_along_what_a_command_will_need(tmp_path):
    remembered(tmp_path, peak_bytes=ALL, vram_bytes={"GPU-1": 5 * GIB})
    guard = start(tmp_path)
    while sum(e.used_bytes for e in of(guard)) < 80 * MIB:
        time.sleep(0.05)

    ram, card = of(guard)
    assert (ram.resource, ram.peak_bytes) == ("ram", ALL)
    assert (card.resource, card.peak_bytes, card.used_bytes) == ("GPU-1", 5 * GIB, 0)
    (note,) = (note for note in RunNotes(Host()).read() if note.who.pid == guard.pid)
    assert note.document["pids"]
    assert guard.pid not in note.document["pids"]  # who watches is none of the watched
    monitor = SamplingPipeline(Config(), Host())
    state, _ = monitor.tick()
    monitor.close()
    assert {e.resource for e in state.observation.expected if e.who == ram.who} == {"ram", "GPU-1"}

    _, said = guard.communicate("\n")
    assert of(guard) == []
    assert f"an earlier run took {size(ALL)} of memory" in said


def test_nothing_is_announced_of_a_command_that_never_ran(tmp_path):
    guard = start(tmp_path)

    assert of(guard) == []
    guard.communicate("\n")


def test_what_a_killed_guard_left_is_ignored_and_later_removed(tmp_path):
    remembered(tmp_path, peak_bytes=ALL)
    guard = start(tmp_path)
    while not of(guard):
        time.sleep(0.05)
    guard.kill()
    guard.communicate()

    def left() -> list[Path]:
        files = (Path(place, name_of("guard", guard.pid)) for place in PLACES)
        return [file for file in files if file.exists()]

    assert of(guard) == []
    assert left()
    start(tmp_path).communicate("\n")
    assert not left()


def test_a_full_disk_behind_the_note_does_not_end_the_command(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with Note(Elsewhere(tmp_path), "guard", "make") as note:
        monkeypatch.setattr(Folder, "put", full)
        note.tell("runs", claim=Claim({"ram": GIB}))


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
