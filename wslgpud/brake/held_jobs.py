"""Paused jobs: stopping, resuming, and their record on disk. Standard library only, as the watchdog imports it.

A job is on disk before it is stopped, so that the next daemon or ``wslgpud brake release`` can resume it.
"""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Iterable
from pathlib import Path

from wslgpud.security import safe_files
from wslgpud.security.exact_signals import ExactProcess, send

FILE = "held.json"
#: processes per job: twice ``culprit.MAX_MEMBERS``, as it may fork while it is being stopped; jobs paused at once
MAX_PROCESSES, MAX_HELD = 2048, 8


#: a paused job's processes
HeldJob = tuple[ExactProcess, ...]


def keys(job: HeldJob) -> frozenset[tuple[int, int]]:
    """Return its processes by pid and start time."""
    return frozenset((process.pid, process.start_ticks) for process in job)


def stop(processes: HeldJob) -> dict[ExactProcess, str]:
    """Send SIGSTOP to processes, parents first; return the reason for each that was not stopped."""
    problems = {process: send(process, signal.SIGSTOP) for process in processes}
    return {process: problem for process, problem in problems.items() if problem}


def resume(job: HeldJob) -> int:
    """Send SIGCONT to a job; return how many of its processes still exist."""
    # Children first: a resumed parent may wait for their answers.
    return sum(not send(process, signal.SIGCONT) for process in reversed(job))


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

    def write(self, last: int, held: Iterable[tuple[int, HeldJob]]) -> None:
        """Replace the list atomically. Raises OSError: it cannot be written.

        Not synced: after a power failure no process is left to resume, and a pause cannot wait for the disk.
        """
        import json

        document = {"boot_id": boot_id(), "last": last, "held": dict(held)}
        safe_files.put(self.path, json.dumps(document))

    def resume_all(self) -> list[int]:
        """Resume all jobs on the list; return the numbers of those that still had processes."""
        last, held = self.read()
        resumed = [number for number, job in held.items() if resume(job)]
        if held:
            with contextlib.suppress(OSError):  # a stale entry costs at most a needless SIGCONT
                self.write(last, ())
        return resumed


@functools.cache
def boot_id() -> str:
    """Return the kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
