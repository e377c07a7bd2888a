"""The companion counts and reports steps; whatever happens to it, the training continues."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.accounts import needs_root
from tests.support.daemons import eventually
from tests.support.elsewhere import hearing
from wslgpud.active_runs import AnnouncedRuns
from wslgpud.training import companion
from wslgpud.training.companion import Companion


class Optimizer:
    """Something that steps."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder in which this user's daemon would be."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(companion, "SYSTEM_STATE", str(tmp_path / "none"))
    for name in ("TELL_SECONDS", "LOOK_SECONDS", "READ_SECONDS", "CONNECT_SECONDS"):
        monkeypatch.setattr(companion, name, 0.01)
    return tmp_path / "wslgpud"


@pytest.fixture
def runs(here: Path) -> Iterator[AnnouncedRuns]:
    with hearing(here) as heard:
        yield heard


@pytest.fixture
def watching(runs: AnnouncedRuns) -> Iterator[Companion]:
    one = Companion()
    yield one
    one.close()


def told(runs: AnnouncedRuns) -> dict[str, Any] | None:
    return next((dict(run.document) for run in runs.read()), None)


def steps_of(runs: AnnouncedRuns) -> int:
    document = told(runs)
    return 0 if document is None else int(document["steps"])


def test_the_daemon_believes_what_it_tells_of_itself(watching: Companion, runs: AnnouncedRuns) -> None:
    optimizer = Optimizer()

    def read() -> dict[str, Any] | None:
        watching.stepped(optimizer)
        document = told(runs)
        return document if document and document["memory"] else None

    document = eventually(read, "a note with figures")
    (memory,) = document["memory"]
    assert (document["kind"], document["pid"], memory["name"]) == ("training", os.getpid(), "ram")
    assert 1 << 20 < memory["used"] < 1 << 40
    watching.close()
    eventually(lambda: told(runs) is None, "the end of the run")


def test_optimizers_that_step_in_turns_make_one_step(watching: Companion, runs: AnnouncedRuns) -> None:
    generator, critic = Optimizer(), Optimizer()
    for _ in range(5):
        watching.stepped(generator)
        watching.stepped(critic)

    assert watching.steps == 5
    del generator
    watching.stepped(critic)
    assert watching.steps == 6


@pytest.mark.usefixtures("here")
def test_without_a_daemon_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    one, optimizer = Companion(), Optimizer()
    reads: list[int] = []
    monkeypatch.setattr(one, "_read", lambda: reads.append(1))
    for _ in range(100):
        one.stepped(optimizer)

    assert (one.steps, reads) == (100, [])
    one.close()


def test_each_daemon_that_starts_is_told_again(here: Path) -> None:
    one, optimizer = Companion(), Optimizer()
    for _ in range(2):
        with hearing(here) as runs:
            eventually(lambda runs=runs: one.stepped(optimizer) or told(runs), "the training")
    one.close()


def test_a_daemon_that_hangs_holds_up_no_step(here: Path) -> None:
    here.mkdir()
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(here / companion.SOCKET))
        deaf.listen(1)
        one, optimizer = Companion(), Optimizer()
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            one.stepped(optimizer)
        one.close()

    assert one.steps > 1000


