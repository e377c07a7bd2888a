"""A program that grows is asked to save itself only if that was configured, and only the right one."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from wslgpud.alerts.save_request import SaveRequests
from wslgpud.config import Alerts, ConfigError
from wslgpud.model import Forecast, Level, ProcessSample
from wslgpud.security.exact_signals import ExactProcess, send
from wslgpud.training import SaveOnSignal

ROOT = Path(__file__).parents[2]
TRAINING = """
import sys
from wslgpud.training import SaveOnSignal
asked = SaveOnSignal()
print("ready", flush=True)
step = 0
while True:
    step += 1
    if asked():
        print("saved", flush=True)
    import time; time.sleep(0.01)
"""
US = os.geteuid()
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


def change(pid: int, level: Level = Level.CRITICAL, kind: str = "process", resource: str = "ram") -> Forecast:
    return Forecast(resource, level, 1, 100, who=f"python x (pid {pid})", who_kind=kind, who_pid=pid)


def sample(pid: int, start: int | None = None) -> ProcessSample:
    return ProcessSample(pid, start_ticks(pid) if start is None else start, "python", 1, 0)


def test_a_training_loop_is_asked_once_and_saves() -> None:
    saver = SaveRequests(Alerts(save_signal="SIGUSR1"))
    with program(TRAINING) as training:
        assert saver.ask(change(training.pid, Level.WARNING), [sample(training.pid)]) == ""
        assert "was sent SIGUSR1" in saver.ask(change(training.pid), [sample(training.pid)])
        assert saver.ask(change(training.pid, Level.EMERGENCY), [sample(training.pid)]) == ""
        assert training.stdout.readline() == "saved\n"


def test_a_training_with_room_left_is_asked_only_when_it_is_gone() -> None:
    saver = SaveRequests(Alerts(save_signal="SIGUSR1"))

    def asked(percent: float, level: Level = Level.CRITICAL) -> bool:
        forecast = replace(change(training.pid, level), headroom_bytes=int(10 * percent), capacity_bytes=1000)
        return "was sent SIGUSR1" in saver.ask(forecast, [sample(training.pid)])

    with program(TRAINING) as training:
        assert [asked(8.6), asked(8.5), asked(8.4)] == [False, True, False]
        assert not asked(40.0, Level.WARNING)
        assert not asked(8.5), "the alarm is still the same"
        assert not asked(90.0, Level.OK)
        assert asked(8.5)


def test_a_training_paused_by_the_brake_is_not_asked_to_save() -> None:
    saver = SaveRequests(Alerts(save_signal="SIGTERM"))
    with program(IDLE) as job:
        held = sample(job.pid)
        assert saver.ask(change(job.pid), [held], frozenset({held.key})) == ""
        assert "was sent SIGTERM" in saver.ask(change(job.pid), [held])
        job.wait()


def test_who_wants_it_at_a_warning_gets_it_there() -> None:
    saver = SaveRequests(Alerts(save_signal="SIGUSR1", save_level="warning"))
    with program(TRAINING) as training:
        row = change(training.pid, Level.WARNING)
        row = replace(row, headroom_bytes=20)
        assert "was sent SIGUSR1" in saver.ask(row, [sample(training.pid)])


def test_a_request_arriving_during_a_check_is_kept_for_the_next() -> None:
    class Interrupted(SaveOnSignal):
        """Requested at the worst moment: just after it has checked that there is no request."""

        seen, noted = False, False

        @property
        def _pending(self) -> bool:
            if not self.seen:
                self.seen = True
                signal.raise_signal(signal.SIGUSR1)
                return False
            return self.noted

        @_pending.setter
        def _pending(self, value: bool) -> None:
            self.noted = value

    before = signal.getsignal(signal.SIGUSR1)
    try:
        asked = Interrupted()
        assert [asked(), asked(), asked()] == [False, True, False]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_one_that_would_die_of_the_signal_is_left_alone() -> None:
    with program(IDLE) as idle:
        said = SaveRequests(Alerts(save_signal="SIGUSR1")).ask(change(idle.pid), [sample(idle.pid)])

        assert "does not catch SIGUSR1" in said
        assert idle.poll() is None


def test_one_asked_in_vain_is_asked_again_at_a_higher_level() -> None:
    saver = SaveRequests(Alerts(save_signal="SIGUSR1"))
    with program(IDLE) as idle:
        levels = (Level.CRITICAL, Level.CRITICAL, Level.EMERGENCY, Level.EMERGENCY)
        said = [saver.ask(change(idle.pid, level), [sample(idle.pid)]) for level in levels]

    assert ["does not catch SIGUSR1" in line for line in said] == [True, False, True, False]


def test_a_pid_that_belongs_to_another_process_now_is_spared() -> None:
    with program(IDLE) as idle:
        assert "another process" in send(ExactProcess(idle.pid, start_ticks(idle.pid) - 1, US), signal.SIGTERM)
        assert "another user" in send(ExactProcess(idle.pid, start_ticks(idle.pid), US + 1), signal.SIGTERM)
        assert send(ExactProcess(idle.pid, start_ticks(idle.pid), US), signal.SIGTERM) == ""
        handle = os.pidfd_open(idle.pid)
        assert select.select([handle], [], [], 30)[0]
        os.close(handle)
        assert send(ExactProcess(idle.pid, 1, US), signal.SIGTERM) != ""


def test_the_system_and_ourselves_are_never_asked() -> None:
    for pid in (0, 1, os.getpid()):
        assert "system's or our own" in send(ExactProcess(pid, 1, US), signal.SIGTERM)


def test_without_configuration_nothing_is_ever_sent() -> None:
    with program(IDLE) as idle:
        assert SaveRequests(Alerts()).ask(change(idle.pid, Level.EMERGENCY), [sample(idle.pid)]) == ""
        assert idle.poll() is None


@pytest.mark.parametrize("kind", ["group", "guess", "tmpfs", ""])
def test_only_a_single_known_culprit_is_asked(kind: str) -> None:
    with program(IDLE) as idle:
        saver = SaveRequests(Alerts(save_signal="SIGTERM"))
        assert saver.ask(change(idle.pid, kind=kind), [sample(idle.pid)]) == ""


def test_whoever_has_the_pid_of_one_that_grew_long_ago_is_spared() -> None:
    saver = SaveRequests(Alerts(save_signal="SIGTERM", save_level="warning"))
    with program(IDLE) as idle:
        eased = replace(change(idle.pid, Level.WARNING), cause="paused", window_seconds=900.0)

        assert saver.ask(eased, [sample(idle.pid)]) == ""
        assert idle.poll() is None


@pytest.mark.parametrize(
    ("cgroup", "asked"), [("/build", True), ("/build/job1", True), ("/builder", False), ("/", False), ("", False)]
)
def test_of_a_full_cgroup_only_one_of_its_own_is_asked(cgroup: str, asked: bool) -> None:
    saver = SaveRequests(Alerts(save_signal="SIGUSR1"))
    with program(TRAINING) as training:
        row = change(training.pid, resource="cgroup:/build")
        said = saver.ask(row, [replace(sample(training.pid), cgroup=cgroup)])

    assert ("was sent SIGUSR1" in said) is asked


def test_a_user_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="no user nobody-here"):
        SaveRequests(Alerts(save_user="nobody-here"))
