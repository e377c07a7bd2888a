"""The processes under watch: all that a command has started, also what has left its session."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Container, Iterable
from pathlib import Path

from wslgpud.advise.guard.capacity import Process
from wslgpud.host import Host
from wslgpud.sources import whole

_PR_SET_CHILD_SUBREAPER = 36
#: When its input ends, and so when we end in whatever way, everybody who was ever stopped is let go on; to a
#: process that runs this does nothing.
_SCRIPT = 'while read -r pid; do all="$all $pid"; done; [ -z "$all" ] || kill -CONT $all 2>/dev/null; :'


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parents end: none gets out of sight.

    Raises:
        OSError: the kernel refuses (before Linux 3.4).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot adopt orphaned processes")


def descendants(host: Host, root: int, without: Container[int] = ()) -> list[Process]:
    """Return all living descendants of ``root``; itself, and ``without`` with all below, are left out.

    Format: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    children: dict[int, list[tuple[int, str, list[str]]]] = defaultdict(list)
    for pid in map(int, filter(str.isdecimal, host.names("/proc"))):
        head, _, rest = host.read_optional(f"/proc/{pid}/stat").rpartition(")")
        words = rest.split()
        if len(words) > 19 and words[0] != "Z" and pid not in without:
            children[int(words[1])].append((pid, head.partition("(")[2], words))
    found, queue = [], [root]
    while queue:
        for pid, name, words in children[queue.pop()]:
            queue.append(pid)
            # RssAnon is there since Linux 4.5; a kernel thread has none of these.
            own, swapped, shared = _sizes(host, pid, "RssAnon", "VmSwap", "RssShmem")
            found.append(Process(pid, int(words[19]), name, own + swapped, words[0] in ("T", "t"), shared))
    return found


def bury_orphans(others: Container[int]) -> None:
    """Wait for the dead that we adopted; a build that leaves thousands behind must not run out of pids.

    Our own children, ``others``, are waited for by those who started them.
    """
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid not in others:
            os.waitpid(dead.si_pid, os.WNOHANG)


def send(processes: Iterable[Process], number: signal.Signals) -> int:
    """Send a signal to exactly these processes and return to how many; who has ended is passed over."""
    sent = 0
    for process in processes:
        with contextlib.suppress(OSError, IndexError, ValueError):
            handle = os.pidfd_open(process.pid)
            try:
                # Only now: the handle is of one process for ever, so what is found out of it holds.
                stat = Path(f"/proc/{process.pid}/stat").read_bytes()
                if int(stat.rpartition(b")")[2].split()[19]) == process.start_ticks:
                    signal.pidfd_send_signal(handle, number)
                    sent += 1
            finally:
                os.close(handle)
    return sent


class Rescue:
    """Resumes stopped compilers whatever becomes of the guard: ``kill -9``, an OOM kill, a bug.

    It is a shell that waits for our end, started when the first process is stopped.
    """

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    @property
    def pid(self) -> int | None:
        """The shell's pid, once there is one."""
        return self._shell.pid if self._shell else None

    def note(self, pids: Iterable[int]) -> None:
        """Remember these; call before they are stopped."""
        for pid in pids:
            if self._shell is None:
                end, self._pipe = os.pipe()
                # In a session of its own, so that Ctrl-C ends the build and not its rescue.
                self._shell = subprocess.Popen(["/bin/sh", "-c", _SCRIPT], stdin=end, start_new_session=True)
                os.close(end)
            os.write(self._pipe, f"{pid}\n".encode())

    def close(self) -> None:
        """End the shell, which lets everybody go on."""
        if self._shell is not None:
            os.close(self._pipe)
            self._shell.wait()
            self._shell = None


def catches(host: Host, process: Process, number: signal.Signals) -> bool:
    """Tell whether a process has a handler for a signal, so that it is not simply ended by it."""
    try:
        return bool(int(_status(host, process.pid)["SigCgt"], 16) >> (number - 1) & 1)
    except (KeyError, ValueError):
        return False


def most_resident_bytes(host: Host) -> int | None:
    """Return the most that this process has had in RAM with its present program; None: it is not told."""
    return _sizes(host, "self", "VmHWM")[0] or None


def _status(host: Host, pid: int | str) -> dict[str, str]:
    lines = host.read_optional(f"/proc/{pid}/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _sizes(host: Host, pid: int | str, *names: str) -> list[int]:
    facts = _status(host, pid)
    return [(whole(facts.get(name, "").removesuffix(" kB")) or 0) << 10 for name in names]
