"""``wslgpud brake``: on and off in the configuration, and commands about paused jobs with and without a daemon."""

from __future__ import annotations

import json
import os
import pwd
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.brake.real_jobs import IDLE, below, python, running
from tests.support.daemons import saying
from wslgpud import config as configuration
from wslgpud.brake import watchdog
from wslgpud.brake.watchdog import HeldJobsFile
from wslgpud.cli import app
from wslgpud.cli.brake import lines
from wslgpud.config import BrakeSettings
from wslgpud.security.exact_signals import ExactProcess
from wslgpud.serve.commands import brake_route

ME = pwd.getpwuid(os.geteuid()).pw_name
MIB = 1 << 20
HELD = {
    "job": 3,
    "who": "train.py (pid 7)",
    "paused": "2026-11-20T14:00:00+00:00",
    "ran_seconds": 90.0,
    "ending": False,
    "size_bytes": 600 * MIB,
    "needed_bytes": 120 * MIB,
    "resource": "ram",
    "processes": 1,
}


#: that the daemon was given
COMMANDS: list[tuple[int, str]] = []


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    """The state folder of a daemon that has paused jobs 3 and 4."""
    document = {"at": "2026-11-20T14:00:01+00:00", "held": [HELD, {**HELD, "job": 4}]}
    brake: Any = SimpleNamespace(commands=COMMANDS, document=lambda: document["held"])
    with saying(tmp_path, document, brake_route(brake)):
        yield tmp_path
    COMMANDS.clear()


def run(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(app, ["brake", *words], env={"COLUMNS": "200", "SUDO_USER": "", **environment})


def failed(*words: str) -> str:
    done = run(*words)
    assert done.exit_code == 2
    return str(done.exception) + done.output


def settings(file: Path) -> BrakeSettings:
    return configuration.load(file, {}).config.brake


def test_the_brake_turns_on_for_oneself_and_all_memory_and_off(tmp_path: Path) -> None:
    file = tmp_path / "wslgpud.toml"
    told = run("on", "--config", str(file)).output.splitlines()

    assert told == [
        f"the brake is on for {ME}: ram, gpu, cgroup",
        f"written to {file}; takes effect when the daemon restarts",
    ]
    assert (settings(file).on, settings(file).users) == (True, (ME,))
    assert settings(file).resources == ("ram", "gpu", "cgroup")

    assert run("off", "--config", str(file)).output.splitlines()[0] == "the brake is off"
    assert settings(file).on is False


def test_the_brake_covers_the_sudo_caller_or_the_named_users(tmp_path: Path) -> None:
    file = tmp_path / "wslgpud.toml"
    run("on", "--config", str(file), SUDO_USER="root")
    assert settings(file).users == ("root",)

    run("on", "--user", ME, "--resources", "ram,cgroup", "--config", str(file), SUDO_USER="root")
    assert (settings(file).users, settings(file).resources) == ((ME,), ("ram", "cgroup"))


def test_an_unknown_user_or_kind_of_memory_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "wslgpud.toml"

    assert "no user nobody-here" in failed("on", "--user", "nobody-here", "--config", str(file))
    assert "disk is not one of ram, gpu, cgroup" in failed("on", "--resources", "disk", "--config", str(file))
    assert not file.exists()


@pytest.mark.parametrize(("uid", "services"), [(0, True), (1, False), (1000, False)])
def test_root_turns_on_the_brake_of_the_sandboxed_service(
    uid: int, services: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, own = tmp_path / "etc/wslgpud.toml", tmp_path / "own/wslgpud/wslgpud.toml"
    for file in (service, own):
        file.parent.mkdir(parents=True)
    monkeypatch.setattr(configuration, "SYSTEM_FILE", service)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    told = run("on", "--user", ME, HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path / "own")).output

    assert (service.exists(), own.exists()) == (services, not services), told
    assert ("'sudo wslgpud service install --allow brake'" in told) is services


def test_a_paused_job_is_listed_with_all_that_is_known_of_it() -> None:
    left = [{"resource": "ram", "headroom_bytes": 60 * MIB}]

    def about(**more: Any) -> str:
        return lines({"held": [{**HELD, **more}], "forecasts": left})[1].strip()

    assert lines({"held": [HELD]})[1:] == [
        "      uses 600 MiB; resumes automatically at 120 MiB of RAM free",
        "      sudo wslgpud brake resume 3  |  sudo wslgpud brake stop 3",
    ]
    assert about() == "uses 600 MiB; resumes automatically at 120 MiB of RAM free (60 MiB now)"
    assert about(processes=2).startswith("uses 600 MiB in 2 processes; ")
    assert about(resource="gpu0") == "uses 600 MiB; resumes automatically at 120 MiB of GPU 0 free"
    assert about(ending=True) == "stopping: SIGTERM sent"


def test_the_daemon_resumes_and_stops_its_jobs_one_by_one(daemon: Path) -> None:
    state = ("--state", str(daemon))

    assert run("resume", "3", *state).output == "resuming job 3\n"
    assert run("stop", "4", *state).output == "stopping job 4\n"
    assert COMMANDS == [(3, "resume"), (4, "stop")]
    assert "job 5 is not paused; these are: 3, 4" in failed("resume", "5", *state)
    assert "the running daemon manages its paused jobs" in failed("release", *state)
    assert json.loads(run("list", "--json", *state).output)["held"][0] == HELD
    assert run("list", *state).output.count("resumes automatically") == 2


def test_a_job_that_is_being_stopped_cannot_be_resumed(tmp_path: Path) -> None:
    """The daemon is about to kill it: that it is being resumed would be a lie."""
    held = [{**HELD, "ending": True}]
    brake: Any = SimpleNamespace(commands=COMMANDS, document=lambda: held)
    with saying(tmp_path, {"at": "2026-11-20T14:00:01+00:00", "held": held}, brake_route(brake)):
        assert "job 3 is not paused; no job is" in failed("resume", "3", "--state", str(tmp_path))
    assert COMMANDS == []


def test_jobs_that_cannot_be_resumed_are_not_called_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = ("--state", str(tmp_path))
    with running(*python(IDLE)) as job:
        HeldJobsFile(tmp_path).write(2, {2: tuple(below(job.pid))})
        monkeypatch.setattr(watchdog, "send", lambda *_: "Operation not permitted")
        assert "job 2 cannot be resumed: Operation not permitted" in failed("release", *state)
    (tmp_path / "held.json").unlink()
    (tmp_path / "held.json").mkdir()
    assert "held.json cannot be read: " in failed("release", *state)


def test_what_a_daemon_that_died_has_left_paused_is_resumed(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path))
    gone = (ExactProcess(4_190_000, 1, 0),)
    with running(*python(IDLE)) as job:
        os.kill(job.pid, signal.SIGSTOP)
        HeldJobsFile(tmp_path).write(2, {1: gone, 2: tuple(below(job.pid))})

        assert run("release", *state).output == "jobs resumed: 1\n"
    assert run("release", *state).output == "no job is paused\n"
    assert run("list", *state).output == "no job is paused\n"
    assert "job 1 is not paused; no job is" in failed("stop", "1", *state)
