"""Nothing stays paused without the daemon: the record of paused jobs on disk, and a child process that resumes them.

A job is on disk before it is stopped, so that the next daemon or ``wslgpud brake release`` can resume it. The child
resumes all if the daemon exits, crashes, is killed, or gives no sign of life.

The daemon sends it the list of paused jobs through a pipe, again each second while there are any; end of file means
that the daemon is gone, silence that it is stopped or hangs. It keeps the capabilities that the daemon drops after
start-up, imports little, and does nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, BinaryIO, cast

from wslgpud.brake import FILE
from wslgpud.security import safe_files
from wslgpud.security.exact_signals import ExactProcess, send, state_of

#: time-outs for confirming a list, and for the first one, as the child is starting; unconfirmed, nothing is stopped
CONFIRM_SECONDS, START_SECONDS = 0.5, 10.0
#: Without a list for this long the jobs of the last one are resumed. Half of systemd's WatchdogSec, which ends a daemon
#: that hangs; without systemd nobody else would notice.
SILENCE_SECONDS = 30.0
#: size limit of a list
_MAX_BYTES = 1 << 22
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
#: mlockall(2), https://man7.org/linux/man-pages/man2/mlock.2.html
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
#: capability(7)
_CAP_IPC_LOCK = 14
#: processes per job: twice ``culprit.MAX_MEMBERS``, as it may fork while it is being stopped; jobs paused at once
MAX_PROCESSES, MAX_HELD = 2048, 8

#: a paused job's processes
HeldJob = tuple[ExactProcess, ...]


def keys(job: HeldJob) -> frozenset[tuple[int, int]]:
    """Return its processes by pid and start time."""
    return frozenset((process.pid, process.start_ticks) for process in job)


def stop(processes: HeldJob) -> str:
    """Send SIGSTOP to processes, parents first; return why one that still runs was not stopped, if any."""
    return _refusal(processes, signal.SIGSTOP)


def resume(job: HeldJob) -> str:
    """Send SIGCONT to a job; return why a process that still exists was not resumed, if any."""
    # Children first: a resumed parent may wait for their answers.
    return _refusal(job[::-1], signal.SIGCONT)


def _refusal(processes: HeldJob, number: signal.Signals) -> str:
    refused = [(process, why) for process in processes if (why := send(process, number))]
    return next((why for process, why in refused if state_of(process)), "")


def from_json(document: object) -> HeldJob:
    """Return a job that was written as JSON. Raises ValueError or TypeError: malformed."""
    if not isinstance(document, list) or len(document) > MAX_PROCESSES:
        raise ValueError("not a job")
    return tuple(ExactProcess(*(int(number) for number in process)) for process in document)


class HeldJobsFile:
    """The list of paused jobs in the daemon's state folder, with the last number assigned."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def read(self) -> tuple[int, dict[int, HeldJob]]:
        """Return the last number and the paused jobs by number; 0 and none if the file is unreadable.

        Jobs of an earlier boot are ignored: start times count from the boot and could match other processes now.
        """
        last = 0
        held: dict[int, HeldJob] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            document = safe_files.parsed(safe_files.contents(self.path))
            last = min(max(0, int(document["last"])), 1 << 31)
            if document["boot_id"] == boot_id():
                for number, job in list(document["held"].items())[:MAX_HELD]:
                    with contextlib.suppress(ValueError, TypeError, OverflowError):
                        held[int(number)] = from_json(job)
        return last, held

    def write(self, last: int, held: Mapping[int, HeldJob]) -> None:
        """Replace the list atomically. Raises OSError: it cannot be written.

        Not synced: after a power failure no process is left to resume, and a pause cannot wait for the disk.
        """
        document = {"boot_id": boot_id(), "last": last, "held": held}
        safe_files.put(self.path, json.dumps(document))

    def resume_all(self) -> dict[int, str]:
        """Resume all jobs on the list that still have processes; return why a job is still paused, empty if it is not.

        Those stay on the list, for one who may resume them.
        """
        last, held = self.read()
        problems = {number: resume(job) for number, job in held.items() if any(map(state_of, job))}
        if held:
            with contextlib.suppress(OSError):  # a stale entry costs at most a needless SIGCONT
                self.write(last, {number: held[number] for number, why in problems.items() if why})
        return problems


