"""What runs now is known to whoever looks, and nothing that has ended is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemons import WSLGPUD, clean_environment, daemon, eventually
from tests.support.elsewhere import Elsewhere, seen
from wslgpud.active_runs.notes import PLACES, Note, name_of
from wslgpud.active_runs.run_messages import PHASES, headline
from wslgpud.host import Host
from wslgpud.stress.stress_run import WorkerPace
from wslgpud.stress.stress_run import reporting as stress_told
from wslgpud.words import translator


@pytest.fixture
def alone(tmp_path: Path) -> Elsewhere:
    """This machine without what other tests run meanwhile."""
    return Elsewhere(tmp_path / "elsewhere")


def files(host: Host) -> list[Path]:
    return [file for place in PLACES for file in Path(host.path(place)).iterdir()]


def test_a_note_lasts_as_long_as_its_run(alone: Host) -> None:
    with Note(alone, "stress", "GPU 0 RTX 5070 Ti", gpu=0) as note:
        note.tell("fill", done_ratio=0.25, left_seconds=6.0)
        (one,) = seen(alone)

        assert one["what"] == "GPU 0 RTX 5070 Ti"
        assert (one["kind"], one["phase"], one["done_ratio"]) == ("stress", "fill", 0.25)
        assert 0 <= one["left_seconds"] <= 6.0
    assert (seen(alone), files(alone)) == ([], [])


KILLED = """
import sys, time
from pathlib import Path
from tests.support.elsewhere import Elsewhere
from wslgpud.active_runs.notes import Note
with Note(Elsewhere(Path(sys.argv[1])), "guard", "make"):
    print("on", flush=True)
    time.sleep(600)
"""


def test_the_note_of_a_killed_process_is_ignored_and_removed(tmp_path: Path, alone: Host) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path / "elsewhere"], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    process.stdout.readline()
    assert [one["pid"] for one in seen(alone)] == [process.pid]
    process.send_signal(signal.SIGKILL)
    process.communicate()

    assert seen(alone) == []
    with Note(alone, "guard", "make"):
        assert [file.name for file in files(alone)] == [name_of("guard", os.getpid())]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"kind": "stress"}', '{"kind": "x", "what": "", "began_mono": 0}', "9" * 9000]
)
def test_what_is_no_note_is_passed_over(alone: Host, text: str) -> None:
    Path(alone.path(PLACES[0]), name_of("stress", os.getpid())).write_text(text)

    assert seen(alone) == []


@pytest.mark.parametrize(
    "fact",
    [
        '"pid": Infinity',
        f'"began_mono": {"9" * 400}',
        '"began_mono": -Infinity',
        '"ends_mono": 1e999',
        '"done_ratio": NaN',
        '"peak_bytes": "much"',
        '"peaks": {"ram": 1e999}',
        '"peaks": [1]',
        '"used": {"ram": "1"}',
        '"pids": ["1"]',
        '"pids": 7',
        '"worker_pid": []',
    ],
)
def test_unusable_figures_do_not_stop_the_daemon(alone: Host, fact: str) -> None:
    with Note(alone, "guard", "make"):
        (file,) = files(alone)
        assert seen(alone)
        file.write_text(file.read_text().replace("}", f", {fact}}}"))

        assert seen(alone) == []


def test_a_fact_that_nobody_knows_is_shown_nowhere(alone: Host) -> None:
    with Note(alone, "guard", "make") as note:
        note.tell("runs", facts={"x": 1, "peak_bytes": 5})

        assert [(one.get("x"), one["peak_bytes"]) for one in seen(alone)] == [(None, 5)]


def test_where_no_note_can_be_left_the_run_goes_on_and_says_so(tmp_path: Path, caplog) -> None:
    host = Elsewhere(tmp_path)
    for place in PLACES:
        Path(host.path(place)).rmdir()

    with Note(host, "guard", "make") as note:
        note.tell("runs")
    assert "this run is invisible to the daemon" in caplog.text


def test_a_stress_run_tells_its_progress_and_remaining_time(alone: Host) -> None:
    heard, seconds = [], iter((10.0, 15.0))
    with Note(alone, "stress", "GPU 0") as note:
        line = stress_told(note, WorkerPace(0.0, 0.0, began=10.0), lambda: next(seconds), heard.append)
        line({"event": "filled", "planned": 1000})
        line({"event": "beat", "phase": "patterns", "traversed": 500, "verified": 400})
        (one,) = seen(alone)

    assert [said["event"] for said in heard] == ["filled", "beat"]
    assert heard[1]["left_seconds"] == 5.0
    assert one["phase"] == "patterns"
    assert one["done_ratio"] == 0.5
    assert one["verified_bytes"] == 400
    assert one["left_seconds"] <= 5.0


@pytest.mark.slow
def test_the_daemon_sees_a_guarded_command_until_it_ends(tmp_path: Path) -> None:
    with daemon(tmp_path) as running_daemon:
        fifo = tmp_path / "fifo"
        subprocess.run(["mkfifo", fifo], check=True)
        guard = subprocess.Popen(
            [*WSLGPUD, "guard", "--timeout", "1h", "--state", running_daemon.state, "--", "cat", fifo],
            env=clean_environment(tmp_path),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:

            def found():  # other tests' guards are seen, too
                return [one for one in running_daemon.status().get("running", ()) if one["pid"] == guard.pid]

            (one,) = eventually(lambda: (seen := found()) and "left_seconds" in seen[0] and seen, "the guard")
            assert one["kind"] == "guard"
            assert one["what"] == "cat fifo"
            assert 0 < one["left_seconds"] <= 3600
        finally:
            fifo.write_text("enough")
        assert guard.wait() == 0
        assert eventually(lambda: found() == [], "the end of the guard")


def test_every_screen_says_it_in_one_line() -> None:
    one = {
        "kind": "guard",
        "what": "make -j8",
        "pid": 7,
        "phase": "waits",
        "elapsed_seconds": 192.0,
        "left_seconds": 1608.0,
        "peak_bytes": 11 << 30,
        "waiting": 2,
    }

    assert str(headline(one)) == ("guarded: make -j8: for 3 min, time limit in 27 min, peak 11 GiB, 2 compilers wait")
    assert "27 分钟后到时限" in translator("zh").text(headline(one))


@pytest.mark.parametrize("phase", [*PHASES, "some\x1b[2J new phase"])
def test_a_stress_run_is_told_by_what_it_does_now(phase: str) -> None:
    one = {
        "kind": "stress",
        "what": "GPU 0",
        "phase": phase,
        "elapsed_seconds": 3.0,
        "done_ratio": 0.25,
        "left_seconds": 9.0,
    }
    said = str(headline(one))

    assert re.fullmatch(r"stress run of GPU 0: [ -~]+, 25 % done, for 3 s, about 9 s left", said)
