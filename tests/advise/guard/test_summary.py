"""What guard says of a run: its line while it lasts, and its summary, word by word."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from wslgpud.advise.guard.runner import GuardedCommand
from wslgpud.advise.guard.summary import clock as clock_of
from wslgpud.advise.guard.usage import CardUse, RunStats
from wslgpud.cli.common import Fault
from wslgpud.cli.guard import _remember, _signal, _sum_up
from wslgpud.words import Message

GIB = 1 << 30
LOG = Path("/log")


def card(index: int, start_gib: int, peak_gib: int) -> CardUse:
    made = CardUse(index, f"GPU-{index}", 16 * GIB, start_gib * GIB)
    made.note(start_gib * GIB)
    made.note(peak_gib * GIB)
    return made


def summary(stats: RunStats, capfd: pytest.CaptureFixture[str], **environment: str) -> list[str]:
    _sum_up(stats, GuardedCommand(["make", "all"], environment), LOG)
    return [line.removeprefix("[guard] ") for line in capfd.readouterr().err.splitlines()]


def test_a_run_is_summed_up_with_all_that_is_known(capfd: pytest.CaptureFixture[str]) -> None:
    stats = RunStats(
        seconds=3725.9,
        code=137,
        peak_bytes=5 * GIB,
        least_available_bytes=3 * GIB,
        least_at_seconds=75.0,
        total_bytes=24 * GIB,
        biggest=("cc1plus", 2 * GIB),
        cards=[card(0, 0, 4), card(1, 2, 9), card(2, 4, 3)],
        explanation=(Message("by its last lines: out of memory"),),
        pauses=2,
        paused_seconds=30.0,
        oom_kills=1,
        saved=[("train.py", 40.0)],
    )

    assert summary(stats, capfd, MAX_JOBS="8") == [
        "make all: exit status 137 after 1:02:05",
        "peak RAM 5.0 GiB",
        "least left: 3.0 of 24 GiB (12 %), after 0:01:15",
        "biggest program: cc1plus, 2.0 GiB",
        "peak VRAM 4.0 GiB on GPU 0, 4.0 GiB more than before",
        "peak VRAM 9.0 GiB on GPU 1, 7.0 GiB more than before",
        "peak VRAM 4.0 GiB on GPU 2, 0 KiB more than before",
        "compilers had to wait 2 times, 30 s altogether",
        "memory was short after 40 s: asked train.py to save its work",
        "the kernel killed 1 process for lack of memory: try --pause, or --jobs 4",
        "by its last lines: out of memory",
        "log: /log",
    ]


def test_a_run_that_ended_at_once_says_only_so(capfd: pytest.CaptureFixture[str]) -> None:
    assert summary(RunStats(), capfd) == ["make all: exit status 0 after 0:00:00", "log: /log"]
    short = summary(RunStats(least_available_bytes=GIB, total_bytes=4 * GIB), capfd)
    assert short[1:3] == ["peak RAM unknown: it ended too soon", "least left: 1.0 of 4.0 GiB (25 %), after 0:00:00"]
    assert summary(RunStats(timed_out=True, seconds=60.0), capfd)[0] == "make all: time limit reached after 0:01:00"
    once = summary(RunStats(pauses=1, paused_seconds=4.0, oom_kills=2, code=9), capfd)
    assert once[1:3] == [
        "compilers had to wait 1 time, 4 s altogether",
        "the kernel killed 2 processes for lack of memory: try --pause, or --jobs 1",
    ]


@pytest.mark.parametrize(("jobs", "advised"), [("9", 4), ("2", 1), ("1", 1), ("", 1), ("0", 1)])
def test_after_a_kill_half_the_jobs_are_advised(jobs: str, advised: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert summary(RunStats(oom_kills=1), capfd, MAX_JOBS=jobs)[1].endswith(f"or --jobs {advised}")


@pytest.mark.parametrize(("seconds", "clock"), [(0.9, "0:00:00"), (3599.0, "0:59:59"), (7325.0, "2:02:05")])
def test_time_is_told_as_a_clock_does(seconds: float, clock: str) -> None:
    assert clock_of(seconds) == clock


def test_a_signal_has_its_name_with_or_without_sig_in_any_case() -> None:
    assert _signal("usr1") == _signal("SIGUSR1") == signal.SIGUSR1
    assert _signal("") is None
    with pytest.raises(Fault, match="there is no such signal"):
        _signal("nonsense")


def test_a_killed_run_keeps_the_greater_peak_of_both_runs(tmp_path: Path) -> None:
    command = GuardedCommand(["make"], {"MAX_JOBS": "4"})

    def remembered(stats: RunStats) -> dict[str, Any]:
        (facts,) = _remember(tmp_path, command, stats).commands.values()
        return dict(facts)

    first = remembered(RunStats(peak_bytes=5 * GIB, compilers={"cc1plus": GIB}, compilers_ended=9))
    assert (first["peak_bytes"], first["jobs"], first["compiler_bytes"]) == (5 * GIB, 4, GIB)
    killed = remembered(RunStats(code=137, peak_bytes=3 * GIB, oom_kills=1, compilers={"cc1plus": 9 * GIB}))
    assert (killed["peak_bytes"], killed["compiler_bytes"]) == (5 * GIB, GIB)
    assert remembered(RunStats(code=137, peak_bytes=6 * GIB, oom_kills=1))["peak_bytes"] == 6 * GIB
