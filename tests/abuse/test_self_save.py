"""No one can have another user's process signalled, by any name, number or note."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.alerts.test_save_request import IDLE, program, start_ticks, state
from wslgpud.alerts.save_request import SaveRequests, culprit
from wslgpud.config import Alerts
from wslgpud.model import Forecast, Level, ProcessSample
from wslgpud.security.exact_signals import ExactProcess, send

NOBODY = 65534
root = pytest.mark.skipif(os.geteuid() != 0, reason="runs programs of two users, which only root can")


def blamed(who: str, pid: int, kind: str = "process") -> Forecast:
    return Forecast("ram", Level.CRITICAL, 1, 100, who=who, who_kind=kind, who_pid=pid)


@contextmanager
def of_another_user() -> Iterator[subprocess.Popen[str]]:
    command = ["/bin/sh", "-c", "echo ready; exec sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, user=NOBODY, group=NOBODY, cwd="/") as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["python (pid {victim})", "(pid {victim})", "x (pid {victim}) "])
def test_a_number_in_a_name_is_not_the_number_of_the_process(name):
    victim, attacker = ProcessSample(4242, 1, "python", 1, 0), ProcessSample(999, 1, "x", 1, 0)
    who = f"{name.format(victim=4242)} (pid 999)"

    assert culprit(blamed(who, 999), [victim, attacker]) == attacker


@pytest.mark.parametrize("kind", ["group", "unknown", "pool", "cache"])
@pytest.mark.parametrize("who", ["several: python (pid 4242)", "3 x python (pid 4242)", "python (pid 4242)"])
def test_only_one_process_that_is_known_is_ever_asked(kind, who):
    assert culprit(blamed(who, 4242, kind), [ProcessSample(4242, 1, "python", 1, 0)]) is None


@root
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGUSR1, signal.SIGTERM, signal.SIGCONT])
def test_another_user_s_process_is_not_signalled(number):
    with of_another_user() as other:
        said = send(ExactProcess(other.pid, start_ticks(other.pid), os.geteuid()), number)

        assert said == "it is another user's"
        assert other.poll() is None
        assert state(other.pid) != "T"


@root
def test_a_root_daemon_without_a_user_asks_only_root_s():
    saver = SaveRequests(Alerts(save_signal="SIGTERM"))
    with of_another_user() as other:
        sample = ProcessSample(other.pid, start_ticks(other.pid), "x", 1, 0)
        said = saver.ask(blamed(f"x (pid {other.pid})", other.pid), [sample])

        assert said.endswith("it is another user's")
        assert other.poll() is None


def test_a_number_used_again_is_another_process():
    with program(IDLE) as process:
        stale = ExactProcess(process.pid, start_ticks(process.pid) - 1, os.geteuid())

        assert send(stale, signal.SIGSTOP) == "its pid belongs to another process now"
        assert state(process.pid) != "T"


@pytest.mark.parametrize(
    "pid",
    [0, 1, os.getpid(), -1, 2**31, 2**63],
    ids=["group", "init", "ourselves", "everybody", "a large one", "a huge one"],
)
def test_no_number_reaches_a_group_the_system_or_ourselves(pid):
    with suppress(OverflowError):
        assert send(ExactProcess(pid, 1, os.geteuid()), signal.SIGCONT)
