"""What runs now is known to whoever looks, and nothing that has ended is."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import WSLGPUD, clean_environment, daemon, eventually
from tests.support.elsewhere import Elsewhere, hearing, seen
from wslgpud.active_runs import PHASES, AnnouncedRuns, Note, Noted, headline
from wslgpud.host import Host
from wslgpud.sources.procfs import Peer
from wslgpud.stress.stress_run import WorkerPace
from wslgpud.stress.stress_run import reporting as stress_told
from wslgpud.training import companion
from wslgpud.words import translator


@pytest.fixture
def alone(tmp_path: Path) -> Elsewhere:
    """This machine without what other tests run meanwhile."""
    return Elsewhere(tmp_path / "elsewhere")


def test_a_note_lasts_as_long_as_its_run(alone: Elsewhere) -> None:
    with alone.note("stress", "GPU 0 RTX 5070 Ti", gpu=0) as note:
        note.tell("fill", done_ratio=0.25, left_seconds=6.0)
        (one,) = seen(alone)

        assert one["what"] == "GPU 0 RTX 5070 Ti"
        assert (one["kind"], one["phase"], one["done_ratio"]) == ("stress", "fill", 0.25)
        assert 0 <= one["left_seconds"] <= 6.0
    eventually(lambda: not seen(alone), "the end of the run")


KILLED = """
import os, sys, time
from pathlib import Path
from wslgpud.active_runs import Note
from wslgpud.host import Host
with Note(Host(), "guard", "make", state_folder=Path(sys.argv[1])):
    if os.fork() == 0: time.sleep(600)  # it keeps the connection open
    print("on", flush=True)
    time.sleep(600)
"""


def test_a_run_ends_with_its_process_if_a_fork_stays_connected(alone: Elsewhere) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, alone.state],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )
    process.stdout.readline()
    assert [one["pid"] for one in seen(alone)] == [process.pid]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()

    assert seen(alone) == []
    os.killpg(process.pid, signal.SIGKILL)


def test_a_run_is_known_to_a_daemon_that_starts_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companion, "CONNECT_SECONDS", 0.0)
    with Note(Host(), "guard", "make", state_folder=tmp_path) as note:
        for _ in range(2):  # and to the next one
            with hearing(tmp_path) as runs:

                def known(runs: AnnouncedRuns = runs) -> list[Noted]:
                    note.tell(f"runs at {time.monotonic()}")
                    return runs.read()

                assert [one.who.pid for one in eventually(known, "the run")] == [os.getpid()]


RUN = {"kind": "guard", "what": "make", "who": "make", "phase": "", "began_mono": 1.0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "x"},
        {"began_mono": -math.inf},
        {"ends_mono": math.inf},
        {"done_ratio": math.nan},
        {"peak_bytes": "much"},
        {"peaks": {"ram": math.inf}},
        {"peaks": [1]},
        {"used": {"ram": "1"}},
        {"pids": ["1"]},
        {"pids": 7},
        {"worker_pid": []},
    ],
    ids=str,
)
def test_unusable_figures_are_refused(alone: Elsewhere, wrong: dict[str, Any]) -> None:
    me = Peer(os.getpid(), os.geteuid())
    with pytest.raises(ValueError, match="not a note"):
        alone.runs.announce(me, RUN | wrong)

    assert alone.runs.read() == []
    alone.runs.announce(me, RUN)
    assert len(alone.runs.read()) == 1


def test_a_fact_that_nobody_knows_is_shown_nowhere(alone: Elsewhere) -> None:
    with alone.note("guard", "make") as note:
        note.tell("runs", facts={"x": 1, "peak_bytes": 5})

        assert [(one.get("x"), one["peak_bytes"]) for one in seen(alone)] == [(None, 5)]


def test_without_a_daemon_a_run_goes_on(tmp_path: Path) -> None:
    with Note(Host(), "guard", "make", state_folder=tmp_path) as note:
        note.tell("runs")


def test_a_stress_run_tells_its_progress_and_remaining_time(alone: Elsewhere) -> None:
    heard, seconds = [], iter((10.0, 15.0))
    with alone.note("stress", "GPU 0") as note:
        line = stress_told(note, WorkerPace(0.0, began=10.0), lambda: next(seconds), heard.append)
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
