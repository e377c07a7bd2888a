"""The brake with real jobs and hand-made forecasts."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.alerts.ticks import START, tick
from tests.brake.real_jobs import US, below, python, running, states
from tests.support.daemons import eventually, wslgpud
from wslgpud.brake import brake as at_work
from wslgpud.brake import paused_job, process_tree, watchdog
from wslgpud.brake.brake import Brake, allowed_users
from wslgpud.brake.process_tree import ProcessListing
from wslgpud.brake.watchdog import MAX_HELD, HeldJob, HeldJobsFile, Watchdog
from wslgpud.config import BrakeSettings, ConfigError
from wslgpud.host import Host
from wslgpud.model import Forecast, GpuProcess, GpuSample, Level, Reading, Snapshot, Transition
from wslgpud.security.exact_signals import ExactProcess
from wslgpud.sources import memory
from wslgpud.sources.cgroups import CgroupTree
from wslgpud.words import say

MIB, GIB = 1 << 20, 1 << 30
ME = pwd.getpwuid(US).pw_name
#: allocates the MiB given on each line of stdin, and reports it
GROWS = """
import sys
print("ready", flush=True)
kept = []
for line in sys.stdin:
    kept.append(bytearray(b"x") * (int(line) << 20))
    print("has it", flush=True)
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + GROWS


