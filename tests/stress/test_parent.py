"""Whatever a worker does, its parent ends it in time and says what happened."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.daemons import eventually
from wslgpud.probes.supervisor import ProbeDown
from wslgpud.security.run_as import Command
from wslgpud.stress.parent import WORKER, supervise

BEGIN = """
import json, os, signal, sys, time
def say(event, **facts): print(json.dumps({"event": event, **facts}), flush=True)
job = json.loads(sys.stdin.readline())
"""
OBEDIENT = """
say("begin", job=job)
sys.stdin.readline()
say("end", outcome="left", why="told")
"""


def start(script, **limits):
    limits = {"deadline_seconds": 300.0, "stall_seconds": 300.0} | limits
    command = Command([sys.executable, "-c", BEGIN + script], {"PATH": os.environ["PATH"]})
    return supervise(command, lambda: {"seed": 1}, **limits)


def test_a_worker_gets_its_job_and_is_heard_to_its_end():
    heard = []
    done = start('say("begin", job=job)\nsay("beat")\nsay("end", outcome="done")', progress=heard.append)

    assert [line["event"] for line in done.lines] == ["begin", "end"]
    assert done.lines[0]["job"] == {"seed": 1}
    assert [line["event"] for line in heard] == ["begin", "beat", "end"]
    assert (done.failure, done.hung_pid) == ("", None)


def test_a_worker_that_gets_no_job_ends_without_a_word(tmp_path):
    note = tmp_path / "input"
    command = Command([sys.executable, "-c", f"import sys; open({str(note)!r}, 'w').write(repr(sys.stdin.read()))"], {})

    def job():
        raise ProbeDown("the GPU is busy")

    with pytest.raises(ProbeDown, match="the GPU is busy"):
        supervise(command, job, deadline_seconds=300.0, started=lambda _: pytest.fail("it has no job"))

    assert note.read_text() == "''"


def test_the_time_before_a_worker_has_its_job_counts_for_nothing(monkeypatch):
    hour = SimpleNamespace(passed=False)

    def job():
        hour.passed = True
        return {"seed": 1}

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600.0 * hour.passed)
    monkeypatch.setattr("wslgpud.stress.parent.time", clock)
    command = Command([sys.executable, "-c", BEGIN + 'say("end", outcome="done")'], {})
    done = supervise(command, job, deadline_seconds=300.0)

    assert done.failure == ""
    assert done.seconds < 3600.0


def test_a_worker_is_told_to_leave_and_keeps_the_reason():
    begun = []
    done = start(OBEDIENT, watch=lambda: "a program wants the GPU" if begun else "", progress=begun.append)

    assert (done.lines[-1]["outcome"], done.left) == ("left", "a program wants the GPU")
    assert done.failure == ""


@pytest.mark.slow
def test_a_worker_that_still_loads_torch_is_not_hurried(monkeypatch):
    monkeypatch.setattr("wslgpud.stress.parent.OWN_SECONDS", 2.0)
    monkeypatch.setattr("wslgpud.stress.parent.START_SECONDS", 300.0)
    done = start("time.sleep(3)\n" + OBEDIENT, watch=lambda: "a program wants the GPU")

    assert (done.lines[-1]["outcome"], done.left) == ("left", "a program wants the GPU")
    assert done.failure == ""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the worker was killed by SIGSEGV"),
        ("os.kill(os.getpid(), 40)", "the worker was killed by signal 40"),
        ('print("no image", file=sys.stderr)\nsys.exit(3)', "ended with status 3: no image"),
        ("sys.exit(0)", "the worker ended with status 0"),
        ('print("CUDA says hello", flush=True)\ntime.sleep(60)', "outside its protocol: CUDA says hello"),
        ("print('[1]', flush=True)\ntime.sleep(60)", "outside its protocol: [1]"),
        ("print('x' * 300000, end='', flush=True)\ntime.sleep(60)", "far too much"),
        ('for n in range(60000): say("phase", phase="", seconds=0)\ntime.sleep(9)', "far too much"),
    ],
    ids=["crash", "odd signal", "status", "silent end", "nonsense", "not an object", "endless line", "flood"],
)
def test_a_worker_that_fails_or_lies_is_reported(script, said, monkeypatch):
    if "sleep" in script:  # else it ends by itself
        monkeypatch.setattr("wslgpud.stress.parent.OWN_SECONDS", 0.3)
    done = start(script)

    assert said in str(done.failure)
    assert done.hung_pid is None


def stopped_at(monkeypatch, *, after_job=0.0):
    """Stop the parent's clock, so many seconds after it has begun; return the job that moves it there."""
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("wslgpud.stress.parent.time", clock)

    def job():
        clock.now += after_job
        return {}

    return job


def run_out(script, job=dict, heard=None):
    """Run a worker that writes what its script says, and return what was said of its failure, if anything."""
    command = Command([sys.executable, "-c", f"import sys\nout = sys.stdout.write\n{script}"], {})
    progress = (lambda _: None) if heard is None else heard.append
    return str(supervise(command, job, deadline_seconds=300.0, progress=progress).failure)


PHASE, BEAT, END = '{"event":"phase","phase":"","seconds":0}', '{"event":"beat"}', '{"event":"end","outcome":"done"}'


