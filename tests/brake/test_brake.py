"""The brake at work: real jobs, forecasts made by hand."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.alerts.ticks import START, tick
from tests.brake.real_jobs import US, below, python, running, states
from tests.support.daemons import eventually, wslgpud
from wslgpud.brake import brake as at_work
from wslgpud.brake import pauser
from wslgpud.brake.brake import Brake, allowed_users
from wslgpud.brake.commands import CommandFile
from wslgpud.brake.held_jobs import HeldJobsFile
from wslgpud.brake.policy import TERM_SECONDS
from wslgpud.brake.process_scan import ProcessListing
from wslgpud.brake.watchdog import Watchdog
from wslgpud.config import BrakeSettings, ConfigError
from wslgpud.host import Host
from wslgpud.model import Forecast, Level, Snapshot, Transition
from wslgpud.words import say

MIB, GIB = 1 << 20, 1 << 30
ME = pwd.getpwuid(US).pw_name
#: takes as many MiB as it is told to, and says so
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
    """A brake with ticks of our own making, in which only our own processes count: others grow as they like."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.brake = Brake(BrakeSettings(on=True, users=(ME,), **settings), Host(), folder, Watchdog())  # type: ignore[arg-type]
        self.t, self.left = 100.0, 8 * GIB

    def tick(self, *forecasts: Forecast, seconds: float = 1.0) -> list[Transition]:
        self.t += seconds
        return self.brake.tick(self.snapshot(), forecasts)

    def snapshot(self) -> Snapshot:
        return tick(self.t)

    def ram(self, level: Level = Level.WARNING, resource: str = "ram", **more: object) -> Forecast:
        forecast = Forecast(resource, level, self.left, 16 * GIB, eta_seconds=5.0, cause="growth", window_seconds=1.0)
        return replace(forecast, **more)  # type: ignore[arg-type]

    def about_to_run_out(self, job: subprocess.Popen[str]) -> list[Transition]:
        """Have a job take the last of the memory before the eyes of the brake."""
        self.tick(self.ram())
        take(job, 100)
        self.left = 500 * MIB
        if self.brake._history._scans:  # else this memory is not guarded
            self.brake._history._scans[-1].left_bytes["ram"] = 600 * MIB  # type: ignore[index]
        return self.tick(self.ram(Level.CRITICAL), seconds=3.0)

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

    def ours(host: Host, *, cgroups: bool = False) -> ProcessListing:
        found = everybody(host, cgroups=cgroups)
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


def test_who_takes_the_last_of_the_memory_is_paused_and_it_is_said_how_much_was_left(stage, job) -> None:
    (row,) = stage.about_to_run_out(job)
    eventually(lambda: states(job.pid) == {"T"}, "the stop")

    assert (row.rule, row.resource, row.old, row.new) == ("brake", "ram", Level.OK, Level.CRITICAL)
    assert row.facts["left_bytes"] == 500 * MIB
    assert row.facts["paused_clock"] == START + stage.t
    assert f"(pid {job.pid})" in str(row.facts["who"])
    assert [one["job"] for one in stage.brake.document()] == [row.facts["job"]] == [1]
    assert (stage.value("brake_held_jobs"), stage.value("brake_pauses")) == (1, 1)
    assert HeldJobsFile(stage.folder).read()[1].keys() == {1}


def test_one_that_is_paused_is_not_paused_again_while_the_forecast_still_counts_down(stage, job) -> None:
    stage.about_to_run_out(job)
    for _ in range(5):
        assert stage.tick(stage.ram(Level.CRITICAL)) == []

    assert stage.value("brake_pauses") == 1


def test_it_goes_on_when_there_is_room_again_that_stays(stage, job) -> None:
    stage.about_to_run_out(job)
    stage.left = 12 * GIB
    assert stage.tick(stage.ram(Level.OK, cause="")) == []
    rows = stage.tick(stage.ram(Level.OK, cause=""), seconds=60.0)
    eventually(lambda: states(job.pid) <= {"S", "R"}, "going on")

    (row,) = rows
    assert (row.new, str(row.facts["outcome"])) == (Level.OK, "went on when there was room again")
    assert stage.value("brake_ends", "room") == 1
    assert HeldJobsFile(stage.folder).read() == (1, {})


def test_the_second_time_it_waits_for_more_room(stage, job) -> None:
    stage.about_to_run_out(job)
    needed = stage.brake.document()[0]["needed_bytes"]
    stage.left = 12 * GIB
    stage.tick(stage.ram(Level.OK, cause=""))
    stage.tick(stage.ram(Level.OK, cause=""), seconds=60.0)
    stage.about_to_run_out(job)

    assert stage.brake.document()[0]["needed_bytes"] > needed


def test_its_owner_lets_it_go_on_and_it_is_left_alone_until_it_is_calm(stage, job) -> None:
    stage.about_to_run_out(job)
    CommandFile(stage.folder).append(1, "resume")
    (row,) = stage.tick(stage.ram(Level.CRITICAL))
    assert str(row.facts["outcome"]) == "was resumed by hand"
    assert stage.about_to_run_out(job) == []
    assert states(job.pid) <= {"S", "R"}

    stage.left = 12 * GIB
    stage.tick(stage.ram(Level.OK, cause=""))
    assert len(stage.about_to_run_out(job)) == 1