class Stage:
    """A brake driven tick by tick; a fixture restricts its scans to this test's processes."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.brake = Brake(BrakeSettings(on=True, users=(ME,), **settings), Host(), folder, Watchdog())  # type: ignore[arg-type]
        self.t, self.left = 100.0, 8 * GIB
        #: VRAM by pid in MiB, as the driver reports it
        self.vram: dict[int, int] = {}

    def tick(self, *forecasts: Forecast, seconds: float = 1.0) -> list[Transition]:
        self.t += seconds
        listed = tuple(GpuProcess(pid, "python", mib * MIB) for pid, mib in self.vram.items())
        return self.brake.tick(self.snapshot(), forecasts, [GpuSample(0, "GPU-1", "card", processes=listed)])

    def snapshot(self) -> Snapshot:
        return tick(self.t)

    def ram(self, level: Level = Level.WARNING, resource: str = "ram", **more: object) -> Forecast:
        forecast = Forecast(resource, level, self.left, 16 * GIB, eta_seconds=5.0, cause="growth", window_seconds=1.0)
        return replace(forecast, **more)  # type: ignore[arg-type]

    def about_to_run_out(self, job: subprocess.Popen[str]) -> list[Transition]:
        """Let a job use up memory while the brake watches."""
        self.tick(self.ram())
        take(job, 100)
        self.left = 500 * MIB
        if self.brake._history._scans:  # empty if RAM is not guarded
            self.brake._history._scans[-1].left_bytes["ram"] = 600 * MIB  # type: ignore[index]
            self.shortage_begins()
        return self.tick(self.ram(Level.CRITICAL), seconds=3.0)

    def shortage_begins(self) -> None:
        """Have all that went before be of no account."""
        self.brake._history._began = None

    def value(self, name: str, *labels: str) -> float | None:
        found = {(r.spec.name, r.labels): r.value for r in self.brake.readings()}
        return found.get((name, labels))


def take(job: subprocess.Popen[str], mib: int) -> None:
    job.stdin.write(f"{mib}\n")  # type: ignore[union-attr]
    job.stdin.flush()  # type: ignore[union-attr]
    assert job.stdout.readline() == "has it\n"  # type: ignore[union-attr]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    everybody = at_work.scan

    def ours(host: Host) -> ProcessListing:
        found = everybody(host)
        mine = {os.getpid()}
        for _ in range(10):
            mine |= {one.pid for one in found.processes if one.parent in mine}
        return found._replace(processes=tuple(one for one in found.processes if one.pid in mine))

    monkeypatch.setattr(at_work, "scan", ours)
    made = Stage(tmp_path)
    yield made
    made.brake.close()


@pytest.fixture
def job() -> Iterator[subprocess.Popen[str]]:
    with running(*python(GROWS), stdin=subprocess.PIPE) as process:
        yield process


def test_the_job_using_up_memory_is_paused_with_an_alert(stage, job) -> None:
    (row,) = stage.about_to_run_out(job)
    eventually(lambda: states(job.pid) == {"T"}, "the stop")

    assert (row.rule, row.resource, row.old, row.new) == ("brake", "ram", Level.OK, Level.CRITICAL)
    assert row.facts["left_bytes"] == 500 * MIB
    assert row.facts["paused_clock"] == START + stage.t
    assert f"(pid {job.pid})" in str(row.facts["who"])
    assert [one["job"] for one in stage.brake.document()] == [row.facts["job"]] == [1]
    assert (stage.value("brake_held_jobs"), stage.value("brake_pauses")) == (1, 1)
    assert stage.value("brake_held_bytes") == stage.brake.document()[0]["size_bytes"] > 100 * MIB
    assert HeldJobsFile(stage.folder).read()[1].keys() == {1}


def test_a_running_forecast_does_not_pause_a_paused_job_again(stage, job) -> None:
    stage.about_to_run_out(job)
    for _ in range(5):
        assert stage.tick(stage.ram(Level.CRITICAL)) == []

    assert stage.value("brake_pauses") == 1


@pytest.mark.parametrize(("falling", "scans"), [(1.0, 2), (0.89, 20)])
def test_a_pause_slows_process_scans_unless_memory_still_falls(stage, job, monkeypatch, falling, scans) -> None:
    stage.about_to_run_out(job)
    scan, calls = at_work.scan, []
    monkeypatch.setattr(at_work, "scan", lambda *args, **options: calls.append(stage.t) or scan(*args, **options))
    for _ in range(20):
        stage.left = int(stage.left * falling)
        stage.tick(stage.ram(Level.CRITICAL), seconds=0.1)

    assert len(calls) == pytest.approx(scans, abs=1)


def test_a_job_resumes_once_memory_has_stayed_free(stage, job) -> None:
    stage.about_to_run_out(job)
    stage.left = 12 * GIB
    assert stage.tick(stage.ram(Level.OK, cause="")) == []
    rows = stage.tick(stage.ram(Level.OK, cause=""), seconds=60.0)
    eventually(lambda: states(job.pid) <= {"S", "R"}, "the resumption")

    (row,) = rows
    assert (row.new, str(row.facts["outcome"])) == (Level.OK, "resumed when memory was free again")
    assert stage.value("brake_ends", "room") == 1
    assert HeldJobsFile(stage.folder).read() == (1, {})


def test_a_job_paused_again_waits_for_more_headroom(stage, job) -> None:
    stage.about_to_run_out(job)
    needed = stage.brake.document()[0]["needed_bytes"]
    stage.left = 12 * GIB
    stage.tick(stage.ram(Level.OK, cause=""))
    stage.tick(stage.ram(Level.OK, cause=""), seconds=60.0)
    stage.about_to_run_out(job)

    assert stage.brake.document()[0]["needed_bytes"] > needed


def test_a_manually_resumed_job_is_spared_until_warning_clears(stage, job) -> None:
    stage.about_to_run_out(job)
    stage.brake.commands.append((1, "resume"))
    (row,) = stage.tick(stage.ram(Level.CRITICAL))
    assert str(row.facts["outcome"]) == "resumed manually"
    assert stage.about_to_run_out(job) == []
    assert states(job.pid) <= {"S", "R"}

    stage.left = 12 * GIB
    stage.tick(stage.ram(Level.OK, cause=""))
    assert len(stage.about_to_run_out(job)) == 1


def test_a_command_for_an_unknown_number_is_ignored(stage, job) -> None:
    stage.about_to_run_out(job)
    stage.brake.commands.append((2, "stop"))
    assert stage.tick(stage.ram(Level.CRITICAL)) == []
    assert stage.value("brake_held_jobs") == 1


def test_a_job_stopped_by_its_owner_gets_sigterm(stage, job) -> None:
    stage.about_to_run_out(job)
    stage.brake.commands.append((1, "stop"))
    stage.tick(stage.ram(Level.CRITICAL))
    assert job.wait() == -signal.SIGTERM
    (row,) = stage.tick(stage.ram(Level.CRITICAL))

    assert str(row.facts["outcome"]) == "stopped on request"


def test_a_job_that_ignores_sigterm_is_killed_after_ten_seconds(stage) -> None:
    with running(*python(DEAF), stdin=subprocess.PIPE) as job:
        stage.about_to_run_out(job)
        stage.brake.commands.append((1, "stop"))
        assert stage.tick(stage.ram(Level.CRITICAL)) == []
        assert stage.tick(stage.ram(Level.CRITICAL), seconds=9.9) == []
        assert states(job.pid) <= {"S", "R"}
        assert stage.tick(stage.ram(Level.CRITICAL), seconds=0.2) == []
        assert job.wait() == -signal.SIGKILL
        assert len(stage.tick(stage.ram(Level.CRITICAL))) == 1


def test_a_job_growing_after_sigterm_is_killed_not_paused_again(stage) -> None:
    with running(*python(DEAF), stdin=subprocess.PIPE) as job:
        stage.about_to_run_out(job)
        stage.brake.commands.append((1, "stop"))
        assert stage.tick(stage.ram(Level.CRITICAL)) == []
        take(job, 100)
        stage.left = 300 * MIB
        assert stage.tick(stage.ram(Level.CRITICAL)) == []
        assert states(job.pid) <= {"S", "R"}
        assert stage.brake.is_ending()

        stage.left = 200 * MIB
        assert stage.tick(stage.ram(Level.CRITICAL)) == []
        assert job.wait() == -signal.SIGKILL
        assert len(stage.tick(stage.ram(Level.CRITICAL))) == 1
        assert (stage.value("brake_pauses"), stage.brake.is_ending()) == (1, False)


def test_a_job_stopped_at_low_memory_is_killed_without_resuming(stage) -> None:
    saves = "import os, signal; signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'runs\\n'))\n" + GROWS
    with running(*python(saves), stdin=subprocess.PIPE) as job:
        stage.about_to_run_out(job)
        stage.left = 200 * MIB
        stage.brake.commands.append((1, "stop"))
        stage.tick(stage.ram(Level.CRITICAL))

        assert job.wait() == -signal.SIGKILL
        assert job.stdout.read() == ""


@pytest.mark.parametrize(("way", "how"), [("resume", "time"), ("stop", "stopped")])
def test_after_hold_applies_after_hold_minutes(stage, job, way, how) -> None:
    stage.brake._settings = replace(stage.brake._settings, hold_minutes=5.0, after_hold=way)
    stage.about_to_run_out(job)
    assert stage.tick(stage.ram(Level.CRITICAL), seconds=200.0) == []
    stage.tick(stage.ram(Level.CRITICAL), seconds=200.0)
    if way == "stop":
        assert job.wait() == -signal.SIGTERM
        stage.tick(stage.ram(Level.CRITICAL))

    assert stage.value("brake_ends", how) == 1


def test_a_sigcont_from_the_terminal_counts_as_a_decision(stage, job) -> None:
    stage.about_to_run_out(job)
    eventually(lambda: states(job.pid) == {"T"}, "the stop")
    assert stage.tick(stage.ram(Level.CRITICAL)) == []
    os.kill(job.pid, signal.SIGCONT)
    eventually(lambda: states(job.pid) <= {"S", "R"}, "the resumption")
    (row,) = stage.tick(stage.ram(Level.CRITICAL))

    assert str(row.facts["outcome"]) == "resumed manually"


def test_a_job_still_coming_to_a_stop_does_not_count_as_resumed(stage, job, monkeypatch) -> None:
    stage.about_to_run_out(job)
    monkeypatch.setattr(paused_job, "is_paused", lambda _: False)

    assert stage.tick(stage.ram(Level.CRITICAL)) == []
    assert stage.value("brake_held_jobs") == 1


def test_a_paused_job_that_is_killed_is_no_longer_listed(stage, job) -> None:
    stage.about_to_run_out(job)
    job.kill()
    job.wait()
    (row,) = stage.tick(stage.ram(Level.CRITICAL))

    assert str(row.facts["outcome"]) == "ended"


def test_closing_the_brake_resumes_all_jobs(stage, job) -> None:
    stage.about_to_run_out(job)
    eventually(lambda: states(job.pid) == {"T"}, "the stop")
    stage.brake.close()
    eventually(lambda: states(job.pid) <= {"S", "R"}, "the resumption")
    assert HeldJobsFile(stage.folder).read() == (1, {})


def test_no_job_is_paused_for_memory_that_is_not_guarded(stage, job) -> None:
    stage.brake._settings = replace(stage.brake._settings, resources=("gpu",))
    assert stage.about_to_run_out(job) == []
    assert states(job.pid) <= {"S", "R"}


def test_no_job_is_paused_before_zram_has_been_tried(stage, job, monkeypatch) -> None:
    """Alone on a machine it would stay paused: it needs more than is free, and only it could free any."""
    known = [Reading(spec, 512 * MIB) for spec in (memory.ZRAM_TOTAL, memory.ZRAM_FREE)]
    known.append(Reading(memory.STALLED_SECONDS, 0.0, ("memory",)))
    monkeypatch.setattr(Stage, "snapshot", lambda self: tick(self.t, *known))
    assert stage.about_to_run_out(job) == []
    known.append(Reading(memory.COMPRESSIBLE, 0))
    stage.shortage_begins()

    assert len(stage.tick(stage.ram(Level.CRITICAL))) == 1


@pytest.mark.parametrize("loaded_mib", [100, 400])
def test_a_namesake_that_stopped_growing_is_left_alone(stage, job, loaded_mib) -> None:
    def ram(level: Level, left_mib: int) -> Forecast:
        return stage.ram(level, headroom_bytes=left_mib * MIB, capacity_bytes=4 * GIB, window_seconds=60.0)

    with running(*python(GROWS), stdin=subprocess.PIPE) as earlier:
        stage.tick(ram(Level.WARNING, 250 + loaded_mib))
        take(earlier, loaded_mib)
        stage.tick(ram(Level.WARNING, 250), seconds=4.0)
        stage.shortage_begins()
        take(job, 100)
        assert len(stage.tick(ram(Level.CRITICAL, 150), seconds=4.0)) == 1
        eventually(lambda: states(job.pid) == {"T"}, "the stop")

        assert states(earlier.pid) <= {"S", "R"}


def fill_tmpfs(
    stage: Stage, group_of: Callable[[int], str], monkeypatch: pytest.MonkeyPatch, *left_mib: int
) -> list[list[Transition]]:
    """Let a cgroup fill files in RAM until so much is left, ten times per second; return each tick's rows."""
    scan, top = at_work.scan, stage.folder / "cgroups"
    tree = CgroupTree(str(top), 2)

    def in_a_scope(host: Host) -> ProcessListing:
        found = scan(host)
        return found._replace(processes=tuple(p._replace(cgroup=group_of(p.pid)) for p in found.processes))

    def sample(left_mib: int) -> list[Transition]:
        (top / "job.scope/memory.stat").write_text(f"shmem {4 * GIB - left_mib * MIB}\n")
        return stage.tick(stage.ram(Level.CRITICAL, headroom_bytes=left_mib * MIB), seconds=0.1)

    (top / "job.scope").mkdir(parents=True)
    monkeypatch.setattr(at_work, "scan", in_a_scope)
    monkeypatch.setattr(process_tree, "find_tree", lambda _: tree)
    first = sample(left_mib[0])
    stage.shortage_begins()
    return [first, *(sample(left) for left in left_mib[1:])]