def test_whatever_is_wrong_in_it_the_training_goes_on(watching: Companion, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("a driver says no")

    monkeypatch.setattr(watching, "_read", broken)
    optimizer = Optimizer()
    for _ in range(10):
        watching.stepped(optimizer)

    assert watching.steps == 1  # it has stopped itself


def test_the_hook_is_called_between_two_steps_once_per_level(watching: Companion, runs: AnnouncedRuns) -> None:
    optimizer, calls = Optimizer(), list[tuple[str, float | None]]()
    watching.on_warning(lambda level, seconds: calls.append((level, seconds)))
    for level, seconds in (("warning", 40.0), ("warning", 39.0), ("critical", None)):
        runs.warned = {os.getpid(): (level, seconds)}
        eventually(lambda level=level: watching.stepped(optimizer) or (calls and calls[-1][0] == level), level)

    assert [level for level, _ in calls] == ["warning", "critical"]
    assert calls[-1] == ("critical", None)


def test_a_hook_that_fails_is_heard_of_and_ends_nothing(
    watching: Companion, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    watching.on_warning(full)
    watching._warned = ("critical", 3.0)
    optimizer = Optimizer()
    watching.stepped(optimizer)
    watching.stepped(optimizer)

    assert "No space left on device" in capsys.readouterr().err
    assert watching.steps == 2


@needs_root
def test_no_other_users_daemon_is_believed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hearing(here):
        companion._connected(str(here)).close()
        monkeypatch.setattr(companion, "_trusted", lambda: (12345,))
        with pytest.raises(PermissionError, match="another user's"):
            companion._connected(str(here))


FORKS = """
import os, sys, time
from wslgpud.training import companion
companion.TELL_SECONDS = companion.CONNECT_SECONDS = 0.01
class Optimizer: pass
one, optimizer = companion.Companion(), Optimizer()
one.stepped(optimizer)
while not one._line.answer: time.sleep(0.01)
if os.fork() == 0:
    for _ in range(100): one.stepped(optimizer)
    sys.exit()  # and so does what was registered for the end
os.wait()
print(flush=True)
input()
os._exit(0)
"""


def test_a_forked_loader_worker_does_not_end_the_run(here: Path) -> None:
    with hearing(here) as runs:
        program = subprocess.Popen(
            [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)
        )
        program.stdout.readline()
        known = [run.who.pid for run in runs.read()]
        program.communicate(b"\n")

    assert program.pid in known


def test_what_a_card_says_is_told_without_its_peak_being_reset(watching: Companion, monkeypatch) -> None:
    """Of a torch that has a card; the figures have its names."""
    figures = {"allocated_bytes": {"all": {"current": 7 << 30, "peak": 9 << 30}}}
    figures |= {"reserved_bytes": {"all": {"current": 10 << 30}}, "inactive_split_bytes": {"all": {"current": 1 << 30}}}
    stats = {**figures, "num_alloc_retries": 2, "num_ooms": 0}
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        memory_stats_as_nested_dict=lambda card: stats,
        get_device_properties=lambda card: SimpleNamespace(uuid="1-2"),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    watching.steps = 1
    watching._read()
    memory = watching._memory["GPU-1-2"]

    assert watching._memory.keys() == {"ram", "GPU-1-2"}
    assert {name: memory[name] for name in ("used", "peak", "reserved", "pieces", "retries", "failures")} == {
        "used": 7 << 30,
        "peak": 9 << 30,
        "reserved": 10 << 30,
        "pieces": 1 << 30,
        "retries": 2,
        "failures": 0,
    }


def test_a_step_that_is_only_counted_costs_next_to_nothing(watching: Companion, monkeypatch) -> None:
    """No wall clock: by how many of our own lines are run."""
    monkeypatch.setattr(companion, "READ_SECONDS", 3600.0)
    optimizer, lines = Optimizer(), list[int]()
    watching.stepped(optimizer)
    watching._due = time.monotonic() + 3600

    def trace(frame, event, argument):
        lines.append(frame.f_lineno)
        return trace

    sys.settrace(trace)
    watching.stepped(optimizer)
    sys.settrace(None)

    assert len(lines) <= 12


def test_the_largest_note_is_one_that_the_daemon_believes(watching: Companion, runs: AnnouncedRuns) -> None:
    """Of a training on as many cards as are looked at, for an hour, with all that a framework tells."""
    for name in ("ram", *(f"GPU-{card:032x}" for card in range(companion.MAX_CARDS))):
        for step in range(10_000_000, 10_060_000):
            watching._note(name, 1 << 40, 1 << 41, {})
            watching.steps = step
        watching._memory[name] |= {"reserved": 1 << 41, "pieces": 1 << 40, "retries": 1 << 20, "failures": 1 << 20}
    watching.facts |= {"batch": 1 << 20, "tokens": 1 << 50, "length": 1 << 20, "longest": 1 << 20, "pinned": 1 << 40}
    watching._line.tell(watching._document(0.0, [(0.0, 0), (60.0, 100)]))

    document = told(runs)
    assert document is not None
    assert len(document["memory"]) == 1 + companion.MAX_CARDS


def test_pinned_memory_is_told_where_torch_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def torch(**more: Any) -> None:
        monkeypatch.setitem(
            sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True, **more))
        )

    torch(host_memory_stats=lambda: {"allocated_bytes.current": 3 << 20})
    assert companion._pinned() == {"pinned": 3 << 20}
    torch(host_memory_stats=dict)
    assert companion._pinned() == {}
    torch()
    assert companion._pinned() == {}


def test_the_fastest_minute_is_what_a_step_usually_takes() -> None:
    one = Companion()

    def paced(seconds: float, readings: int) -> dict[str, Any]:
        return one._document(0.0, [(second, int(second / seconds)) for second in range(0, readings * 10, 10)])

    assert "usual_step_seconds" not in paced(2.0, 20)  # too short to compare with
    assert paced(2.0, 60)["usual_step_seconds"] == pytest.approx(2.0, rel=0.01)
    assert paced(7.0, 60)["usual_step_seconds"] == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/home/me/train.py", "--lr"], "train.py"),
        (["-c"], "python"),
        (["-m"], "python"),
        ([""], "python"),
        ([], "python"),
    ],
    ids=["a script", "a command", "a module that loads", "a prompt", "embedded"],
)
def test_a_training_is_called_by_the_name_of_its_script(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], name: str
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    document = Companion()._document(0.0, [(0.0, 0), (10.0, 5)])

    assert (document["what"], document["who"]) == (name, name)
