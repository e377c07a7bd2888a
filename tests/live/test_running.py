"""What runs now is known to whoever looks, and nothing that has ended is."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemons import WSLGPUD, clean_environment, daemon, eventually
from wslgpud.cli.console import Console
from wslgpud.cli.screen import print_status, told
from wslgpud.host import Host
from wslgpud.running import FOLDER, PREFIX, Note, running
from wslgpud.sources.announced import PLACES
from wslgpud.stress.progress import Pace
from wslgpud.stress.run import told as stress_told


class Elsewhere(Host):
    """This machine, whose shared folders lie elsewhere."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._elsewhere = str(root)

    def path(self, path: str) -> str:
        return self._elsewhere + path if path in PLACES else super().path(path)


@pytest.fixture
def alone(tmp_path: Path) -> Host:
    """This machine without what other tests run meanwhile."""
    return Elsewhere(tmp_path / "elsewhere")


def test_a_note_lasts_as_long_as_its_run(tmp_path: Path, alone: Host) -> None:
    with Note(tmp_path, Host(), "stress", "GPU 0 RTX 5070 Ti") as note:
        note.say("fill", done_ratio=0.25, left_seconds=6.0)
        (one,) = running(tmp_path, alone)

        assert one["what"] == "GPU 0 RTX 5070 Ti"
        assert (one["kind"], one["phase"], one["done_ratio"]) == ("stress", "fill", 0.25)
        assert 0 <= one["left_seconds"] <= 6.0
    assert running(tmp_path, alone) == []


