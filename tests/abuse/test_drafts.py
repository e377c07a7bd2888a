"""Files written by commands that root runs in a folder of a user who knows the files' names in advance."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.store import made
from wslgpud.advise.doctor import bundle
from wslgpud.app.catalogue import catalogue
from wslgpud.cli import app
from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.model import Level
from wslgpud.sampling.capture import capture
from wslgpud.security import safe_files
from wslgpud.series.plots import plot_replays
from wslgpud.store import Store


@pytest.fixture
def machine(tmp_path: Path) -> Host:
    """A machine with nothing to read, which is quick."""
    root = tmp_path / "machine"
    (root / "proc").mkdir(parents=True)
    return Host(root)


def _bundle(file: Path) -> None:
    bundle.write(file, Host(file.parent.parent / "machine"), Config(), [])


def _picture(file: Path) -> None:
    pytest.importorskip("matplotlib")
    points = [(0.0, 1.0, None, Level.OK), (1.0, 0.5, None, Level.OK)]
    plot_replays([("x", {"ram": points})], file)


def _export(file: Path) -> None:
    state = file.parent.parent / "state"
    with Store(state / "wslgpud.db") as store:
        store.append(made.snapshot(made.T0, {catalogue()["memory_available_bytes"]: 1}))
    done = CliRunner().invoke(app, ["export", str(file), "--force", "--state", str(state)])
    assert done.exit_code == 0, done.output


WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "the doctor's archive": ("help.tar.gz", _bundle),
    "a picture": ("peaks.png", _picture),
    "an export": ("history.csv", _export),
}


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("name", "write"), WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("ending", ["", ".part"])
def test_a_link_that_waits_there_leads_to_no_write_elsewhere(
    tmp_path: Path, name: str, write: Callable[[Path], None], ending: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("root's")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / f"{name}{ending}").symlink_to(victim)

    write(theirs / name)

    assert victim.read_text() == "root's"
    assert (theirs / name).is_file()
    assert not (theirs / name).is_symlink()
    assert {path.name for path in theirs.iterdir()} == {name, f"{name}{ending}"}


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("name", "write"), WRITERS.values(), ids=WRITERS)
def test_a_pipe_that_waits_there_holds_nobody_up(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    (tmp_path / "theirs").mkdir()
    for ending in ("", ".part"):
        os.mkfifo(tmp_path / "theirs" / f"{name}{ending}")

    write(tmp_path / "theirs" / name)

    assert (tmp_path / "theirs" / name).is_file()


def test_a_draft_swapped_for_a_link_is_still_written(tmp_path: Path) -> None:
    victim, target = tmp_path / "victim", tmp_path / "theirs" / "file"
    target.parent.mkdir()
    victim.write_text("root's")
    with safe_files.draft(target) as draft:
        (seen,) = target.parent.iterdir()
        seen.unlink()
        seen.symlink_to(victim)
        draft.write_text("ours")

    assert victim.read_text() == "root's"


def test_a_folder_swapped_for_a_link_receives_no_machine(
    machine: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, target, make = tmp_path / "victim", tmp_path / "captured", Path.mkdir
    victim.mkdir()

    def swapped(path: Path, *arguments: Any, **options: Any) -> None:
        make(path, *arguments, **options)
        if path == target:
            path.rename(tmp_path / "aside")
            path.symlink_to(victim)

    monkeypatch.setattr(Path, "mkdir", swapped)
    with pytest.raises(NotADirectoryError):
        capture(machine, target)

    assert [*victim.iterdir()] == []


def test_what_fails_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("before")

    def fail() -> None:
        with safe_files.draft(target) as draft:
            draft.write_text("half of")
            raise LookupError

    with pytest.raises(LookupError):
        fail()

    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