@functools.cache
def boot_id() -> str:
    """Return the kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class Watchdog:
    """The daemon's handle on its watchdog."""

    def __init__(self) -> None:
        """Start the child; it inherits the capabilities inheritable at this moment."""
        from wslgpud.probes.supervisor import clean_environment, python_command  # late: the child does not need it

        self._child = subprocess.Popen(
            python_command("wslgpud.brake.watchdog"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=dict(clean_environment()),
            cwd="/",
            # SIGHUP and Ctrl-C of a terminal are meant for the daemon.
            start_new_session=True,
        )
        self._started = False
        self._pipes = cast("IO[bytes]", self._child.stdin), cast("IO[bytes]", self._child.stdout)

    @property
    def pid(self) -> int:
        return self._child.pid

    def update(self, held: Iterable[HeldJob]) -> bool:
        """Send the complete list of paused jobs; return whether the child confirmed it in time."""
        input_, output = self._pipes
        line = json.dumps([*held]).encode() + b"\n"
        until = time.monotonic() + (CONFIRM_SECONDS if self._started else START_SECONDS)
        try:
            os.set_blocking(input_.fileno(), False)
            while line:
                _, ready, _ = select.select([], [input_], [], max(0.0, until - time.monotonic()))
                if not ready:
                    return self._lost()
                line = line[os.write(input_.fileno(), line) :]
            ready, _, _ = select.select([output], [], [], max(0.0, until - time.monotonic()))
            self._started = bool(ready) and os.read(output.fileno(), 1) == b"+"
            return self._started or self._lost()
        except (OSError, ValueError):  # the child is gone, or ``close`` was called
            return self._lost()

    def _lost(self) -> bool:
        """Kill the child: it may have read half a line, and a late answer would be taken for one to the next list."""
        self._child.kill()
        return False

    def alive(self) -> bool:
        return self._child.poll() is None

    def close(self) -> None:
        """Let the child resume the jobs of the last list and exit; kill it if it does not."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self._child.wait(CONFIRM_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def stay_resident() -> str:
    """Lock the current and future memory of this process; return why that failed, or nothing.

    The brake must act while the machine is thrashing. As in earlyoom (``mlockall`` in main.c), pages are locked when
    they are first touched, not loaded in advance. systemd's ``MemorySwapMax=`` protects anonymous memory only; programs
    and libraries are file-backed, and without swap the kernel evicts them first.

    Children do not inherit the lock. It is not attempted under a finite RLIMIT_MEMLOCK: the whole size of every mapping
    counts against the limit, and once that is reached, allocations fail.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    rights = int(status.partition("CapEff:")[2].split()[0], 16)
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit != resource.RLIM_INFINITY and not rights >> _CAP_IPC_LOCK & 1:
        return f"RLIMIT_MEMLOCK is {limit}, not unlimited"
    libc = ctypes.CDLL(None, use_errno=True)
    locked = libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0
    return "" if locked else os.strerror(ctypes.get_errno())


def watch(updates: BinaryIO, confirmed: BinaryIO) -> None:
    """Read and confirm lists of paused jobs, one per line; at end of file, or in silence, resume those of the last."""
    held: list[HeldJob] = []
    while True:
        # Each list is confirmed before the next is sent, so none waits in a buffer.
        ready, _, _ = select.select([updates], [], [], SILENCE_SECONDS if held else None)
        if not ready:
            for job in held:
                resume(job)
            held = []
            continue
        line = updates.readline(_MAX_BYTES)
        if not line.endswith(b"\n"):
            break
        held = [from_json(one) for one in json.loads(line)]
        with contextlib.suppress(OSError):  # the daemon was killed meanwhile
            confirmed.write(b"+")
            confirmed.flush()
    for job in held:
        resume(job)


def main() -> int:
    for number in _SIGNALS:  # systemd signals a whole unit at once, but this child must outlive the daemon
        signal.signal(number, signal.SIG_IGN)
    stay_resident()  # a failure is logged by the daemon, which has the same limit
    watch(sys.stdin.buffer, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
