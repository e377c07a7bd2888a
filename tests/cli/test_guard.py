"""``wslgpud guard``: the number of jobs, the warning by earlier runs, and the line below a running command."""

from __future__ import annotations

import io
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.page.stage import TRACES
from wslgpud import training
from wslgpud.advise.guard import past_runs, tree
from wslgpud.advise.guard.past_runs import JobsError, PastRuns, jobs_for
from wslgpud.advise.guard.runner import GuardedCommand
from wslgpud.advise.guard.usage import CardUse, MemoryLeft, RunStats, VramWatch, memory_left, most_bytes
from wslgpud.cli import app
from wslgpud.cli.guard import _line, _run
from wslgpud.config import Config, Sampling
from wslgpud.host import Host, RecordedHost
from wslgpud.model import GpuSample
from wslgpud.words.units import size

GIB = 1 << 30
HOSTS = TRACES.parent / "hosts"
MACHINE = RecordedHost(HOSTS / "two-gpus")
CARD = "GPU-00000000-0000-0000-0000-000000000001"
BUILD = ["make", "all"]


@pytest.fixture
def cards() -> Iterator[VramWatch]:
    """Two recorded cards, of which the first has 5.5 GiB free and the program took 2 GiB."""
    with VramWatch(MACHINE, Config(sampling=Sampling(gpu_timeout_seconds=30.0))) as found:
        yield found


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line.removeprefix("[guard] ") for line in capfd.readouterr().err.splitlines()]


def test_as_many_jobs_as_fit_are_advised_with_expected_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(200)))
    left = memory_left(MACHINE)
    for known, how in ((PastRuns(), "expected"), (PastRuns({"make all": {"compiler_bytes": GIB}}), "measured")):
        expected, environment, message = jobs_for(BUILD, MACHINE, "auto", known, os.environ)
        fitting = past_runs.jobs_that_fit(left.available_bytes, left.total_bytes, expected, 200)
        assert 1 < fitting < 200
        assert environment["MAX_JOBS"] == str(fitting)
        amounts = f"{size(left.available_bytes)} free and {size(expected)} {how} for each"
        assert str(message) == f"jobs: {fitting} of 200, {amounts}"


def test_a_given_number_of_jobs_is_used_and_off_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAX_JOBS", raising=False)

    _, environment, message = jobs_for(BUILD, MACHINE, "3", PastRuns(), os.environ)

    assert environment["MAX_JOBS"] == "3"
    assert str(message).startswith("jobs: 3 of ")
    assert jobs_for(BUILD, MACHINE, "off", PastRuns(), os.environ)[1:] == (dict(os.environ), "")
    for wrong in ("0", "-1", "many", ""):
        with pytest.raises(JobsError, match="write a number, auto or off"):
            jobs_for(BUILD, MACHINE, wrong, PastRuns(), os.environ)


