"""How a paused job is named, shown, recorded and commanded."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.alerts.ticks import START, tick
from tests.brake.trees import GIB, program
from wslgpud.brake import freezer, held_jobs, pauser
from wslgpud.brake.culprit import Job
from wslgpud.brake.held_jobs import HeldJob, HeldJobsFile
from wslgpud.brake.paused_job import OUTCOMES, PausedJob, job_name, row, run_seconds
from wslgpud.brake.policy import PauseState
from wslgpud.model import Forecast, Level, ProcessSample
from wslgpud.security.exact_signals import ExactProcess

FORECAST = Forecast("ram", Level.CRITICAL, GIB, 16 * GIB)
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def paused(count: int = 1, cgroup: str = "") -> PausedJob:
    held = HeldJob(tuple(ExactProcess(20 + n, 70, 1000) for n in range(count)), cgroup)
    state = PauseState(5.0, GIB, 16 * GIB)
    return PausedJob(3, "ram", "python (pid 20)", START, 2 * GIB, 90.6, (20, 70), held, state, FORECAST)


def test_the_document_of_a_paused_job_lists_32_of_its_processes() -> None:
    job = paused(40, cgroup="/sys/fs/cgroup/job")

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
        "frozen": True,
        "ending": False,
    }
    ending = paused()
    ending.killed_t = 0.0
    assert (ending.document()["frozen"], ending.document()["ending"]) == (False, True)


def test_the_alert_for_several_paused_jobs_names_the_last_one() -> None:
    first, last = paused(), replace(paused(4), number=4)
    alone, both = (row(tick(1), "ram", jobs, {}, None) for jobs in ([last], [first, last]))

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
    over = row(tick(1), "ram", [], {"outcome": "ended"}, FORECAST)
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
        one = {"processes": [[1, 1, 0]] * processes, "cgroup": ""}
        held = {str(number): one for number in range(count)}
        document = {"boot_id": held_jobs.boot_id(), "last": last, "held": held}
        (tmp_path / "held.json").write_text(json.dumps(document))
        known, jobs = HeldJobsFile(tmp_path).read()
        return known, [*jobs]

    assert read(7, 8) == (7, [*range(8)])
    assert read(7, 9) == (7, [*range(8)])
    assert read(7, 1, 2048) == (7, [0])
    assert read(7, 1, 2049) == (7, [])
    assert (read(-1)[0], read(0)[0], read(1 << 31)[0], read(1 << 40)[0]) == (0, 0, 1 << 31, 1 << 31)


def test_a_cgroup_includes_the_processes_of_all_groups_below_it(tmp_path: Path) -> None:
    for number in range(199):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}/cgroup.procs").write_text(f"{number}\n")
    (tmp_path / "cgroup.procs").write_text("1000\n")

    assert freezer.pids_in(str(tmp_path)) == {*range(199), 1000}
    (tmp_path / "199").mkdir()
    assert freezer.pids_in(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("events", "frozen"),
    [
        ("populated 1\nfrozen 1\n", True),
        ("populated 1\nfrozen 0\n", False),
        ("populated 0\nfrozen 1\n", None),
        ("populated\n", None),
        (None, None),
    ],
)
def test_whether_a_cgroup_is_frozen_is_read_from_its_events(tmp_path: Path, events: str | None, frozen: object) -> None:
    if events is not None:
        (tmp_path / "cgroup.events").write_text(events)

    assert freezer.is_frozen(str(tmp_path)) is frozen
    assert freezer.pids_in(str(tmp_path)) is None


def test_the_paths_of_cgroups_are_below_their_mount_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezer, "mount_point", lambda: "/sys/fs/cgroup")

    assert freezer.folder_of("/a/b") == "/sys/fs/cgroup/a/b"
    inside = ["/sys/fs/cgroup/a", "/sys/fs/cgroup", "/sys/fs/cgroup/", "/sys/fs/cgroup/a/..", "/sys/fs/cgroups/a", "/a"]
    assert [folder for folder in inside if freezer.is_folder(folder)] == ["/sys/fs/cgroup/a"]
    monkeypatch.setattr(freezer, "mount_point", lambda: "")
    assert freezer.folder_of("/a/b") == ""
    assert not freezer.is_folder("/a")


def test_cgroups_are_found_where_version_2_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(freezer, "Path", lambda _: mounts)
    first = "sysfs /sys sysfs rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\n"

    assert freezer.mount_point() == ""
    mounts.write_text(first)
    assert freezer.mount_point() == ""
    mounts.write_text(f"{first}none /sys/fs/cgroup/unified cgroup2 rw 0 0\n")
    assert freezer.mount_point() == "/sys/fs/cgroup/unified"


def test_a_job_in_a_cgroup_has_ended_once_that_is_empty(tmp_path: Path) -> None:
    def ended(events: str) -> bool:
        (tmp_path / "cgroup.events").write_text(events)
        return pauser.has_ended(HeldJob((), str(tmp_path)))

    assert not ended("populated 1\nfrozen 1\n")
    assert not ended("populated 1\nfrozen 0\n")
    assert ended("populated 0\nfrozen 0\n")