def test_a_job_filling_files_in_ram_is_paused_by_its_cgroup(stage, job, monkeypatch) -> None:
    rows = fill_tmpfs(stage, lambda pid: "/job.scope" if pid == job.pid else "/other", monkeypatch, 900, 700, 600)

    assert [len(row) for row in rows] == [0, 1, 0]
    (paused,) = stage.brake.document()
    assert (paused["pids"], paused["needed_bytes"]) == ([job.pid], 700 * MIB + 4 * GIB), "it takes 2 GiB per second"


def test_ram_files_of_a_protected_cgroup_are_reported_once(stage, job, monkeypatch, caplog) -> None:
    assert fill_tmpfs(stage, lambda _: "/job.scope", monkeypatch, 900, 700, 600, 500) == [[], [], [], []]

    assert caplog.messages == [
        "ram is about to run out, but no job was paused: the program that grew is one that is never paused"
    ]
    assert stage.value("brake_spared", "protected") == 1


def test_a_full_cgroup_pauses_its_own_job_not_a_larger_neighbour(stage, job, monkeypatch) -> None:
    scan = at_work.scan

    def in_groups(host: Host) -> ProcessListing:
        found = scan(host)
        groups = {job.pid: "/jobs/a"}
        return found._replace(
            processes=tuple(p._replace(cgroup=groups.get(p.pid, "/jobs/ab")) for p in found.processes)
        )

    def full(level: Level, left_mib: int) -> Forecast:
        return stage.ram(level, "cgroup:/jobs/a", headroom_bytes=left_mib * MIB, capacity_bytes=2 * GIB)

    monkeypatch.setattr(at_work, "scan", in_groups)
    with running(*python(GROWS), stdin=subprocess.PIPE) as other:
        stage.tick(full(Level.WARNING, 200))
        take(job, 100)
        take(other, 300)
        (row,) = stage.tick(full(Level.CRITICAL, 90), seconds=3.0)

        assert (row.resource, [one["pids"] for one in stage.brake.document()]) == ("cgroup:/jobs/a", [[job.pid]])


