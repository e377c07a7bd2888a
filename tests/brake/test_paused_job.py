"""How a paused job is named, shown, recorded and commanded."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.alerts.ticks import START, tick
from tests.brake.trees import GIB, program
from wslgpud.brake import watchdog
from wslgpud.brake.culprit import Job
from wslgpud.brake.paused_job import OUTCOMES, PausedJob, job_name, row, run_seconds
from wslgpud.brake.policy import PauseState
from wslgpud.brake.watchdog import HeldJobsFile
from wslgpud.model import Forecast, Level, ProcessSample
from wslgpud.security.exact_signals import ExactProcess

FORECAST = Forecast("ram", Level.CRITICAL, GIB, 16 * GIB)
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def paused(count: int = 1) -> PausedJob:
    held = tuple(ExactProcess(20 + n, 70, 1000) for n in range(count))
    state = PauseState(5.0, GIB, 16 * GIB)
    return PausedJob(3, "ram", "python (pid 20)", START, 2 * GIB, 90.6, (20, 70), held, state, FORECAST)


def test_the_document_of_a_paused_job_lists_32_of_its_processes() -> None:
    job = paused(40)

    assert job.document() == {
        "job": 3,
        "resource": "ram",
        "who": "python (pid 20)",
        "paused": "2027-01-15T08:00:00.000+00:00",
        "left_bytes": GIB,
        "needed_bytes": round(job.state.needed_bytes),
        "size_bytes": 2 * GIB,
        "ran_seconds": 91,
        "processes": 40,
        "pids": [*range(20, 52)],
        "ending": False,
    }
    ending = paused()
    ending.killed_t = 0.0
    assert ending.document()["ending"] is True


def test_the_alert_for_several_paused_jobs_names_the_last_one() -> None:
    first, last = paused(), replace(paused(4), number=4)
    alone, both = (row("ram", START + 1, 1.0, jobs) for jobs in ([last], [first, last]))

    assert alone.facts == {
        "job": 4,
        "who": "python (pid 20)",
        "paused_clock": START,
        "left_bytes": GIB,
        "needed_bytes": round(last.state.needed_bytes),
        "count": 4,
        "ran_seconds": 90.6,
    }
    assert both.facts == {**alone.facts, "more": 1}
    assert (alone.old, alone.new, alone.forecast) == (Level.OK, Level.CRITICAL, FORECAST)
    over = row("ram", START + 1, 1.0, [], {"outcome": "ended"})
    assert (over.old, over.new, over.facts) == (Level.CRITICAL, Level.OK, {"end": "held", "outcome": "ended"})


@pytest.mark.parametrize(("how", "saved"), [(how, how not in ("stopped", "ended")) for how in OUTCOMES])
def test_work_is_kept_unless_the_job_ended(how: str, saved: bool) -> None:
    facts = paused().outcome(how, START + 60)

    assert facts["held_seconds"] == 60
    assert facts.get("saved_seconds") == (90.6 if saved else None)


def test_a_job_has_run_as_long_as_its_oldest_process() -> None:
    members = [program(20, 1, "python")._replace(start_ticks=n * TICKS_PER_SECOND) for n in (50, 40, 70)]

    assert run_seconds(members, 100.0) == 60.0
    assert run_seconds(members, 30.0) == 0.0


def test_a_job_is_named_by_forecast_or_command_or_as_a_group() -> None:
    root, child = program(20, 1, "python3"), program(21, 20, "python3")
    job = Job((root, child), 0, (root,))
    named = replace(FORECAST, who="train (pid 21)", who_pid=21)
    snapshot = tick(1, processes=(ProcessSample(20, 200, "python3", 1, 0, command="python3 train.py"),))
    reused = tick(1, processes=(ProcessSample(20, 201, "python3", 1, 0, command="python3 other.py"),))

    assert job_name(job, snapshot, named) == "train (pid 21)"
    assert job_name(job, snapshot, replace(named, who_pid=22)) == "python3 train.py (pid 20)"
    assert job_name(job, reused, FORECAST) == "python3 (pid 20)"
    assert str(job_name(job._replace(roots=(root, child)), snapshot, FORECAST)) == "2 x python3"


def test_the_list_on_disk_has_bounds(tmp_path: Path) -> None:
    def read(last: int, count: int = 1, processes: int = 1) -> tuple[int, list[int]]:
        held = {str(number): [[1, 1, 0]] * processes for number in range(count)}
        document = {"boot_id": watchdog.boot_id(), "last": last, "held": held}
        (tmp_path / "held.json").write_text(json.dumps(document))
        known, jobs = HeldJobsFile(tmp_path).read()
        return known, [*jobs]

    assert read(7, 8) == (7, [*range(8)])
    assert read(7, 9) == (7, [*range(8)])
    assert read(7, 1, 2048) == (7, [0])
    assert read(7, 1, 2049) == (7, [])
    assert (read(-1)[0], read(0)[0], read(1 << 31)[0], read(1 << 40)[0]) == (0, 0, 1 << 31, 1 << 31)
