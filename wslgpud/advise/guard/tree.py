"""The watched process tree: all processes started by a command, even those that left its session."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Container, Iterable

from wslgpud.advise.guard.capacity import Process
from wslgpud.host import Host
from wslgpud.security import exact_signals
from wslgpud.security.exact_signals import ExactProcess
from wslgpud.sources import parse_uint
from wslgpud.sources.procfs import ProcessStat, process_stat

_PR_SET_CHILD_SUBREAPER = 36
#: At the end of its input, and so whenever we end, it resumes every process that was ever stopped; on running ones this
#: has no effect.
_SCRIPT = 'while read -r pid; do all="$all $pid"; done; [ -z "$all" ] || kill -CONT $all 2>/dev/null; :'


def adopt_orphans() -> None:
    """Become the subreaper of all descendants, so that none gets lost when its parent ends.

    Raises:
        OSError: the kernel refuses (before Linux 3.4).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot adopt orphaned processes")


def descendants(host: Host, root: int, without: Container[int] = ()) -> list[Process]:
    """Return all living descendants of ``root``, except itself, and ``without`` and its descendants."""
    children: dict[int, list[ProcessStat]] = defaultdict(list)
    for pid in map(int, filter(str.isdecimal, host.names("/proc"))):
        row = process_stat(host, pid)
        if row is not None and row.alive and pid not in without:
            children[row.parent].append(row)
    found, queue = [], [root]
    while queue:
        for row in children[queue.pop()]:
            queue.append(row.pid)
            status = host.read_optional(f"/proc/{row.pid}/status").splitlines()
            facts = {name: value.split() for name, _, value in (line.partition(":") for line in status)}
            # RssAnon exists since Linux 4.5; a kernel thread has none of these.
            numbers = (parse_uint((*facts.get(n, ()), "")[0]) for n in ("RssAnon", "VmSwap", "RssShmem", "Uid"))
            own, swapped, shared, uid = (number or 0 for number in numbers)
            caught = int((*facts.get("SigCgt", ()), "0")[0], 16)
            memory, start = (own + swapped) << 10, row.start_ticks
            found.append(Process(row.pid, start, row.name, memory, row.stopped, shared << 10, uid, caught))
    return found


def reap_orphans(others: Container[int]) -> None:
    """Reap adopted processes; a build that leaves thousands behind must not run out of pids.

    Our own children, ``others``, are reaped by the code that started them.
    """
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid not in others:
            os.waitpid(dead.si_pid, os.WNOHANG)


def send(processes: Iterable[Process], number: signal.Signals) -> int:
    """Send a signal to exactly these processes and return the number reached; skip those that have ended."""
    exact = (ExactProcess(one.pid, one.start_ticks, one.uid) for one in processes)
    return sum(not exact_signals.send(one, number) for one in exact)


class Rescue:
    """Resumes stopped compilers whatever becomes of the guard: ``kill -9``, an OOM kill, a bug.

    A shell that waits for our end, started when the first process is stopped.
    """

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    @property
    def pid(self) -> int | None:
        """The shell's pid, once started."""
        return self._shell.pid if self._shell else None

    def note(self, pids: Iterable[int]) -> None:
        """Record these; call it before they are stopped."""
        for pid in pids:
            if self._shell is None:
                end, self._pipe = os.pipe()
                # In its own session, so that Ctrl-C ends the build and not its rescue.
                self._shell = subprocess.Popen(["/bin/sh", "-c", _SCRIPT], stdin=end, start_new_session=True)
                os.close(end)
            os.write(self._pipe, f"{pid}\n".encode())

    def close(self) -> None:
        """End the shell, which resumes all processes."""
        if self._shell is not None:
            os.close(self._pipe)
            self._shell.wait()
            self._shell = None