def test_another_users_job_is_left_alone_and_reported_once(stage, job, caplog) -> None:
    stage.brake._users = frozenset({US + 1})
    assert stage.about_to_run_out(job) == []
    assert stage.tick(stage.ram(Level.CRITICAL)) == []

    why = "the program that grew belongs to a user not listed in brake.users"
    assert caplog.messages == [f"ram is about to run out, but no job was paused: {why}"]
    assert states(job.pid) <= {"S", "R"}
    assert stage.value("brake_spared", "user") == 1


def test_growth_of_spared_jobs_is_not_reported_during_a_pause(stage, job, caplog) -> None:
    stage.about_to_run_out(job)
    stage.brake._users = frozenset({US + 1})
    with running(*python(GROWS), stdin=subprocess.PIPE) as other:
        assert stage.about_to_run_out(other) == []

    assert "no job was paused" not in caplog.text
    assert stage.value("brake_spared", "user") is None


def test_no_job_is_paused_that_cannot_be_recorded_on_disk(stage, job) -> None:
    stage.brake._file = HeldJobsFile(stage.folder / "gone")
    assert stage.about_to_run_out(job) == []
    eventually(lambda: states(job.pid) <= {"S", "R"}, "the resumption")

    assert stage.value("brake_spared", "refused") == 1
    assert stage.brake.document() == ()