def test_an_order_for_another_number_means_nobody(stage, job) -> None:
    stage.about_to_run_out(job)
    CommandFile(stage.folder).append(2, "stop")
    assert stage.tick(stage.ram(Level.CRITICAL)) == []
    assert stage.value("brake_held_jobs") == 1


def test_its_owner_ends_it(stage, job) -> None:
    stage.about_to_run_out(job)
    CommandFile(stage.folder).append(1, "stop")
    stage.tick(stage.ram(Level.CRITICAL))
    assert job.wait() == -signal.SIGTERM
    (row,) = stage.tick(stage.ram(Level.CRITICAL))

    assert str(row.facts["outcome"]) == "was ended by order"


def test_one_that_does_not_end_is_killed_after_its_time(stage) -> None:
    with running(*python(DEAF), stdin=subprocess.PIPE) as job:
        stage.about_to_run_out(job)
        CommandFile(stage.folder).append(1, "stop")
        assert stage.tick(stage.ram(Level.CRITICAL)) == []
        assert stage.tick(stage.ram(Level.CRITICAL), seconds=TERM_SECONDS) == []
        assert job.wait() == -signal.SIGKILL
        assert len(stage.tick(stage.ram(Level.CRITICAL))) == 1


def test_one_that_takes_what_is_left_instead_of_ending_is_killed_at_once_and_not_paused_anew(stage) -> None:
    with running(*python(DEAF), stdin=subprocess.PIPE) as job:
        stage.about_to_run_out(job)
        CommandFile(stage.folder).append(1, "stop")
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


def test_one_that_is_to_end_when_others_have_taken_what_was_left_does_not_run_for_it(stage) -> None:
    saves = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('runs', flush=True))\n" + GROWS
    with running(*python(saves), stdin=subprocess.PIPE) as job:
        stage.about_to_run_out(job)
        stage.left = 200 * MIB
        CommandFile(stage.folder).append(1, "stop")
        stage.tick(stage.ram(Level.CRITICAL))

        assert job.wait() == -signal.SIGKILL
        assert job.stdout.read() == ""


@pytest.mark.parametrize(("way", "how"), [("resume", "time"), ("stop", "stopped")])
def test_after_the_minutes_to_decide_it_is_as_configured(stage, job, way, how) -> None:
    stage.brake._settings = replace(stage.brake._settings, hold_minutes=5.0, after_hold=way)
    stage.about_to_run_out(job)
    assert stage.tick(stage.ram(Level.CRITICAL), seconds=200.0) == []
    stage.tick(stage.ram(Level.CRITICAL), seconds=200.0)
    if way == "stop":
        assert job.wait() == -signal.SIGTERM
        stage.tick(stage.ram(Level.CRITICAL))

    assert stage.value("brake_ends", how) == 1


def test_somebody_who_lets_it_go_on_in_the_terminal_has_decided(stage, job) -> None:
    stage.about_to_run_out(job)
    eventually(lambda: states(job.pid) == {"T"}, "the stop")
    assert stage.tick(stage.ram(Level.CRITICAL)) == []
    os.kill(job.pid, signal.SIGCONT)
    eventually(lambda: states(job.pid) <= {"S", "R"}, "going on")
    (row,) = stage.tick(stage.ram(Level.CRITICAL))

    assert str(row.facts["outcome"]) == "was resumed by hand"


def test_one_that_has_not_come_to_a_stop_yet_was_not_let_go_on_by_anybody(stage, job, monkeypatch) -> None:
    stage.about_to_run_out(job)
    monkeypatch.setattr(pauser, "is_paused", lambda _: False)

    assert stage.tick(stage.ram(Level.CRITICAL)) == []
    assert stage.value("brake_held_jobs") == 1


def test_one_that_is_killed_meanwhile_is_no_longer_held(stage, job) -> None:
    stage.about_to_run_out(job)
    job.kill()
    job.wait()
    (row,) = stage.tick(stage.ram(Level.CRITICAL))

    assert str(row.facts["outcome"]) == "ended"


def test_when_the_brake_is_let_go_of_all_go_on(stage, job) -> None:
    stage.about_to_run_out(job)
    eventually(lambda: states(job.pid) == {"T"}, "the stop")
    stage.brake.close()
    eventually(lambda: states(job.pid) <= {"S", "R"}, "going on")
    assert HeldJobsFile(stage.folder).read() == (1, {})


def test_a_kind_of_memory_that_is_not_guarded_pauses_nobody(stage, job) -> None:
    stage.brake._settings = replace(stage.brake._settings, resources=("gpu",))
    assert stage.about_to_run_out(job) == []
    assert states(job.pid) <= {"S", "R"}


