"""Jobs that are held, how they are resumed, and the file of them. Standard library only, for the watchdog.

A job that is alone in a cgroup of its own is frozen there, with all that it starts. Every other is stopped, process by
process. What is held is in a file before anybody is stopped, so that whoever comes after the daemon finds it: the next
daemon, or ``wslgpud brake release``.
"""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from wslgpud.brake import freezer
from wslgpud.security import safe_files
from wslgpud.security.exact_signals import ExactProcess, send

FILE = "held.json"
#: more than the most members of a job, see ``culprit``; and how many jobs are held at once
MOST_PROCESSES, MOST_HELD = 2048, 8


class HeldJob(NamedTuple):
    """A job that is held: its processes, and the folder of its cgroup where that is frozen (else empty)."""

    processes: tuple[ExactProcess, ...]
    cgroup: str = ""


def stop(processes: Sequence[ExactProcess]) -> dict[ExactProcess, str]:
    """Stop processes, parents first; return why some were not, by process."""
    problems = {one: send(one, signal.SIGSTOP) for one in processes}
    return {one: problem for one, problem in problems.items() if problem}


def resume(job: HeldJob) -> int:
    """Let a job go on; return how many of its processes were there. One that is gone is no trouble."""
    if job.cgroup:
        with contextlib.suppress(OSError):  # the group has ended
            freezer.set_frozen(job.cgroup, frozen=False)
            return sum(Path(f"/proc/{one.pid}").exists() for one in job.processes)
    # Children first: a parent that goes on may look for them.
    return sum(not send(one, signal.SIGCONT) for one in reversed(job.processes))


def from_json(document: object) -> HeldJob:
    """Return what ``to_json`` has written. Raises ValueError, TypeError or KeyError: it is something else."""
    if not isinstance(document, dict):
        raise TypeError("not a job")
    processes = tuple(ExactProcess(*(int(number) for number in one)) for one in document["processes"])
    folder = document["cgroup"]
    known = isinstance(folder, str) and (folder == "" or freezer.is_folder(folder))
    if len(processes) > MOST_PROCESSES or not known:
        raise ValueError("not a job")
    return HeldJob(processes, folder)


def to_json(job: HeldJob) -> dict[str, object]:
    """Return a job that is held as JSON can hold it."""
    return {"processes": job.processes, "cgroup": job.cgroup}


class HeldJobsFile:
    """The list of the jobs that are held, in the daemon's folder, and the number that the last one had."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def read(self) -> tuple[int, dict[int, HeldJob]]:
        """Return the last number, and by number what this boot's daemons hold; nothing where that is not known.

        Start times count from the boot: those of an earlier one could name somebody else now.
        """
        last = 0
        held: dict[int, HeldJob] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            document = safe_files.parsed(safe_files.contents(self.path))
            last = min(max(0, int(document["last"])), 1 << 31)
            if document["boot_id"] == boot_id():
                for number, one in list(document["held"].items())[:MOST_HELD]:
                    with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):
                        held[int(number)] = from_json(one)
        return last, held

    def write(self, last: int, held: Iterable[tuple[int, HeldJob]]) -> None:
        """Replace the list in one step. Raises OSError: it cannot be written.

        Not synced: after a power cut nobody is stopped any more, and a disk must not be waited for now.
        """
        import json

        document = {"boot_id": boot_id(), "last": last, "held": {number: to_json(job) for number, job in held}}
        safe_files.put(self.path, json.dumps(document))

    def resume_all(self) -> list[int]:
        """Let all go on that is on the list; return the numbers of those of which somebody was still there."""
        last, held = self.read()
        resumed = [number for number, job in held.items() if resume(job)]
        if held:
            with contextlib.suppress(OSError):  # the worst that an entry too many does is another SIGCONT
                self.write(last, ())
        return resumed


@functools.cache
def boot_id() -> str:
    """Return what tells this boot from all others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