def test_a_killed_watchdog_is_replaced_before_a_job_is_paused(stage, job) -> None:
    first = stage.brake._watchdog.pid
    os.kill(first, signal.SIGKILL)
    eventually(lambda: not stage.brake._watchdog.alive(), "the watchdog's exit")
    stage.tick(stage.ram(Level.OK))
    assert stage.brake._watchdog.pid != first
    assert stage.value("brake_ready") == 1

    assert len(stage.about_to_run_out(job)) == 1


def test_a_new_watchdog_resumes_what_was_paused_before_it_began(stage, job) -> None:
    stage.about_to_run_out(job)
    eventually(lambda: states(job.pid) == {"T"}, "the stop")
    os.kill(stage.brake._watchdog.pid, signal.SIGKILL)
    eventually(lambda: not stage.brake._watchdog.alive(), "the watchdog's exit")
    stage.tick(stage.ram(Level.CRITICAL), seconds=20.0)
    stage.brake._watchdog.close()

    eventually(lambda: states(job.pid) <= {"S", "R"}, "the resumption")


def test_a_paused_job_is_listed_before_those_that_are_stuck(stage, job) -> None:
    stage.brake._stuck = {100 + n: (ExactProcess(2**22 - 1, 1, 0),) for n in range(MAX_HELD)}
    stage.about_to_run_out(job)

    assert 1 in HeldJobsFile(stage.folder).read()[1]


