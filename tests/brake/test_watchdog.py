"""However the daemon ends, its paused jobs are resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.brake.real_jobs import IDLE, US, below, python, running, states
from tests.support import daemons
from tests.support.daemons import eventually
from wslgpud.brake import watchdog
from wslgpud.brake.watchdog import HeldJob, HeldJobsFile, Watchdog
from wslgpud.security.exact_signals import ExactProcess

ROOT = Path(__file__).parents[2]
#: a daemon that pauses a job and then sleeps for ever
HOLDER = """
import json, signal, sys
from wslgpud.brake import watchdog
from wslgpud.brake.watchdog import Watchdog
dog = Watchdog()
held = watchdog.from_json(json.loads(sys.argv[1]))
assert dog.update([held])
assert watchdog.stop(held) == ""
print("ready", flush=True)
signal.pause()
"""


def holder(held: HeldJob) -> tuple[str, ...]:
    return sys.executable, "-c", HOLDER, json.dumps(held)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_job_is_resumed_when_the_daemon_is_killed(number: signal.Signals) -> None:
    with running(*python(IDLE)) as job:
        with running(*holder(tuple(below(job.pid))), cwd=ROOT) as daemon:
            eventually(lambda: states(job.pid) == {"T"}, "the stop")
            daemon.send_signal(number)
        eventually(lambda: states(job.pid) <= {"S", "R"}, "the resumption")


@pytest.mark.parametrize("how", ["stopped", "silent but for an earlier list"])
def test_a_job_is_resumed_when_the_daemon_gives_no_sign_of_life(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is stopped, or hangs, would hold the job for as long as nobody looks."""
    monkeypatch.setattr(watchdog, "SILENCE_SECONDS", 0.2)
    (to_child, ours), (confirmed, theirs) = os.pipe(), os.pipe()
    with running(*python(IDLE)) as job:
        held = tuple(below(job.pid))
        line = json.dumps([held]).encode() + b"\n"
        assert watchdog.stop(held) == ""
        with os.fdopen(to_child, "rb") as updates, os.fdopen(theirs, "wb") as answers:
            child = threading.Thread(target=watchdog.watch, args=(updates, answers))
            child.start()
            for _ in range(1 if how == "stopped" else 3):
                os.write(ours, line)
                assert os.read(confirmed, 1) == b"+"
            eventually(lambda: states(job.pid) <= {"S", "R"}, "the resumption")
            os.close(ours)
            child.join()
        os.close(confirmed)


def test_signals_sent_to_the_whole_unit_do_not_end_the_watchdog() -> None:
    dog = Watchdog()
    try:
        assert dog.update([])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(dog.pid, number)
        assert dog.update([])
        assert dog.alive()
    finally:
        dog.close()


def test_a_job_resumed_earlier_is_not_resumed_again_at_the_end() -> None:
    with running(*python(IDLE)) as job:
        dog = Watchdog()
        own = tuple(below(job.pid))
        assert dog.update([own])
        assert dog.update([])
        os.kill(job.pid, signal.SIGSTOP)
        eventually(lambda: states(job.pid) == {"T"}, "the stop by the user")
        dog.close()

        assert states(job.pid) == {"T"}


def test_the_largest_job_is_confirmed() -> None:
    dog = Watchdog()
    try:
        assert dog.update([tuple(ExactProcess(2**22 - n, 10**9, US) for n in range(watchdog.MAX_PROCESSES))])
    finally:
        dog.close()


def test_a_killed_watchdog_confirms_nothing() -> None:
    dog = Watchdog()
    os.kill(dog.pid, signal.SIGKILL)
    eventually(lambda: not dog.alive(), "the watchdog's exit")
    try:
        assert not dog.update([])
    finally:
        dog.close()


def test_a_watchdog_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    dog = Watchdog()
    assert dog.update([])
    monkeypatch.setattr(watchdog, "CONFIRM_SECONDS", 0.5)
    os.kill(dog.pid, signal.SIGSTOP)
    try:
        assert not dog.update([])
        eventually(lambda: not dog.alive(), "the watchdog's exit")
    finally:
        dog.close()


