"""Which compilers of a build wait for memory, from one sample to the next, and for how long."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from wslgpud.advise.guard import tree
from wslgpud.advise.guard.runner import GuardedCommand, GuardedRun
from wslgpud.advise.guard.tree import Process
from wslgpud.advise.guard.usage import MemoryLeft
from wslgpud.host import Host

GIB, MIB = 1 << 30, 1 << 20
#: a machine on which a build leaves 1 GiB free
TOTAL = 20 * GIB
FIRST, SECOND = (Process(pid, pid, "cc1plus", 500 * MIB) for pid in (11, 12))


class Build(GuardedRun):
    """A build whose compilers are expected to take 4 GiB each, and the signals that they get."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        unused: Any = None
        super().__init__(GuardedCommand(["make"], {}, pause=True, compiler_bytes=4 * GIB), Host(), unused, unused)
        self.sent: list[tuple[str, int]] = []
        self.rescued: list[int] = []
        rescue: Any = SimpleNamespace(note=self.rescued.extend)
        self._rescue = rescue
        monkeypatch.setattr(tree, "send", self._send)

    def _send(self, processes: Iterable[Process], number: signal.Signals) -> int:
        pids = [process.pid for process in processes]
        self.sent += [(number.name, pid) for pid in pids]
        return len(pids)

    def sees(self, *compilers: Process, room: int, seconds: float) -> list[tuple[str, int]]:
        """Take a sample with this much memory to give away, and return the signals that it leads to."""
        self.sent.clear()
        self._pause(compilers, MemoryLeft(GIB + room, TOTAL), seconds)
        self._looked_at = seconds
        return list(self.sent)


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Build:
    return Build(monkeypatch)


@pytest.mark.parametrize(("ended", "waits"), [(0, True), (2, True), (3, False)])
def test_after_three_compilers_their_peak_and_a_quarter_counts(build: Build, ended: int, *, waits: bool) -> None:
    build.stats.compilers, build.stats.compilers_ended = {"cc1plus": 800 * MIB}, ended

    # To 1000 MiB each of the two grows by 500.
    assert build.sees(FIRST, SECOND, room=1000 * MIB, seconds=1.0) == ([("SIGSTOP", 12)] if waits else [])


def test_room_a_byte_short_makes_the_younger_wait(build: Build) -> None:
    build.stats.compilers, build.stats.compilers_ended = {"cc1plus": 800 * MIB}, 3

    assert build.sees(FIRST, SECOND, room=1000 * MIB - 1, seconds=1.0) == [("SIGSTOP", 12)]


def test_a_waiting_compiler_is_counted_once_with_its_time(build: Build) -> None:
    waiting = SECOND._replace(stopped=True)

    assert build.sees(FIRST, SECOND, room=0, seconds=10.0) == [("SIGSTOP", 12)]
    assert build.rescued == [12], "whatever becomes of the guard, it is resumed"
    assert (build.stopped, build.stats.paused_seconds) == (1, 0.0)
    assert build.sees(FIRST, waiting, room=0, seconds=12.0) == []
    assert build.sees(FIRST, waiting, room=9 * GIB, seconds=15.0) == [("SIGCONT", 12)]
    assert build.sees(FIRST, SECOND, room=9 * GIB, seconds=20.0) == []
    assert (build.stopped, build.stats.pauses, build.stats.paused_seconds) == (0, 1, 5.0)


def test_a_compiler_that_ended_while_it_waited_waits_no_longer(build: Build) -> None:
    build.sees(FIRST, SECOND, room=0, seconds=10.0)
    build.sees(FIRST, room=0, seconds=12.0)

    assert (build.stopped, build.stats.paused_seconds) == (0, 0.0)


def test_a_compiler_stopped_by_somebody_else_is_not_resumed(build: Build) -> None:
    theirs = SECOND._replace(stopped=True)

    assert build.sees(FIRST, theirs, room=9 * GIB, seconds=10.0) == []


def test_programs_that_are_no_compilers_never_wait(build: Build) -> None:
    assert build.sees(FIRST, SECOND._replace(name="make"), room=0, seconds=10.0) == []