def test_without_memory_for_a_new_watchdog_no_job_is_paused(stage, job, monkeypatch) -> None:
    os.kill(stage.brake._watchdog.pid, signal.SIGKILL)
    eventually(lambda: not stage.brake._watchdog.alive(), "the watchdog's exit")

    def no_memory() -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(at_work, "Watchdog", no_memory)
    assert stage.about_to_run_out(job) == []
    assert (stage.brake.document(), stage.value("brake_spared", "refused")) == ((), 1)
    assert states(job.pid) <= {"S", "R"}


def test_a_watchdog_that_keeps_dying_restarts_every_ten_seconds(stage) -> None:
    def alive_after_its_death(*waits: float) -> list[bool]:
        os.kill(stage.brake._watchdog.pid, signal.SIGKILL)
        eventually(lambda: not stage.brake._watchdog.alive(), "the watchdog's exit")
        alive = []
        for seconds in waits:
            stage.tick(stage.ram(Level.OK), seconds=seconds)
            alive.append(stage.brake._watchdog.alive())
        return alive

    assert alive_after_its_death(1.0) == [True]
    assert alive_after_its_death(9.9, 0.2) == [False, True]


def card(stage: Stage, job: subprocess.Popen[str], left_mib: int = 300, **more: object) -> Forecast:
    """Return the forecast of a card of 16 GiB; it names the job, rightly or not."""
    who = {"who": f"python (pid {job.pid})", "who_kind": "process", "who_pid": job.pid}
    left = {"resource": "gpu0", "headroom_bytes": left_mib * MIB, "window_seconds": 60.0}
    return replace(stage.ram(), **{"level": Level.CRITICAL, **left, **who, **more})


def fill(stage: Stage, job: subprocess.Popen[str]) -> list[Transition]:
    """Let a job fill a card."""
    stage.vram[job.pid] = 1024
    stage.tick(card(stage, job, 15 * 1024, level=Level.WARNING))
    stage.vram[job.pid] = 15 * 1024
    return stage.tick(card(stage, job), seconds=10.0)


def test_the_job_whose_vram_grows_is_paused(stage, job) -> None:
    (row,) = fill(stage, job)
    eventually(lambda: states(job.pid) == {"T"}, "the stop")

    assert (row.resource, row.facts["who"]) == ("gpu0", f"python (pid {job.pid})")
    (paused,) = stage.brake.document()
    assert paused["needed_bytes"] == 300 * MIB + 4 * GIB  # a quarter of the card
    assert paused["size_bytes"] == 15 * GIB  # of the card, which it fills


