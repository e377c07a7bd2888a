"""How paused jobs are shown on screens."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.alerts.test_manager import Life
from tests.alerts.test_paused_jobs import WHO, story
from tests.alerts.ticks import tick
from tests.support.screens import print_status
from wslgpud.brake.paused_job import PausedJob
from wslgpud.brake.policy import PauseState
from wslgpud.cli.brake import lines
from wslgpud.model import Forecast, Level, Observation, ProcessSample
from wslgpud.security.exact_signals import ExactProcess
from wslgpud.serve.status import TickState, status
from wslgpud.verdict import decide
from wslgpud.words import translator

MIB = 1 << 20


def job(life: Life, count: int = 1) -> PausedJob:
    processes = tuple(ExactProcess(7 + n, 70, 1000) for n in range(count))
    state = PauseState(life.clock.mono(), 40 * MIB, 1000 * MIB)
    left = Forecast("ram", Level.CRITICAL, 40 * MIB, 1000 * MIB)
    return PausedJob(1, "ram", WHO, life.clock.wall(), 600 * MIB, 90.0, (7, 70), processes, state, left)


@pytest.fixture
def life(tmp_path: Path) -> Any:
    made = story(tmp_path)
    yield made
    made.end()


def document(life: Life, paused: PausedJob, *, left: int = 4, eta: float | None = None) -> dict[str, Any]:
    """Return the status while a job is paused, with ``left`` bytes of 100."""
    forecast = Forecast("ram", Level.CRITICAL, left, 100, eta_seconds=eta, cause="growth", who=WHO, who_kind="process")
    standing = life.manager.standing()
    samples = [ProcessSample(pid, 70, "python", 600 * MIB, 0, command="python train.py") for pid in (7, 6)]
    snapshot = tick(10.0, processes=samples)
    seen = replace(snapshot, observation=Observation(10.0), forecasts=(forecast,))
    latest = TickState(seen, decide([forecast], standing), standing, paused_jobs=(paused.document(),))
    return status(latest, translator("en"))


def test_a_paused_job_is_marked_and_has_no_countdown(life: Life) -> None:
    shown = document(life, job(life), eta=2.0)

    assert shown["forecasts"][0]["outlook"] == "paused"
    assert [(p["pid"], p["roles"]) for p in shown["processes"]] == [(7, ["paused"]), (6, [])]


def test_the_countdown_shows_if_another_process_uses_up_the_rest(life: Life) -> None:
    shown = document(life, job(life), left=1, eta=2.0)

    assert shown["forecasts"][0]["outlook"] == "~2 s left"


def test_the_list_shows_the_headroom_required_and_the_commands(life: Life) -> None:
    one, several = job(life), job(life, count=3)
    who, waits, commands = lines(document(life, one))

    assert who.startswith(f"   1  {WHO}, paused at ")
    assert who.endswith(" after 2 min of work")
    assert waits == "      uses 600 MiB; resumes automatically at 120 MiB of RAM free (0 KiB now)"
    assert commands == "      sudo wslgpud brake resume 1  |  sudo wslgpud brake stop 1"
    assert "uses 600 MiB in 3 processes; " in lines(document(life, several))[1]


def test_a_job_being_stopped_is_listed_without_commands(life: Life) -> None:
    one = job(life)
    one.killed_t = 1.0

    assert lines(document(life, one))[1:] == ["      stopping: SIGTERM sent"]


def test_the_terminal_shows_a_paused_job_with_the_commands(life: Life) -> None:
    screen = Console(record=True, width=100, file=io.StringIO())
    print_status({"seen_by": "daemon", "url": "", **document(life, job(life))}, screen)
    text = " ".join(screen.export_text().split())

    assert f"{WHO} paused at " in text
    assert "'sudo wslgpud brake resume 1' resumes it, 'sudo wslgpud brake stop 1' stops it" in text
