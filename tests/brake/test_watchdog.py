"""Whatever becomes of the daemon, what it held goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.brake.real_jobs import IDLE, US, below, cgroup, python, running, states
from tests.support.daemons import eventually
from wslgpud.brake import grip
from wslgpud.brake.grip import Grip, HeldFile
from wslgpud.brake.watchdog import Watchdog
from wslgpud.security.exact_signals import ExactProcess

ROOT = Path(__file__).parents[2]
#: a daemon that holds a job, and then stands still for ever
HOLDER = """
import json, signal, sys
from wslgpud.brake import grip
from wslgpud.brake.watchdog import Watchdog
dog = Watchdog()
held = grip.known(json.loads(sys.argv[1]))
assert dog.tell([held])
if held.cgroup: grip.set_frozen(held.cgroup, frozen=True)
else: assert grip.stop_each(held.members) == {}
print("ready", flush=True)
signal.pause()
"""


def holder(held: Grip) -> tuple[str, ...]:
    return sys.executable, "-c", HOLDER, json.dumps(grip.told(held))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_job_goes_on_when_the_daemon_is_killed(number: signal.Signals) -> None:
    with running(*python(IDLE)) as job:
        with running(*holder(Grip(tuple(below(job.pid)))), cwd=ROOT) as daemon:
            eventually(lambda: states(job.pid) == {"T"}, "the stop")
            daemon.send_signal(number)
        eventually(lambda: states(job.pid) <= {"S", "R"}, "going on")


def test_a_frozen_cgroup_is_thawed_when_the_daemon_is_killed() -> None:
    with cgroup("dog") as folder, running(*python(IDLE)) as job:
        (folder / "cgroup.procs").write_text(str(job.pid))
        with running(*holder(Grip(tuple(below(job.pid)), str(folder))), cwd=ROOT) as daemon:
            eventually(lambda: grip.is_frozen(str(folder)) is True, "the freeze")
            daemon.kill()
        eventually(lambda: grip.is_frozen(str(folder)) is False, "the thaw")


def test_signals_that_end_a_whole_unit_do_not_end_it_before_the_daemon() -> None:
    dog = Watchdog()
    try:
        assert dog.tell([])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(dog.pid, number)
        assert dog.tell([])
        assert dog.alive()
    finally:
        dog.close()


def test_what_was_let_go_on_before_the_end_is_not_touched_at_the_end() -> None:
    with running(*python(IDLE)) as job:
        dog = Watchdog()
        own = Grip(tuple(below(job.pid)))
        assert dog.tell([own])
        assert dog.tell([])
        os.kill(job.pid, signal.SIGSTOP)
        eventually(lambda: states(job.pid) == {"T"}, "a stop of somebody else's")
        dog.close()

        assert states(job.pid) == {"T"}


def test_of_the_largest_jobs_it_takes_note_as_well() -> None:
    dog = Watchdog()
    try:
        assert dog.tell([Grip(tuple(ExactProcess(2**22 - n, 10**9, US) for n in range(grip.MOST_IDENTITIES)))])
    finally:
        dog.close()


def test_one_that_has_been_killed_confirms_nothing() -> None:
    dog = Watchdog()
    os.kill(dog.pid, signal.SIGKILL)
    eventually(lambda: not dog.alive(), "its end")
    try:
        assert not dog.tell([])
    finally:
        dog.close()


def test_one_that_does_not_answer_is_given_up() -> None:
    dog = Watchdog()
    assert dog.tell([])
    os.kill(dog.pid, signal.SIGSTOP)
    try:
        assert not dog.tell([])
        eventually(lambda: not dog.alive(), "its end")
    finally:
        dog.close()


def test_it_imports_next_to_nothing() -> None:
    code = "import sys; import wslgpud.brake.watchdog; print(*[m for m in sys.modules if m.startswith('wslgpud')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert {*done.stdout.split()} == {
        "wslgpud",
        "wslgpud.brake",
        "wslgpud.brake.grip",
        "wslgpud.brake.watchdog",
        "wslgpud.security",
        "wslgpud.security.exact_signals",
        "wslgpud.security.safe_files",
    }


def test_the_note_on_disk_lets_all_go_on_and_keeps_the_last_number(tmp_path: Path) -> None:
    with running(*python(IDLE)) as job:
        file = HeldFile(tmp_path)
        held = Grip(tuple(below(job.pid)))
        file.write(7, [(7, held)])
        assert file.read() == (7, {7: held})
        grip.stop_each(held.members)
        eventually(lambda: states(job.pid) == {"T"}, "the stop")

        assert file.release() == [7]
        eventually(lambda: states(job.pid) <= {"S", "R"}, "going on")
        assert file.read() == (7, {})
        assert file.release() == []


BOOT = grip.boot_id()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"last": 3}',
        '{"boot_id": "another", "last": 3, "held": {"3": {"members": [[1, 1, 0]], "cgroup": ""}}}',
        '{"boot_id": "BOOT", "last": 3, "held": [1]}',
        '{"boot_id": "BOOT", "last": 3, "held": {"3": {"members": [["x"]], "cgroup": ""}}}',
        '{"boot_id": "BOOT", "last": 3, "held": {"3": {"members": [], "cgroup": "/etc"}}}',
        '{"boot_id": "BOOT", "last": 3, "held": {"3": {"members": [], "cgroup": "ROOT"}}}',
        '{"boot_id": "BOOT", "last": 3, "held": {"3": {"members": [], "cgroup": "ROOT/../x"}}}',
        '{"boot_id": "BOOT", "last": 3, "held": {"x": {"members": [], "cgroup": ""}}}',
        '{"boot_id": "BOOT", "last": 1e400, "held": {}}',
        '{"boot_id": "BOOT", "last": 3, "held": ' + "[" * 100_000,
    ],
)
def test_a_note_of_another_boot_or_one_made_to_harm_lets_nobody_go(tmp_path: Path, text: str) -> None:
    (tmp_path / "held.json").write_text(text.replace("BOOT", BOOT).replace("ROOT", grip.root()))

    assert HeldFile(tmp_path).read()[1] == {}
    assert HeldFile(tmp_path).release() == []


def test_a_note_is_not_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    HeldFile(tmp_path).write(1, [(1, Grip((ExactProcess(1, 1, 0),)))])
    (tmp_path / "state/held.json").symlink_to(tmp_path / "held.json")

    assert HeldFile(tmp_path / "state").read() == (0, {})