@pytest.mark.parametrize("block_seconds", [0.1, 2.0, 8.0])
def test_a_large_neighbour_that_stopped_growing_is_left_alone(stage, job, block_seconds) -> None:
    with running(*python(GROWS), stdin=subprocess.PIPE) as neighbour:
        stage.tick(card(stage, neighbour, 16 * 1024, level=Level.OK))
        stage.vram[neighbour.pid] = 12 * 1024
        stage.tick(card(stage, neighbour, 4096, level=Level.WARNING), seconds=4.0)
        stage.tick(card(stage, neighbour, 4096, level=Level.WARNING), seconds=4.0)
        for taken in range(0, 3600, 400):
            stage.vram[job.pid] = taken
            stage.tick(card(stage, neighbour, 4096 - taken, level=Level.WARNING), seconds=block_seconds)
        stage.vram[job.pid] = 3800
        (row,) = stage.tick(card(stage, neighbour, 296), seconds=block_seconds)
        eventually(lambda: states(job.pid) == {"T"}, "the stop")

        assert str(row.facts["who"]).endswith(f"(pid {job.pid})")
        assert states(neighbour.pid) <= {"S", "R"}


def test_no_job_is_paused_on_a_card_where_nobody_grew(stage, job, caplog) -> None:
    stage.vram[job.pid] = 12 * 1024
    for left in (2048, 1024, 300):
        assert stage.tick(card(stage, job, left), seconds=5.0) == []

    assert caplog.messages == [
        "gpu0 is about to run out, but no job was paused: no program accounts for the lost memory"
    ]
    assert states(job.pid) <= {"S", "R"}


def test_other_users_claims_cannot_hide_a_job_that_reports_vram(stage, job, monkeypatch) -> None:
    scan, other = at_work.scan, os.getpid()

    def with_another_user(host: Host) -> ProcessListing:
        found = scan(host)
        return found._replace(processes=tuple(p._replace(uid=US + 1) if p.pid == other else p for p in found.processes))

    def at(mib: int, left_mib: int, level: Level) -> list[Transition]:
        told, listed = GpuProcess(job.pid, "python", mib * MIB), GpuProcess(job.pid, "python", None)
        claim = GpuProcess(other, "python", 9 * mib * MIB)
        gpu = GpuSample(0, "GPU-1", "card", processes=(listed,), self_reported=(told, claim))
        forecast = card(stage, job, left_mib)
        return stage.brake.tick(tick(stage.t + mib), [replace(forecast, level=level)], [gpu])

    monkeypatch.setattr(at_work, "scan", with_another_user)
    assert at(1000, 4000, Level.WARNING) == []
    (row,) = at(4700, 300, Level.CRITICAL)
    assert row.facts["who"] == f"python (pid {job.pid})"


def test_a_card_that_filled_fast_must_free_as_much_to_resume(stage, job) -> None:
    stage.vram[job.pid] = 9000
    stage.tick(stage.ram(), card(stage, job, 450, level=Level.WARNING))
    stage.vram[job.pid] = 9150
    stage.tick(stage.ram(), card(stage, job), seconds=3.0)

    (held,) = stage.brake.document()
    assert held["needed_bytes"] == (300 + 60 * 50) * MIB


@pytest.mark.parametrize(("configured", "paused"), [(1.0, 0), (0.95, 0), (0.9, 1)])
def test_a_guessed_process_is_paused_only_if_probable_enough(stage, job, configured, paused) -> None:
    stage.brake._settings = replace(stage.brake._settings, act_on_likelihood=configured)
    guess = say("probably {who}, {chance_ratio}", who=f"python (pid {job.pid})", chance_ratio=0.91)
    rows = stage.tick(card(stage, job, who=guess, who_kind="guess", rate_bytes_per_second=50.0 * MIB))

    assert len(rows) == paused
    assert [one["needed_bytes"] for one in stage.brake.document()] == [(300 + 60 * 50) * MIB] * paused
    assert stage.value("brake_spared", "unsure") == (None if paused else 1)


