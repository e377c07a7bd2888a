"""Real jobs to pause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from wslgpud.brake.culprit import Job
from wslgpud.brake.process_tree import ProcessListing, ProcessTree, scan
from wslgpud.host import Host
from wslgpud.security.exact_signals import ExactProcess, state_of

IDLE = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
#: forks one short-lived child after another, like a build
FORKING = """
import os, time
print("ready", flush=True)
while True:
    if os.fork() == 0:
        time.sleep(0.05)
        os._exit(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass
    time.sleep(0.002)
"""
US = os.geteuid()


@contextmanager
def running(*command: str, **more: object) -> Iterator[subprocess.Popen[str]]:
    """Run a program that prints "ready"; kill it and its descendants at the end of the block."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, **more) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def job_of(*pids: int) -> tuple[Job, ProcessListing]:
    """Return the job with these roots, as the brake would find it, and the scan that shows it."""
    seen = scan(Host())
    tree = ProcessTree(seen.processes, {})
    roots = tuple(tree.by_pid[pid] for pid in pids)
    return Job(tree.members(roots, {US}), 0, roots), seen


def below(pid: int) -> list[ExactProcess]:
    """Return a process and its current descendants."""
    tree = ProcessTree(scan(Host()).processes, {})
    return [ExactProcess(*one.key, US) for one in tree.subtree(tree.by_pid[pid])]


def states(pid: int) -> set[str]:
    """Return the states of a process and its descendants, without those that have exited."""
    return {state_of(one) for one in below(pid)} - {""}