def test_the_watchdog_imports_next_to_nothing() -> None:
    code = "import sys; import wslgpud.brake.watchdog; print(*[m for m in sys.modules if m.startswith('wslgpud')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert {*done.stdout.split()} == {
        "wslgpud",
        "wslgpud.brake",
        "wslgpud.brake.watchdog",
        "wslgpud.security",
        "wslgpud.security.exact_signals",
        "wslgpud.security.safe_files",
    }


def test_the_file_resumes_all_jobs_and_keeps_the_last_number(tmp_path: Path) -> None:
    with running(*python(IDLE)) as job:
        file = HeldJobsFile(tmp_path)
        held = tuple(below(job.pid))
        file.write(7, {7: held})
        assert file.read() == (7, {7: held})
        watchdog.stop(held)
        eventually(lambda: states(job.pid) == {"T"}, "the stop")

        assert file.resume_all() == {7: ""}
        eventually(lambda: states(job.pid) <= {"S", "R"}, "the resumption")
        assert file.read() == (7, {})
        assert file.resume_all() == {}


def test_a_job_that_may_not_be_resumed_stays_on_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that has lost its right to send signals would else forget the job: nobody could find it again."""
    with running(*python(IDLE)) as job:
        file = HeldJobsFile(tmp_path)
        held, gone = tuple(below(job.pid)), (ExactProcess(2**22 - 1, 1, US),)
        file.write(8, {7: held, 8: gone})
        monkeypatch.setattr(watchdog, "send", lambda *_: "Operation not permitted")

        assert file.resume_all() == {7: "Operation not permitted"}
        assert file.read() == (8, {7: held})


def test_the_next_daemon_resumes_jobs_even_with_the_brake_off(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with running(*python(IDLE)) as job:
        held = tuple(below(job.pid))
        HeldJobsFile(tmp_path / "state").write(7, {7: held})
        watchdog.stop(held)
        eventually(lambda: states(job.pid) == {"T"}, "the stop")

        with daemons.daemon(tmp_path) as later:
            eventually(lambda: states(job.pid) <= {"S", "R"}, "the resumption")
            assert "resuming job 7, which a daemon that died had paused" in later.end()[1]


BOOT = watchdog.boot_id()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"last": 3}',
        '{"boot_id": "another", "last": 3, "held": {"3": [[1, 1, 0]]}}',
        '{"boot_id": "BOOT", "last": 3, "held": [1]}',
        '{"boot_id": "BOOT", "last": 3, "held": {"3": [["x"]]}}',
        '{"boot_id": "BOOT", "last": 3, "held": {"3": {"1": 1}}}',
        '{"boot_id": "BOOT", "last": 3, "held": {"3": "111"}}',
        '{"boot_id": "BOOT", "last": 3, "held": {"x": []}}',
        '{"boot_id": "BOOT", "last": 1e400, "held": {}}',
        '{"boot_id": "BOOT", "last": 3, "held": ' + "[" * 100_000,
    ],
)
def test_a_file_of_another_boot_or_a_hostile_one_resumes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "held.json").write_text(text.replace("BOOT", BOOT))

    assert HeldJobsFile(tmp_path).read()[1] == {}
    assert HeldJobsFile(tmp_path).resume_all() == {}


def test_the_file_is_not_read_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    HeldJobsFile(tmp_path).write(1, {1: (ExactProcess(1, 1, 0),)})
    (tmp_path / "state/held.json").symlink_to(tmp_path / "held.json")

    assert HeldJobsFile(tmp_path / "state").read() == (0, {})


LOCKS = """
import os, resource, sys
from wslgpud.brake.watchdog import stay_resident
if "limited" in sys.argv:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 << 20, 8 << 20))
    if os.geteuid() == 0: os.setuid(65534)
print(stay_resident())
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmLck:")))
"""


def locked(*words: str) -> tuple[str, int]:
    """Return, from a process of its own, why memory was not locked (or an empty text) and the KiB locked."""
    done = subprocess.run([sys.executable, "-c", LOCKS, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    why, kib = done.stdout.splitlines()
    return why, int(kib)


def test_memory_is_not_locked_under_a_finite_limit() -> None:
    assert locked("limited") == ("RLIMIT_MEMLOCK is 8388608, not unlimited", 0)


def test_memory_is_locked_without_a_limit() -> None:
    why, kib = locked()

    assert kib > 1 << 10 if why == "" else why.startswith("RLIMIT_MEMLOCK is ")
