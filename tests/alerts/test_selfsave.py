"""A program that grows is asked to save itself only if that was configured, and only the right one."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.alerts.ticks import START
from tests.support.daemons import eventually
from wslgpud.alerts.selfsave import SelfSave, send
from wslgpud.config import Alerts, ConfigError
from wslgpud.model import Forecast, Level, ProcessSample, Transition

TRAINING = """
import sys
from wslgpud.alerts.save_on_signal import SaveOnSignal
asked = SaveOnSignal()
print("ready", flush=True)
step = 0
while True:
    step += 1
    if asked():
        print("saved", flush=True)
    import time; time.sleep(0.01)
"""
IDLE = "import time\nprint('ready', flush=True)\ntime.sleep(600)"


@contextmanager
def program(code: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def change(
    pid: int, level: Level = Level.CRITICAL, old: Level = Level.OK, kind: str = "process"
) -> Transition:
    forecast = Forecast("ram", level, 1, 100, who=f"python x (pid 1) (pid {pid})", who_kind=kind)
    return Transition(START, 1.0, "ram", "memory_exhaustion", old, level, "", forecast)


def sample(pid: int, start: int | None = None) -> ProcessSample:
    return ProcessSample(pid, start_ticks(pid) if start is None else start, "python", 1, 0)


def test_a_training_loop_is_asked_once_and_saves() -> None:
    saver = SelfSave(Alerts(save_signal="SIGUSR1"))
    with program(TRAINING) as training:
        assert saver.note(change(training.pid, Level.WARNING), [sample(training.pid)]) == ""
        assert "was sent SIGUSR1" in saver.note(change(training.pid), [sample(training.pid)])
        assert saver.note(change(training.pid, Level.EMERGENCY), [sample(training.pid)]) == ""
        assert training.stdout.readline() == "saved\n"


def test_one_that_would_die_of_the_signal_is_left_alone() -> None:
    with program(IDLE) as idle:
        said = SelfSave(Alerts(save_signal="SIGUSR1")).note(change(idle.pid), [sample(idle.pid)])

        assert "does not catch SIGUSR1" in said
        assert idle.poll() is None


def test_a_stopped_program_goes_on_when_it_is_over() -> None:
    saver = SelfSave(Alerts(save_signal="SIGSTOP"))
    with program(IDLE) as idle:
        saver.note(change(idle.pid), [sample(idle.pid)])
        eventually(lambda: state(idle.pid) == "T", "the stop")
        saver.note(change(idle.pid, Level.OK, Level.CRITICAL), [sample(idle.pid)])
        eventually(lambda: state(idle.pid) != "T", "going on")


def test_a_stopped_program_goes_on_when_the_daemon_ends() -> None:
    saver = SelfSave(Alerts(save_signal="SIGSTOP"))
    with program(IDLE) as idle:
        saver.note(change(idle.pid), [sample(idle.pid)])
        eventually(lambda: state(idle.pid) == "T", "the stop")
        saver.close()
        eventually(lambda: state(idle.pid) != "T", "going on")


def test_a_pid_that_belongs_to_another_process_now_is_spared() -> None:
    with program(IDLE) as idle:
        assert "another process" in send((idle.pid, start_ticks(idle.pid) - 1), signal.SIGTERM, os.geteuid())
        assert "another user" in send((idle.pid, start_ticks(idle.pid)), signal.SIGTERM, os.geteuid() + 1)
        assert send((idle.pid, start_ticks(idle.pid)), signal.SIGTERM, os.geteuid()) == ""
        handle = os.pidfd_open(idle.pid)
        assert select.select([handle], [], [], 30)[0]
        os.close(handle)
        assert send((idle.pid, 1), signal.SIGTERM, os.geteuid()) != ""


def test_the_system_and_ourselves_are_never_asked() -> None:
    for pid in (0, 1, os.getpid()):
        assert "system's or our own" in send((pid, 1), signal.SIGTERM, os.geteuid())


def test_without_configuration_nothing_is_ever_sent() -> None:
    with program(IDLE) as idle:
        assert SelfSave(Alerts()).note(change(idle.pid, Level.EMERGENCY), [sample(idle.pid)]) == ""
        assert idle.poll() is None


@pytest.mark.parametrize("kind", ["group", "guess", "tmpfs", ""])
def test_only_a_single_known_culprit_is_asked(kind: str) -> None:
    with program(IDLE) as idle:
        saver = SelfSave(Alerts(save_signal="SIGTERM"))
        assert saver.note(change(idle.pid, kind=kind), [sample(idle.pid)]) == ""


def test_a_user_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="no user nobody-here"):
        SelfSave(Alerts(save_user="nobody-here"))
