"""A child that hangs, crashes or talks nonsense costs its own answer and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.daemons import eventually
from wslgpud.probes.supervisor import ProbeDown, Supervisor, clean_environment

#: Answers each line with what it was told, or does what it is told.
CHILD = """
import json, os, signal, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in iter(sys.stdin.readline, ""):
    order = json.loads(line)
    if order.get("say"):
        sys.stderr.write(order["say"] + "\\n")
    if order.get("do") == "hang":
        while True:
            time.sleep(60)
    if order.get("do") == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if order.get("do") == "exit":
        sys.exit(7)
    if order.get("do") == "chatter":
        for _ in range(2000):
            try:
                os.write(2, b"x" * 1000)
            except BlockingIOError:
                pass
    answer = {**order, "environment": dict(os.environ)}
    print(order["raw"] if "raw" in order else json.dumps(answer), flush=True)
"""


@pytest.fixture
def start(clock):
    started = []

    def make(*arguments, command=None, timeout=180.0):
        command = command or [sys.executable, "-c", CHILD, *arguments]
        limits = {"timeout_seconds": timeout, "start_timeout_seconds": 180.0}
        started.append(Supervisor("child", command, mono=clock.mono, **limits))
        return started[-1]

    yield make
    for supervisor in started:
        supervisor.close()


def is_gone(pid):
    """Tell whether a process has ended and been waited for: a zombie still has its folder."""
    return not Path(f"/proc/{pid}").exists()


def test_requests_are_answered_by_one_and_the_same_child(start):
    child = start()
    assert child.ask({"n": 1})["n"] == 1
    first = child.pid
    assert child.ask({"n": 2})["n"] == 2
    assert (child.pid, child.starts_total) == (first, 1)


@pytest.mark.parametrize(("order", "crashed"), [("crash", True), ("exit", False), ("hang", False)])
def test_a_crash_in_the_childs_own_code_is_told_from_other_ends(start, order, crashed):
    child = start(timeout=0.5 if order == "hang" else 180.0)
    child.ask({})
    with pytest.raises(ProbeDown):
        child.ask({"do": order})

    assert child.crashed is crashed


def test_a_child_that_hangs_is_ended_and_counted(start):
    child = start(timeout=0.5)
    child.ask({})
    pid = child.pid
    with pytest.raises(ProbeDown, match="child did not answer within 1 s and was killed"):
        child.ask({"do": "hang"})
    assert is_gone(pid)
    assert (child.hangs_total, child.crashes_total, child.pid) == (1, 0, None)


def test_a_child_that_ignores_all_but_sigkill_is_ended_too(start):
    child = start("stubborn", timeout=0.5)
    child.ask({})
    pid = child.pid
    with pytest.raises(ProbeDown):
        child.ask({"do": "hang"})
    assert is_gone(pid)


def test_a_crash_names_the_signal_and_the_last_words(start):
    child = start()
    with pytest.raises(ProbeDown, match="child was killed by SIGSEGV: cannot go on"):
        child.ask({"do": "crash", "say": "first\ncannot go on"})
    assert (child.hangs_total, child.crashes_total) == (0, 1)


def test_a_child_that_gives_up_names_its_status(start):
    with pytest.raises(ProbeDown, match="child ended with status 7"):
        start().ask({"do": "exit"})


@pytest.mark.parametrize("raw", ["no json", "[1]", "{", "\u00e9"])
def test_nonsense_counts_as_a_crash(start, raw):
    child = start()
    with pytest.raises(ProbeDown, match="not a JSON object"):
        child.ask({"raw": raw})
    assert child.crashes_total == 1


def test_an_endless_answer_does_not_fill_our_memory(start):
    child = start(command=["/bin/sh", "-c", "yes | tr -d '\\n'"])
    with pytest.raises(ProbeDown, match="more than"):
        child.ask({})


def test_restarts_wait_twice_as_long_each_time_up_to_a_minute(start, clock):
    child = start(command=["/bin/false"])
    for number, wait in enumerate((1, 2, 4, 8, 16, 32, 60, 60, 60), start=1):
        for _ in range(2):
            with pytest.raises(ProbeDown, match="ended with status 1"):
                child.ask({})
            assert child.starts_total == number
            clock.now += wait / 2


def test_during_the_wait_the_reason_stays_and_nothing_starts(start, clock):
    child = start()
    with pytest.raises(ProbeDown) as first:
        child.ask({"do": "exit"})
    clock.now += 0.9
    with pytest.raises(ProbeDown) as again:
        child.ask({})
    assert str(again.value) == str(first.value)
    assert child.starts_total == 1
    clock.now += 0.2
    assert child.ask({"n": 5})["n"] == 5


def test_a_child_that_was_well_for_a_minute_is_quickly_back(start, clock):
    child = start()
    starts = []
    for well_seconds in (0, 0, 59, 60):
        clock.now += 60
        child.ask({})
        clock.now += well_seconds
        with pytest.raises(ProbeDown):
            child.ask({"do": "exit"})
        clock.now += 1
        with contextlib.suppress(ProbeDown):
            child.ask({})
        starts.append(child.starts_total)
        child.renew()
    assert starts == [2, 3, 4, 6]


def test_renewing_takes_a_new_child_at_once(start):
    child = start()
    child.ask({})
    old = child.pid
    child.renew()
    assert is_gone(old)
    child.ask({})
    assert (child.pid != old, child.starts_total, child.crashes_total) == (True, 2, 0)


def test_a_program_that_is_not_there_is_named(start):
    with pytest.raises(ProbeDown, match="cannot start child: No such file"):
        start(command=["/nowhere/program"]).ask({})


def test_a_chatty_child_is_not_held_up(start):
    assert start().ask({"do": "chatter", "n": 3})["n"] == 3


def test_nothing_is_left_open_after_many_ends(start, clock):
    child = start(command=["/bin/false"])

    def fail():
        with pytest.raises(ProbeDown):
            child.ask({})
        clock.now += 61

    fail()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        fail()
    # Threads that other tests have left open and close files of theirs.
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 10


def test_a_child_that_survives_sigkill_gets_no_successor(start, clock, monkeypatch):
    """In a driver's uninterruptible wait; that cannot be had here, so ending is made to fail."""
    child = start(timeout=0.5)
    child.ask({})
    pid = child.pid
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "send_signal", lambda *_: None)
        with pytest.raises(ProbeDown, match="did not answer"):
            child.ask({"do": "hang"})
    clock.now += 2
    with pytest.raises(ProbeDown, match=rf"child \(pid {pid}\) hangs in the driver and cannot be killed"):
        child.ask({})
    assert child.starts_total == 1
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert child.ask({"n": 1})["n"] == 1
    assert is_gone(pid)