@pytest.mark.parametrize("loaded_mib", [100, 400])
def test_one_of_the_same_name_beside_it_that_has_stopped_growing_is_left_alone(stage, job, loaded_mib) -> None:
    def ram(level: Level, left_mib: int) -> Forecast:
        return stage.ram(level, headroom_bytes=left_mib * MIB, capacity_bytes=4 * GIB, window_seconds=60.0)

    with running(*python(GROWS), stdin=subprocess.PIPE) as earlier:
        stage.tick(ram(Level.WARNING, 250 + loaded_mib))
        take(earlier, loaded_mib)
        stage.tick(ram(Level.WARNING, 250), seconds=4.0)
        take(job, 100)
        assert len(stage.tick(ram(Level.CRITICAL, 150), seconds=4.0)) == 1
        eventually(lambda: states(job.pid) == {"T"}, "the stop")

        assert states(earlier.pid) <= {"S", "R"}


def test_another_users_job_is_left_alone_and_counted_once(stage, job) -> None:
    stage.brake._users = frozenset({US + 1})
    assert stage.about_to_run_out(job) == []
    assert stage.tick(stage.ram(Level.CRITICAL)) == []

    assert states(job.pid) <= {"S", "R"}
    assert stage.value("brake_spared", "user") == 1


def test_nobody_is_paused_who_cannot_be_noted_on_disk(stage, job) -> None:
    stage.brake._file = HeldJobsFile(stage.folder / "gone")
    assert stage.about_to_run_out(job) == []
    eventually(lambda: states(job.pid) <= {"S", "R"}, "going on")

    assert stage.value("brake_spared", "refused") == 1
    assert stage.brake.document() == ()


def test_a_watchdog_that_has_been_killed_is_replaced_before_anybody_is_paused(stage, job) -> None:
    first = stage.brake._watchdog.pid
    os.kill(first, signal.SIGKILL)
    eventually(lambda: not stage.brake._watchdog.alive(), "its end")
    stage.tick(stage.ram(Level.OK))
    assert stage.brake._watchdog.pid != first
    assert stage.value("brake_ready") == 1

    assert len(stage.about_to_run_out(job)) == 1


def card(stage: Stage, job: subprocess.Popen[str], **more: object) -> Forecast:
    who = {"who": f"python (pid {job.pid})", "who_kind": "process", "who_pid": job.pid}
    facts = {"level": Level.CRITICAL, "resource": "gpu0", "headroom_bytes": 300 * MIB, **who, **more}
    return replace(stage.ram(), **facts)


def test_whom_the_driver_of_a_card_names_is_paused(stage, job) -> None:
    (row,) = stage.tick(card(stage, job))
    eventually(lambda: states(job.pid) == {"T"}, "the stop")

    assert (row.resource, row.facts["who"]) == ("gpu0", f"python (pid {job.pid})")


def test_a_card_that_filled_fast_must_have_as_much_room_again_also_if_ram_grew_before(stage, job) -> None:
    filling = card(stage, job, rate_bytes_per_second=50.0 * MIB)
    stage.tick(stage.ram(), replace(filling, level=Level.WARNING))
    stage.tick(stage.ram(), filling, seconds=3.0)

    (held,) = stage.brake.document()
    assert held["needed_bytes"] == (300 + 60 * 50) * MIB


@pytest.mark.parametrize(("configured", "paused"), [(1.0, 0), (0.95, 0), (0.9, 1)])
def test_who_is_only_probably_the_one_is_paused_only_if_that_was_wanted(stage, job, configured, paused) -> None:
    stage.brake._settings = replace(stage.brake._settings, act_on_likelihood=configured)
    guess = say("probably {who}, {chance_ratio}", who=f"python (pid {job.pid})", chance_ratio=0.91)
    rows = stage.tick(card(stage, job, who=guess, who_kind="guess"))

    assert len(rows) == paused
    assert stage.value("brake_spared", "unsure") == (None if paused else 1)


def test_two_jobs_of_one_resource_are_one_row_that_names_the_last_and_counts_the_others(stage, job) -> None:
    with running(*python(GROWS), stdin=subprocess.PIPE) as other:
        stage.tick(card(stage, job))
        (row,) = stage.tick(card(stage, other), seconds=2.0)
        assert (row.facts["job"], row.facts["more"]) == (2, 1)

        CommandFile(stage.folder).append(2, "resume")
        (row,) = stage.tick(card(stage, other, level=Level.WARNING))
        assert (row.new, row.facts["job"]) == (Level.CRITICAL, 1)
        assert [one.pid for one in below(job.pid)] == [job.pid]


def test_who_and_what_is_configured_must_be_there() -> None:
    with pytest.raises(ConfigError, match="no user nobody-here"):
        allowed_users(BrakeSettings(users=("nobody-here",)))
    with pytest.raises(ConfigError, match=r"brake\.resources: disk is none of ram, gpu, cgroup"):
        allowed_users(BrakeSettings(resources=("disk",)))
    assert allowed_users(BrakeSettings()) == {US}


def test_commands_on_a_machine_without_a_daemon_say_so(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path))
    listed, resumed, released = (
        wslgpud("brake", *words, *state, home=tmp_path) for words in (["list"], ["resume", "3"], ["release"])
    )

    assert listed.stdout == released.stdout == "no job is paused\n"
    assert (resumed.returncode, resumed.stderr) == (2, "wslgpud: job 3 is not paused: none is\n")
