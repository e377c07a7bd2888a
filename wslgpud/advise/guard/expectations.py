"""What a command is expected to take, by its earlier runs, and how many jobs it may therefore run at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from wslgpud.advise.guard import capacity
from wslgpud.advise.guard.past_runs import PastRuns
from wslgpud.advise.guard.runner import GuardedCommand
from wslgpud.advise.guard.summary import jobs as jobs_of
from wslgpud.advise.guard.usage import VramWatch, memory_left, most_bytes
from wslgpud.host import Host
from wslgpud.words import Message, MessageError, MessageLike, say, template


class JobsError(MessageError):
    """A number of jobs is none; the message says how it is written."""


def jobs_for(
    command: Sequence[str], host: Host, jobs: str, known: PastRuns, environ: Mapping[str, str]
) -> tuple[int, dict[str, str], MessageLike]:
    """Return a job's expected memory, the environment that limits jobs, and what to say of them. Raises JobsError.

    ``jobs`` is a number, ``auto`` (as many as fit) or ``off``.
    """
    left = memory_left(host)
    remembered = known.compiler_bytes(capacity.key_of(command))
    expected = capacity.job_bytes(known.compilers, remembered, nvcc=_has_nvcc(environ))
    if jobs == "off":
        return expected, dict(environ), ""
    if jobs != "auto" and not (jobs.isdecimal() and int(jobs)):
        raise JobsError("--jobs {jobs}: write a number, auto or off", jobs=jobs)
    processors = len(os.sched_getaffinity(0))
    fitting = capacity.jobs(left.available_bytes, left.total_bytes, expected, processors)
    chosen = fitting if jobs == "auto" else int(jobs)
    measured = template("jobs: {jobs} of {processors}, {free_bytes} free and {job_bytes} measured for each")
    guessed = template("jobs: {jobs} of {processors}, {free_bytes} free and {job_bytes} expected for each")
    facts = {"jobs": chosen, "processors": processors, "free_bytes": left.available_bytes, "job_bytes": expected}
    message = Message(measured if remembered else guessed, facts)
    return expected, {**environ, **capacity.limits(chosen, environ)}, message


def peaks(guarded: GuardedCommand, host: Host, vram: VramWatch, known: PastRuns) -> dict[str, int]:
    """Return the command's earlier peaks, up to the capacity of this machine."""
    key, number, ram = capacity.key_of(guarded.command), jobs_of(guarded), most_bytes(host)
    most = {} if ram is None else {"ram": ram}
    found = known.peaks(key, number, most)
    return known.peaks(key, number, most | vram.total_by_uuid()) if found.keys() - {"ram"} else found


def too_large(peaks: Mapping[str, int], host: Host, vram: VramWatch) -> Iterator[Message]:
    """Yield which of the peaks is more than what is free now."""
    left = memory_left(host)
    free = {"ram": left.available_bytes + left.swap_bytes}
    if peaks.keys() - free.keys():
        free |= vram.free_by_uuid()
    for what, peak in peaks.items():
        if peak > (now := free.get(what, peak)):
            ram = template("an earlier run took {peak_bytes} of memory; {free_bytes} is free now")
            card = template("an earlier run took {peak_bytes} of VRAM; {free_bytes} is free now")
            yield say(ram if what == "ram" else card, peak_bytes=peak, free_bytes=now)


def _has_nvcc(environ: Mapping[str, str]) -> bool:
    homes = filter(None, (environ.get("CUDA_HOME"), environ.get("CUDA_PATH"), "/usr/local/cuda"))
    return any(Path(home, "bin", "nvcc").exists() for home in homes)