def test_closing_does_not_wait_for_an_answer_that_does_not_come(start):
    child = start(timeout=600)
    child.ask({})
    pid = child.pid
    outcome = []

    def wait():
        try:
            child.ask({"do": "hang"})
        except ProbeDown as down:
            outcome.append(str(down))

    waiter = threading.Thread(target=wait)
    waiter.start()
    child.close()
    waiter.join(60)
    assert outcome in (["child is closed"], [])
    assert not waiter.is_alive()
    assert is_gone(pid)
    with pytest.raises(ProbeDown, match="closed"):
        child.ask({})


def test_the_child_sees_little_of_our_environment(start, monkeypatch):
    monkeypatch.setenv("WSLGPUD_SECRET", "hunter2")
    monkeypatch.setenv("PYTHONSTARTUP", "/nowhere.py")
    seen = start().ask({})["environment"]
    assert not {"WSLGPUD_SECRET", "PYTHONSTARTUP"} & set(seen)


def test_parent_and_child_run_the_same_version(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    where = "import wslgpud; print(wslgpud.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", where], env=clean_environment(), cwd="/", capture_output=True, check=True, text=True
    )
    assert done.stdout.strip() == str(Path(__file__).parents[2] / "wslgpud" / "__init__.py")


def test_the_child_ends_when_the_daemon_is_killed():
    program = (
        "from wslgpud.probes.supervisor import *; import sys, time\n"
        f"command = [sys.executable, '-c', {CHILD!r}]\n"
        "s = Supervisor('child', command, timeout_seconds=180, start_timeout_seconds=180)\n"
        "s.ask({}); print(s.pid, flush=True); time.sleep(600)"
    )
    daemon = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=clean_environment()
    )
    with daemon:
        child = int(daemon.stdout.readline())
        os.kill(daemon.pid, signal.SIGKILL)
    eventually(lambda: has_ended(child), "the end of the child")


def has_ended(pid):
    """Tell whether a process is gone, or waits for an init that this machine may lack."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
