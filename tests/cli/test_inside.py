"""``wslgpud inside``, ``record`` and ``capture``: what they start, and the files that they write."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from wslgpud import training
from wslgpud.cli import app


def test_inside_turns_into_the_training_with_the_chosen_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execvpe", lambda *order: started.append(order))
    CliRunner().invoke(app, ["inside", "--on-warning", "save,drop-cache", "--", "python", "train.py", "--fast"])
    ((program, command, environment),) = started

    assert (program, command) == ("python", ["python", "train.py", "--fast"])
    assert environment == training.environment(os.environ, ["save", "drop-cache"])


def test_an_option_of_the_trainings_own_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execvpe", lambda _, command, __: started.append(command))
    CliRunner().invoke(app, ["inside", "python", "train.py", "--plot", "loss"])

    assert started == [["python", "train.py", "--plot", "loss"]]


@pytest.mark.parametrize("actions", ["nope", "save,nope", "nope,zzz"])
def test_an_unknown_action_is_refused_before_anything_runs(actions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "execvpe", lambda *_: pytest.fail("it runs"))
    done = CliRunner().invoke(app, ["inside", "--on-warning", actions, "--", "true"])

    assert done.exit_code == 2
    assert "--on-warning nope: write save, drop-cache, halve-batch, with commas between" in done.output


def test_a_program_that_cannot_be_started_is_named() -> None:
    done = CliRunner().invoke(app, ["inside", "--", "/no/such/program"])

    assert (done.exit_code, "cannot start /no/such/program: " in done.output) == (2, True)


@pytest.fixture
def _interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A recording that Ctrl-C ends before its first sample."""

    class Pipeline:
        def __init__(self, *_: Any) -> None:
            pass

        def tick(self) -> None:
            raise KeyboardInterrupt

        def close(self) -> None:
            pass

    monkeypatch.setattr("wslgpud.sampling.assessor.Assessor", Pipeline)
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_interrupted")
@pytest.mark.parametrize(("name", "begins"), [("a.jsonl.gz", b"\x1f\x8b"), ("a.jsonl", b"")])
def test_a_recording_is_compressed_if_its_name_says_so(name: str, begins: bytes, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["record", str(tmp_path / name)])

    assert done.output == f"0 samples in {tmp_path / name}\n"
    assert (tmp_path / name).read_bytes()[:2] == begins


def test_a_machine_is_captured_into_a_new_folder_only(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["capture", str(tmp_path)])

    assert (done.exit_code, "exists already; name a new folder" in done.output) == (2, True)
    assert list(tmp_path.iterdir()) == []
