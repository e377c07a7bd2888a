"""The peaks of earlier runs, in one small file of the user's, and the memory that a command will therefore need.

``commands`` holds for each: ``peak_bytes`` of RAM and swap, ``vram_bytes`` by card's UUID beyond the use before,
``compiler_bytes`` of the largest compiler, and ``jobs`` at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from wslgpud.advise.guard.runner import GuardedCommand
from wslgpud.advise.guard.tree import CXX_BYTES, MARGIN, NVCC_BYTES, reserve
from wslgpud.advise.guard.usage import RunStats, VramWatch, memory_left, most_bytes
from wslgpud.host import Host
from wslgpud.security import safe_files
from wslgpud.security.redaction import masked, named
from wslgpud.sources.processes import title
from wslgpud.words import Message, MessageError, MessageLike, say, template

NAME = "guard.json"
#: limit; the oldest entries are dropped
MAX_COMMANDS = 200
_MAKE_JOBS = re.compile(r"(?:^|\s)(?:-?j|--jobs)(?:=|\s+)?(\d*)(?!\S)")


@dataclass(slots=True)
class PastRuns:
    """Peaks by command and by compiler, in bytes; ``commands`` in order of their last run."""

    commands: dict[str, dict[str, Any]] = field(default_factory=dict)
    compilers: dict[str, int] = field(default_factory=dict)

    def compiler_bytes(self, command: str) -> int | None:
        """Return the highest memory of one compiler in earlier runs of a command."""
        value = self.commands.get(command, {}).get("compiler_bytes")
        return value if isinstance(value, int) and value > 0 else None

    def peaks(self, command: str, jobs: int | None, most: Mapping[str, int]) -> dict[str, int]:
        """Return the expected memory of a command, in bytes, by resource ("ram" or a card's UUID).

        A build's memory is proportional to its number of jobs. A peak above this machine's capacity (``most``) is
        wrong, or from another machine.
        """
        facts = self.commands.get(command, {})
        before, vram = facts.get("jobs"), facts.get("vram_bytes")
        noted = {"ram": facts.get("peak_bytes"), **(vram if isinstance(vram, dict) else {})}
        found = {name: size for name, size in noted.items() if type(size) is int and 0 < size <= most.get(name, size)}
        if "ram" in found and facts.get("compiler_bytes") and jobs and isinstance(before, int):
            wanted = found["ram"] * jobs // max(before, 1)
            found["ram"] = min(wanted, most.get("ram", wanted))
        return {name: size for name, size in found.items() if size > 0}

    def learn(self, command: str, stats: RunStats, jobs: int | None) -> None:
        """Take over a run that has ended; the last one counts, as sources and flags change."""
        before = self.commands.pop(command, {})
        facts = {
            "peak_bytes": stats.peak_bytes,
            "compiler_bytes": stats.compiler_bytes,
            "vram_bytes": {card.key: card.taken_bytes for card in stats.cards},
            "jobs": jobs,
        }
        if stats.oom_kills:  # it needs at least this much; a compiler's need is unknown
            peak = max(stats.peak_bytes or 0, before.get("peak_bytes") or 0)
            facts |= {"peak_bytes": peak, "compiler_bytes": before.get("compiler_bytes")}
        self.commands[command] = facts
        for old in list(self.commands)[:-MAX_COMMANDS]:
            del self.commands[old]
        for name, size in () if stats.oom_kills else stats.compilers.items():
            # Decays at each run, so that one huge file does not slow down every later build.
            self.compilers[name] = max(size, (self.compilers.get(name, 0) + size) // 2)


def load(folder: Path) -> PastRuns:
    """Return the stored runs; none where the file is missing or invalid."""
    try:
        document = safe_files.parsed(safe_files.contents(folder / NAME))
        commands = {str(k): dict(v) for k, v in document["commands"].items()}
        return PastRuns(commands, {str(k): int(v) for k, v in document["compilers"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return PastRuns()


def save(folder: Path, known: PastRuns) -> None:
    """Write the runs atomically.

    Raises:
        OSError: the folder cannot be written.
    """
    safe_files.make_folder(folder)
    safe_files.put(folder / NAME, json.dumps(dataclasses.asdict(known), indent=1))


class JobsError(MessageError):
    """What should be a number of jobs is not one; the message says how it is written."""


def jobs_for(
    command: Sequence[str], host: Host, jobs: str, known: PastRuns, environ: Mapping[str, str]
) -> tuple[int, dict[str, str], MessageLike]:
    """Return a job's expected memory, the environment that limits jobs, and a message about them. Raises JobsError.

    ``jobs`` is a number, ``auto`` (as many as fit) or ``off``.
    """
    left = memory_left(host)
    remembered = known.compiler_bytes(key_of(command))
    expected = job_bytes(known.compilers, remembered, nvcc=_has_nvcc(environ))
    if jobs == "off":
        return expected, dict(environ), ""
    if jobs != "auto" and not (jobs.isdecimal() and int(jobs)):
        raise JobsError("--jobs {jobs}: write a number, auto or off", jobs=jobs)
    processors = len(os.sched_getaffinity(0))
    fitting = jobs_that_fit(left.available_bytes, left.total_bytes, expected, processors)
    chosen = fitting if jobs == "auto" else int(jobs)
    measured = template("jobs: {jobs} of {processors}, {free_bytes} free and {job_bytes} measured for each")
    guessed = template("jobs: {jobs} of {processors}, {free_bytes} free and {job_bytes} expected for each")
    facts = {"jobs": chosen, "processors": processors, "free_bytes": left.available_bytes, "job_bytes": expected}
    message = Message(measured if remembered else guessed, facts)
    return expected, {**environ, **limits(chosen, environ)}, message


def peaks(guarded: GuardedCommand, host: Host, vram: VramWatch, known: PastRuns) -> dict[str, int]:
    """Return the command's earlier peaks, up to the capacity of this machine."""
    key, ram = key_of(guarded.command), most_bytes(host)
    most = {} if ram is None else {"ram": ram}
    found = known.peaks(key, guarded.jobs, most)
    if found.keys() - {"ram"}:
        found = known.peaks(key, guarded.jobs, most | {card.key: card.total_bytes for card in vram.first_answer()})
    return found


def too_large(peaks: Mapping[str, int], host: Host, vram: VramWatch) -> Iterator[Message]:
    """Yield a message about each peak that is more than is free now."""
    left = memory_left(host)
    free = {"ram": left.available_bytes + left.swap_bytes}
    if peaks.keys() - free.keys():
        free |= {card.key: card.free_bytes for card in vram.first_answer() if card.free_bytes is not None}
    for what, peak in peaks.items():
        if peak > (now := free.get(what, peak)):
            ram = template("an earlier run took {peak_bytes} of memory; {free_bytes} is free now")
            card = template("an earlier run took {peak_bytes} of VRAM; {free_bytes} is free now")
            yield say(ram if what == "ram" else card, peak_bytes=peak, free_bytes=now)


def _has_nvcc(environ: Mapping[str, str]) -> bool:
    homes = filter(None, (environ.get("CUDA_HOME"), environ.get("CUDA_PATH"), "/usr/local/cuda"))
    return any(Path(home, "bin", "nvcc").exists() for home in homes)


def jobs_that_fit(available_bytes: int, total_bytes: int, job_bytes: int, processors: int) -> int:
    """Return how many jobs of ``job_bytes`` fit; at least one."""
    return max(1, min((available_bytes - reserve(total_bytes)) // max(job_bytes, 1), processors))


def limits(number: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that set the number of jobs of builds; a smaller number set by the user stays.

    MAX_JOBS is for torch's extensions, CMAKE_BUILD_PARALLEL_LEVEL for ``cmake --build``, the others are named after
    their tool.
    """
    found = {
        name: str(min(number, int(theirs)) if (theirs := environment.get(name, "")).isdecimal() else number)
        for name in ("MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL", "CARGO_BUILD_JOBS")
    }
    flags = environment.get("MAKEFLAGS", "")
    wishes = [int(wish or number + 1) for wish in _MAKE_JOBS.findall(flags)]  # -j alone is unlimited
    if "--jobserver" not in flags and not any(wish <= number for wish in wishes[-1:]):
        found["MAKEFLAGS"] = f"{flags} -j{number}".strip()  # the last of several counts
    return found


def job_bytes(learned: Mapping[str, int], remembered: int | None, *, nvcc: bool) -> int:
    """Return the bytes per job: those of its compilers in earlier runs (``remembered``), else on this machine.

    ``learned`` is the peak of each compiler by name; ``nvcc`` whether there is one to use.
    """
    if remembered:
        return int(remembered * MARGIN)
    seen = [size for name, size in learned.items() if nvcc or name not in ("cicc", "ptxas", "cudafe++")]
    return max(int(max(seen, default=0) * MARGIN), NVCC_BYTES if nvcc else CXX_BYTES)


def key_of(command: Sequence[str]) -> str:
    """Return the key of a command: program and arguments, without paths."""
    words = [PurePosixPath(word).name or word for word in command]
    return masked(" ".join(words))[:200]


def short_name(command: Sequence[str]) -> str:
    """Return program and script, or program and its first argument (a target), for public display.

    A word after an option may be its value, and a secret.
    """
    known, first = title(command), PurePosixPath("".join(command[1:2])).name
    return (known if " " in known or first.startswith("-") else named(f"{known} {first}".strip()))[:60]