@pytest.mark.parametrize(
    ("ram", "vram", "warned"),
    [
        (1, 5 * GIB, []),
        (most_bytes(Host()), 0, ["memory"]),
        (1, 6 * GIB, ["VRAM"]),
        (1, 25 * GIB, []),
        (1 << 60, 0, []),
    ],
)
def test_a_command_that_once_took_more_than_is_free_is_warned_of(
    ram: int, vram: int, warned: list[str], cards: VramWatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = GuardedCommand(["true"], dict(os.environ))
    known = PastRuns({past_runs.key_of(command.command): {"peak_bytes": ram, "vram_bytes": {CARD: vram}}})
    stats = _run(command, Host(), io.BytesIO(), cards, known, tmp_path, inside=False)
    told = said(capfd)

    assert stats.code == 0
    assert [line.partition(" of ")[2].partition(";")[0] for line in told] == warned
    if warned == ["VRAM"]:
        assert told == ["an earlier run took 6.0 GiB of VRAM; 5.5 GiB is free now"]


def line(columns: int | None, monkeypatch: pytest.MonkeyPatch, limit: float | None = None, **more: Any) -> str:
    """Return the line on a terminal of this width, or without one."""

    def width(_: int) -> os.terminal_size:
        if columns is None:
            raise OSError
        return os.terminal_size((columns, 24))

    monkeypatch.setattr(os, "get_terminal_size", width)
    run: Any = types.SimpleNamespace(guarded=GuardedCommand(BUILD, {}, limit), stopped=more.pop("stopped", 0))
    vram: Any = types.SimpleNamespace(cards=[CardUse(1, CARD, 8 * GIB, 0, 3 * GIB, 4 * GIB)])
    return _line(RunStats(seconds=65.0, **more), MemoryLeft(7 * GIB, 8 * GIB), run, vram)


def test_the_status_line_has_time_memory_peaks_and_waiting_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = "[guard] 0:01:05 of 0:02:00 · 7.0 GiB left · peak 1.0 GiB · GPU 1 3.0 GiB, peak 4.0 GiB"

    assert line(200, monkeypatch, 120.0, peak_bytes=GIB, stopped=2) == f"{whole} · 2 compilers wait"
    assert line(200, monkeypatch) == "[guard] 0:01:05 · 7.0 GiB left · GPU 1 3.0 GiB, peak 4.0 GiB"


@pytest.mark.parametrize(("columns", "cells"), [(20, 19), (80, 79), (0, 79), (None, 79), (2, 1), (1, 1)])
def test_the_line_never_fills_the_terminals_last_column(
    columns: int | None, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(line(columns, monkeypatch, 120.0, peak_bytes=GIB, stopped=2)) == cells


def test_the_peak_vram_of_a_fallback_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, peaks = iter([9 * GIB, 3 * GIB]), list[int]()

    def run(_guarded: GuardedCommand, _host: Host, _log: io.BytesIO, vram: VramWatch, *_: Any, **__: Any) -> RunStats:
        vram._note(GpuSample(99, "GPU-99", "RTX", 16 * GIB, next(used)))
        peaks.extend(card.peak_bytes for card in vram.cards if card.index == 99)
        return RunStats(code=3)

    monkeypatch.setattr("wslgpud.cli.guard._run", run)
    monkeypatch.setattr(tree, "adopt_orphans", lambda: None)
    CliRunner().invoke(app, ["guard", "--state", str(tmp_path), "--fallback", "plan b", "--", "make"])

    assert peaks == [9 * GIB, 3 * GIB]


@pytest.mark.parametrize(
    ("stats", "words", "commands"),
    [
        (RunStats(code=3), ("--fallback", "plan b"), [["make"], ["/bin/sh", "-c", "plan b"]]),
        (RunStats(code=0), ("--fallback", "plan b"), [["make"]]),
        (RunStats(code=3), (), [["make"]]),
        (RunStats(code=130, interrupted=True), ("--fallback", "plan b"), [["make"]]),
    ],
)
def test_a_fallback_runs_only_if_the_command_failed_by_itself(
    stats: RunStats, words: tuple[str, ...], commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered: list[GuardedCommand] = []

    def run(guarded: GuardedCommand, *_: Any, **__: Any) -> RunStats:
        ordered.append(guarded)
        return stats

    monkeypatch.setattr("wslgpud.cli.guard._run", run)
    monkeypatch.setattr(tree, "adopt_orphans", lambda: None)
    options = ("--state", str(tmp_path), "--timeout", "90s", *words)
    done = CliRunner().invoke(app, ["guard", *options, "--", "make"])
    inside = CliRunner().invoke(app, ["guard", *options, "--inside", "--log", str(tmp_path / "log"), "--", "make"])

    assert (done.exit_code, inside.exit_code) == (stats.code, stats.code)
    assert [one.command for one in ordered] == commands * 2
    assert {one.timeout_seconds for one in ordered} == {90.0}
    assert ordered[-1].environment == training.environment(ordered[0].environment)
    assert len(list((tmp_path / "guard").iterdir())) == 1
    assert (tmp_path / "log").exists()
    assert (tmp_path / "guard.json").exists() is not stats.interrupted