@pytest.mark.parametrize(
    ("lines", "most"),
    [
        (f"out('{BEAT}'.ljust(most) + '\\n' + '{END}\\n')", 256 << 10),
        (f"out(8 * ('{PHASE}'.ljust(255 << 10) + '\\n') + '{END}'.ljust(most - 8 * (255 << 10)) + '\\n')", 2 << 20),
        (
            (
                f"out(63 * ('{BEAT}'.ljust((256 << 10) - 1) + '\\n'))\n"
                f"out('{BEAT}'.ljust(most - (63 << 18) - 2 - len('{END}')) + '\\n{END}\\n')"
            ),
            16 << 20,
        ),
    ],
    ids=["a line's length", "kept bytes", "bytes in all"],
)
def test_a_worker_may_write_only_what_the_largest_card_needs(lines, most):
    assert run_out(f"most = {most}\n{lines}") == ""
    assert run_out(f"most = {most + 1}\n{lines}") == "the worker wrote far too much"


def test_heartbeats_of_the_same_moment_are_passed_on_once(monkeypatch):
    heard = []
    run_out(f"out('{BEAT}\\n' * 3 + '{END}\\n')", stopped_at(monkeypatch), heard)

    assert [line["event"] for line in heard] == ["beat", "end"]


@pytest.mark.parametrize(
    ("first_word", "limits", "ended_after_seconds", "said"),
    [
        ("", {}, 31.0, "the worker has been silent for 30 s"),
        ("", {"stall_seconds": 40.0}, 41.0, "the worker has been silent for 40 s"),
        (PHASE + "\n", {}, 16.0, "the worker has been silent for 15 s"),
        (PHASE + "\n", {"deadline_seconds": 10.0}, 11.0, "not done within 10 s"),
    ],
)
def test_a_worker_may_be_silent_for_15_seconds_or_30_at_first(
    monkeypatch, first_word, limits, ended_after_seconds, said
):
    monkeypatch.setattr("wslgpud.stress.parent.WATCH_SECONDS", 0.001)
    clock, heard = SimpleNamespace(now=100.0, monotonic=lambda: clock.now), []
    monkeypatch.setattr("wslgpud.stress.parent.time", clock)

    def watch():
        clock.now += 1.0 if heard or not first_word else 0.0
        return ""

    script = f"import sys\nsys.stdout.write({first_word!r})\nsys.stdout.flush()\nsys.stdin.read()"
    command = Command([sys.executable, "-c", script], {})
    limits = {"deadline_seconds": 300.0} | limits
    done = supervise(command, dict, watch=watch, progress=heard.append, **limits)

    assert (str(done.failure), done.seconds) == (said, ended_after_seconds)


def test_of_a_line_outside_the_protocol_the_beginning_is_shown():
    assert run_out("out('y' * 100 + '\\n')") == "the worker wrote a line outside its protocol: " + "y" * 80


def test_a_child_holding_stderr_does_not_delay_a_workers_end(monkeypatch):
    monkeypatch.setattr("wslgpud.stress.parent.OWN_SECONDS", 300.0)
    done = start(
        "if not (child := os.fork()):\n  os.close(1)\n  time.sleep(600)\n"
        'say("begin", child=child)\nsay("end", outcome="done")'
    )
    os.kill(done.lines[0]["child"], signal.SIGKILL)

    assert done.failure == ""


def test_a_worker_that_hangs_is_ended_together_with_its_children(monkeypatch):
    monkeypatch.setattr("wslgpud.stress.parent.START_SECONDS", 300.0)
    for name in ("OWN_SECONDS", "TERM_SECONDS"):
        monkeypatch.setattr(f"wslgpud.stress.parent.{name}", 0.2)
    done = start(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif not (child := os.fork()):\n  time.sleep(600)\n"
        'say("begin", child=child)\ntime.sleep(600)',
        stall_seconds=0.5,
    )
    child = done.lines[0]["child"]

    assert str(done.failure) == "the worker has been silent for 1 s"
    eventually(lambda: not alive(child), "the end of the worker's child")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_no_run_takes_longer_than_its_deadline(monkeypatch):
    monkeypatch.setattr("wslgpud.stress.parent.OWN_SECONDS", 0.3)
    done = start('while True:\n  say("beat")\n  time.sleep(0.01)', deadline_seconds=0.5)

    assert str(done.failure) == "not done within 1 s"


def test_a_worker_learns_of_its_parents_death_by_end_of_input(tmp_path):
    note = tmp_path / "left"
    pid = os.fork()
    if pid == 0:
        start(f'say("begin")\nsys.stdin.read()\nopen({str(note)!r}, "w").close()', progress=lambda _: os._exit(0))
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0

    eventually(note.exists, "the worker's leaving")


def test_a_python_that_is_not_there_is_named():
    done = supervise(Command(["/no/such/python"], {}), dict, deadline_seconds=1.0)

    assert str(done.failure) == "cannot start /no/such/python: No such file or directory"


@pytest.mark.xdist_group("torch")  # what loads torch beside a stress run makes it give way
@pytest.mark.usefixtures("faulty")  # skips where there is no torch
def test_the_real_worker_gives_everything_back_when_told():
    """The whole way, over a real pipe."""
    begun = []

    def watch():
        return "enough" if any(line["event"] == "pattern" for line in begun) else ""

    job = {
        "device": "cpu",
        "cpu_bytes": 64 << 20,
        "reserve": 4 << 20,
        "chunk": 8 << 20,
        "scratch": 2 << 20,
        "passes": ["walking"] * 10_000,
        "retention_seconds": 0.0,
        "slow_ratio": 0.0,
    }
    command = Command([sys.executable], {"PATH": os.environ["PATH"]})
    limits = {"deadline_seconds": 300.0, "stall_seconds": 300.0}
    done = supervise(command, lambda: job, script=WORKER, watch=watch, progress=begun.append, **limits)

    assert done.left == "enough"
    assert done.failure == ""