def test_the_note_of_a_process_that_was_killed_does_not_count_and_is_swept_away(
    tmp_path: Path, alone: Host
) -> None:
    code = f"""
import pathlib, time
from wslgpud.host import Host
from wslgpud.running import Note
with Note(pathlib.Path({str(tmp_path)!r}), Host(), "guard", "make"):
    print("on", flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    process.stdout.readline()
    assert [one["pid"] for one in running(tmp_path, alone)] == [process.pid]
    process.send_signal(signal.SIGKILL)
    process.communicate()

    assert running(tmp_path, alone) == []
    with Note(tmp_path, Host(), "guard", "make"):
        assert len(list((tmp_path / FOLDER).glob("*.json"))) == 1


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"kind": "stress"}', '{"kind": "x", "what": "", "began_mono": 0}', "9" * 9000]
)
def test_what_is_no_note_is_passed_over(tmp_path: Path, alone: Host, text: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "stress-1.json").write_text(text)

    assert running(tmp_path, alone) == []


@pytest.mark.parametrize(
    "fact",
    ['"pid": Infinity', f'"began_mono": {"9" * 400}', '"began_mono": -Infinity', '"ends_mono": 1e999',
     '"done_ratio": NaN', '"peak_bytes": "much"', '"x": NaN'],
)  # fmt: skip
def test_figures_that_nobody_can_reckon_with_do_not_stop_the_daemon(
    tmp_path: Path, alone: Host, fact: str
) -> None:
    with Note(tmp_path, alone, "guard", "make"):
        (file,) = (tmp_path / FOLDER).glob("*.json")
        assert running(tmp_path, alone)
        file.write_text(file.read_text().replace("}", f", {fact}}}"))

        assert running(tmp_path, alone) == []


def test_a_folder_that_takes_no_notes_does_not_stop_the_run(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file where the folder should be")

    with Note(tmp_path, Host(), "guard", "make") as note:
        note.say("runs")


def test_a_stress_run_tells_how_far_it_is_and_what_is_left_if_it_goes_on_so(
    tmp_path: Path, alone: Host
) -> None:
    heard, seconds = [], iter((10.0, 15.0))
    with Note(tmp_path, Host(), "stress", "GPU 0") as note:
        line = stress_told(note, Pace(0.0, 0.0, began=10.0), lambda: next(seconds), heard.append)
        line({"event": "filled", "planned": 1000})
        line({"event": "beat", "phase": "patterns", "traversed": 500, "verified": 400})
        (one,) = running(tmp_path, alone)

    assert [said["event"] for said in heard] == ["filled", "beat"]
    assert heard[1]["left_seconds"] == 5.0
    assert one["phase"] == "patterns"
    assert one["done_ratio"] == 0.5
    assert one["verified_bytes"] == 400
    assert one["left_seconds"] <= 5.0


def test_a_guarded_command_is_seen_by_the_daemon_and_gone_when_it_ends(tmp_path: Path) -> None:
    with daemon(tmp_path) as running_daemon:
        fifo = tmp_path / "fifo"
        subprocess.run(["mkfifo", fifo], check=True)
        guard = subprocess.Popen(
            [*WSLGPUD, "guard", "--timeout", "1h", "--state", running_daemon.state, "--", "cat", fifo],
            env=clean_environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:

            def seen():  # other tests' guards are seen, too
                return [one for one in running_daemon.status().get("running", ()) if one["pid"] == guard.pid]

            (one,) = eventually(
                lambda: (found := seen()) and "left_seconds" in found[0] and found, "the guard"
            )
            assert one["kind"] == "guard"
            assert one["what"] == "cat fifo"
            assert 0 < one["left_seconds"] <= 3600
        finally:
            fifo.write_text("enough")
        assert guard.wait() == 0
        assert eventually(lambda: seen() == [], "the end of the guard")


def test_a_guard_of_any_user_is_seen_whatever_state_folders_they_have(tmp_path: Path) -> None:
    with Note(tmp_path / "somebodys", Host(), "guard", "make", shared=True) as note:
        (one,) = (one for one in running(tmp_path / "the daemons", Host()) if one["pid"] == os.getpid())

        assert (one["kind"], one["what"]) == ("guard", "make")
        assert note.seconds >= 0
    assert not [one for one in running(tmp_path, Host()) if one["pid"] == os.getpid()]


def test_where_everybody_may_write_neither_links_nor_pipes_are_read(tmp_path: Path) -> None:
    place = tmp_path / PLACES[0].lstrip("/")
    place.mkdir(parents=True)
    os.mkfifo(place / f"{PREFIX}guard-1.json")
    with Note(tmp_path, Host(), "stress", "GPU 0"):
        (real,) = (tmp_path / FOLDER).glob("*.json")
        (place / f"{PREFIX}guard-2.json").symlink_to(real)

        found = running(tmp_path / "another", Elsewhere(tmp_path))

    assert found == []


def test_status_and_monitor_say_it_in_one_line() -> None:
    one = {"kind": "guard", "what": "make -j8", "pid": 7, "phase": "waits", "elapsed_seconds": 192.0,
           "left_seconds": 1608.0, "peak_bytes": 11 << 30, "waiting": 2}  # fmt: skip

    assert told(one).plain == (
        "guard: make -j8  for 3 min · time is up in 27 min · peak 11 GB · 2 compilers wait"
    )


def test_status_shows_what_runs_and_how_the_last_test_of_the_memory_ended() -> None:
    document = json.loads((Path(__file__).parent.parent / "gpu/status-warning.json").read_text())
    document["running"] = [
        {"kind": "stress", "what": "GPU 0", "pid": 1, "phase": "fill", "elapsed_seconds": 3.0}
    ]
    document["stress"] = [{"at": "2026-11-21T03:00:00+00:00", "gpu": 0, "uuid": "u", "verdict": "findings",
                           "usable_bytes": 14 << 30, "note": "write bandwidth fell"}]  # fmt: skip
    console = Console(width=120, file=io.StringIO())
    print_status(document, console)
    text = console.file.getvalue()

    assert "stress run of GPU 0  filling · for 3 s" in text
    assert "GPU 0 findings" in text
    assert "14 GB usable: write bandwidth fell" in text
