"""What a command came to before is known to the daemon from its start to its end, and no longer."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.advise.guard.test_guard import GUARD
from wslgpud.advise.guard import ledger, plan
from wslgpud.advise.guard.announce import Announcement, announcing
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.model import Expected
from wslgpud.monitor import Monitor
from wslgpud.sources import announced

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40
HOLD = f"x = bytearray({80 * MIB}); print('held', flush=True); input()"
COMMAND = [sys.executable, "-c", HOLD]


def remembered(folder: Path, **facts) -> None:
    known = ledger.Ledger()
    known.learn(plan.key_of(COMMAND), facts, {})
    ledger.save(folder, known)


def start(folder: Path) -> subprocess.Popen:
    guard = subprocess.Popen(
        [*GUARD, "--state", str(folder), "--", *COMMAND],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert guard.stdout.readline() == "held\n"
    return guard


def of(guard: subprocess.Popen) -> list[Expected]:
    """What the daemon would read of this guard; others may run on this machine."""
    return [e for e in announced.expected(Host()) if f"(guard {guard.pid})" in e.who]


def test_a_full_disk_behind_the_announcement_does_not_end_the_command():
    with Path("/dev/full").open("wb") as full:
        Announcement(full.fileno(), "make", {"ram": GIB}).note(0.0, [], MIB, {})


def test_the_daemon_knows_from_start_to_end_what_a_command_will_come_to(tmp_path):
    remembered(tmp_path, peak_bytes=3 * TIB, vram_bytes={"GPU-1": 5 * GIB})
    guard = start(tmp_path)
    while sum(e.used_bytes for e in of(guard)) < 80 * MIB:
        time.sleep(0.05)

    ram, card = of(guard)
    assert (ram.resource, ram.peak_bytes) == ("ram", 3 * TIB)
    assert (card.resource, card.peak_bytes, card.used_bytes) == ("GPU-1", 5 * GIB, 0)
    assert all(guard.pid != pid for pid in ram.pids)  # who watches is none of the watched
    monitor = Monitor(Config(), Host())
    state, _ = monitor.tick()
    monitor.close()
    assert {e.resource for e in state.observation.expected if e.who == ram.who} == {"ram", "GPU-1"}

    _, said = guard.communicate("\n")
    assert of(guard) == []
    assert "in an earlier run it came to 3.0 TB of memory" in said


def test_nothing_is_announced_of_a_command_that_never_ran(tmp_path):
    guard = start(tmp_path)

    assert of(guard) == []
    guard.communicate("\n")


def test_what_a_killed_guard_has_left_is_not_believed_and_goes_with_the_next(tmp_path):
    remembered(tmp_path, peak_bytes=3 * TIB)
    guard = start(tmp_path)
    while not of(guard):
        time.sleep(0.05)
    guard.kill()
    guard.communicate()

    def left() -> list[Path]:
        files = (path for place in announced.PLACES for path in Path(place).glob(f"*guard-{guard.pid}-*"))
        return list(files)

    assert of(guard) == []
    assert left()
    start(tmp_path).communicate("\n")
    assert not left()


@pytest.fixture
def place(tmp_path) -> Path:
    folder = tmp_path / announced.PLACES[0].lstrip("/")
    folder.mkdir(parents=True)
    return folder


def test_only_what_is_held_locked_counts(place, tmp_path):
    content = announced.text("make", {"ram": GIB}, {"ram": 1}, (7,))
    path = place / "wslgpud-guard-1.json"
    path.write_bytes(content)
    os.mkfifo(place / "wslgpud-guard-2.json")
    (place / "wslgpud-guard-3.json").symlink_to("/etc/passwd")
    (place / "wslgpud-guard-4.json").mkdir()
    assert announced.expected(Host(tmp_path)) == ()

    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert announced.expected(Host(tmp_path)) == (Expected("ram", "make", GIB, 1, (7,)),)


def test_a_flood_of_files_is_not_read_to_its_end(place, tmp_path):
    with announcing("make", {"ram": GIB}, [str(place)]) as one:
        one.note(0.0, (), 0, {})
        text = next(place.iterdir()).read_bytes()
        held = [(place / f"wslgpud-guard-{i}.json").open("wb+") for i in range(3 * announced.MOST_FILES)]
        for file in held:
            file.write(text)
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX)

        assert len(announced.expected(Host(tmp_path))) == announced.MOST_FILES
        for file in held:
            file.close()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
documents = st.fixed_dictionaries(
    {"who": json_values, "peaks": json_values, "used": json_values, "pids": json_values}
)


@given(st.binary(max_size=80) | (documents | json_values).map(lambda d: json.dumps(d).encode()))
def test_whatever_stands_in_a_file_the_daemon_goes_on(content):
    for row in announced._parsed(content):
        assert row.peak_bytes > 0
        assert row.used_bytes >= 0


def test_a_build_with_fewer_jobs_is_expected_to_take_less():
    known = ledger.Ledger({
        "make": {"peak_bytes": 8 * GIB, "jobs": 8, "compiler_bytes": GIB},
        "train.py": {"peak_bytes": 8 * GIB, "jobs": 8, "compiler_bytes": 0},
    })  # fmt: skip

    assert known.peaks("make", 4) == {"ram": 4 * GIB}
    assert known.peaks("make", None) == {"ram": 8 * GIB}
    assert known.peaks("train.py", 4) == {"ram": 8 * GIB}
    assert known.peaks("never ran", 4) == {}
