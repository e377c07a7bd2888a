"""What a command came to before is known to the daemon from its start to its end, and no longer."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.advise.guard.test_guard import GUARD
from tests.support.elsewhere import Elsewhere
from wslgpud.advise.guard import ledger, plan
from wslgpud.config import Config
from wslgpud.documents import Folder
from wslgpud.host import Host
from wslgpud.model import Expected
from wslgpud.monitor import Monitor
from wslgpud.running.form import PLACES, name_of
from wslgpud.running.read import Notes, expected
from wslgpud.running.write import Claim, Note

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
    return [e for e in expected(Notes(Host()).read(), ()) if f"(guard {guard.pid})" in e.who]


def test_the_daemon_knows_from_start_to_end_what_a_command_will_come_to(tmp_path):
    remembered(tmp_path, peak_bytes=3 * TIB, vram_bytes={"GPU-1": 5 * GIB})
    guard = start(tmp_path)
    while sum(e.used_bytes for e in of(guard)) < 80 * MIB:
        time.sleep(0.05)

    ram, card = of(guard)
    assert (ram.resource, ram.peak_bytes) == ("ram", 3 * TIB)
    assert (card.resource, card.peak_bytes, card.used_bytes) == ("GPU-1", 5 * GIB, 0)
    (note,) = (note for note in Notes(Host()).read() if note.who.pid == guard.pid)
    assert note.document["pids"]
    assert guard.pid not in note.document["pids"]  # who watches is none of the watched
    monitor = Monitor(Config(), Host())
    state, _ = monitor.tick()
    monitor.close()
    assert {e.resource for e in state.observation.expected if e.who == ram.who} == {"ram", "GPU-1"}

    _, said = guard.communicate("\n")
    assert of(guard) == []
    assert "in an earlier run it came to 3.0 TiB of memory" in said


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
    known = ledger.Ledger({
        "make": {"peak_bytes": 8 * GIB, "jobs": 8, "compiler_bytes": GIB},
        "train.py": {"peak_bytes": 8 * GIB, "jobs": 8, "compiler_bytes": 0},
    })  # fmt: skip

    assert known.peaks("make", 4) == {"ram": 4 * GIB}
    assert known.peaks("make", None) == {"ram": 8 * GIB}
    assert known.peaks("train.py", 4) == {"ram": 8 * GIB}
    assert known.peaks("never ran", 4) == {}