def test_two_paused_jobs_of_one_resource_share_an_alert(stage, job) -> None:
    with running(*python(GROWS), stdin=subprocess.PIPE) as other:
        fill(stage, job)
        (row,) = fill(stage, other)
        assert (row.facts["job"], row.facts["more"]) == (2, 1)

        stage.brake.commands.append((2, "resume"))
        (row,) = stage.tick(card(stage, other, level=Level.WARNING))
        assert (row.new, row.facts["job"]) == (Level.CRITICAL, 1)
        assert [one.pid for one in below(job.pid)] == [job.pid]


def test_configured_users_and_kinds_of_memory_must_exist() -> None:
    with pytest.raises(ConfigError, match="no user nobody-here"):
        allowed_users(BrakeSettings(users=("nobody-here",)))
    with pytest.raises(ConfigError, match=r"brake\.resources: disk is not one of ram, gpu, cgroup"):
        allowed_users(BrakeSettings(resources=("disk",)))
    assert allowed_users(BrakeSettings()) == {US}


def test_commands_on_a_machine_without_a_daemon_say_so(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path))
    listed, resumed, released = (
        wslgpud("brake", *words, *state, home=tmp_path) for words in (["list"], ["resume", "3"], ["release"])
    )

    assert listed.stdout == released.stdout == "no job is paused\n"
    assert (resumed.returncode, resumed.stderr) == (2, "wslgpud: job 3 is not paused; no job is\n")


def test_the_watchdog_gets_a_heartbeat_every_second_of_a_pause(stage, job, monkeypatch) -> None:
    signs: list[int] = []
    update = Watchdog.update

    def counted(self: Watchdog, held: Iterable[HeldJob]) -> bool:
        listed = list(held)
        signs.append(len(listed))
        return update(self, listed)

    stage.about_to_run_out(job)
    monkeypatch.setattr(Watchdog, "update", counted)
    for _ in range(4):
        stage.tick(stage.ram(), seconds=0.5)

    assert signs == [1, 1]


def test_a_stopped_watchdog_is_replaced_and_the_job_stays_safe(stage, job, monkeypatch) -> None:
    stage.about_to_run_out(job)
    first = stage.brake._watchdog.pid
    monkeypatch.setattr(watchdog, "CONFIRM_SECONDS", 0.5)
    os.kill(first, signal.SIGSTOP)
    for _ in range(3):
        stage.tick(stage.ram(), seconds=10.0)

    assert stage.brake._watchdog.pid != first
    stage.brake._watchdog.close()  # the daemon's end
    eventually(lambda: states(job.pid) <= {"S", "R"}, "the resumption")


def test_a_job_resumes_despite_a_full_disk_and_a_clock_change(stage, job, monkeypatch) -> None:
    stage.about_to_run_out(job)
    eventually(lambda: states(job.pid) == {"T"}, "the stop")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(HeldJobsFile, "write", full)
    monkeypatch.setattr(Stage, "snapshot", lambda self: replace(tick(self.t), wall=START - 1e6))
    stage.left = 8 * GIB
    for _ in range(8):
        stage.tick(stage.ram(Level.OK))

    eventually(lambda: states(job.pid) <= {"S", "R"}, "the resumption")
    assert stage.value("brake_ends", "room") == 1


def test_the_brake_reads_nothing_that_a_process_can_withhold(stage, job, monkeypatch) -> None:
    """Readers of cmdline, maps and smaps wait for the lock of the process's own memory, which it can hold for ever."""
    asked: list[str] = []
    read = Host.read
    monkeypatch.setattr(Host, "read", lambda self, path: (asked.append(path), read(self, path))[1])
    stage.about_to_run_out(job)

    kinds = {path.rpartition("/")[2] for path in asked if path.startswith("/proc/") and path.split("/")[2].isdecimal()}
    assert kinds <= {"stat", "status", "cgroup"}
