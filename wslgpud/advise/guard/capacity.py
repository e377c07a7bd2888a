"""Capacity decisions: how many jobs fit, and which compilers may run. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from wslgpud.security.redaction import masked, named
from wslgpud.sources.processes import title

GIB = 1 << 30
#: nvcc's cicc takes 2 to 4 GB on big kernels (Dao-AILab/flash-attention#832), a heavy C++ file 1 to 2.
NVCC_BYTES, CXX_BYTES = 4 * GIB, 2 * GIB
#: Left for everything else: page cache of the sources, the editor, the desktop.
RESERVE_RATIO, RESERVE_BYTES = 0.05, GIB
#: Margin on top of earlier measurements: the next file may be bigger.
MARGIN = 1.25
#: Compilers that must have ended before their peaks replace the defaults.
ENOUGH_SEEN = 3

#: Programs that use the memory; drivers like make, g++ and nvcc only wait.
_COMPILER = re.compile(
    r"cicc|ptxas|cudafe\+\+|fatbinary|nvlink|cc1|cc1plus|cc1obj|lto1|lto1-wpa|lto1-ltrans|f951"
    r"|(clang|clang\+\+)(-[\d.]+)?"
    r"|ld|ld\.(lld|gold|bfd|mold)|lld|mold|rustc|rust-lld|javac|swift-frontend|compile|link"
)
_MAKE_JOBS = re.compile(r"(?:^|\s)(?:-?j|--jobs)(?:=|\s+)?(\d*)(?!\S)")


class Process(NamedTuple):
    """A process of the watched tree; ``bytes`` is its memory, excluding file pages.

    ``shared_bytes`` is additional shared memory (/dev/shm), which others may map as well, ``caught`` the mask of the
    signals for which it has a handler.
    """

    pid: int
    start_ticks: int
    name: str
    bytes: int
    stopped: bool = False
    shared_bytes: int = 0
    uid: int = 0
    caught: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """Identity that survives the reuse of a pid."""
        return self.pid, self.start_ticks

    def catches(self, number: int) -> bool:
        """Return whether it has a handler for a signal, so that it is not killed by it."""
        return bool(self.caught >> (number - 1) & 1)


def is_compiler(name: str) -> bool:
    """Return whether a process of this name is a compiler, which takes the memory of a build."""
    return bool(_COMPILER.fullmatch(name))


def reserve(total_bytes: int) -> int:
    """Return the memory that a build must leave free: a twentieth or 1 GiB, on a small machine an eighth."""
    return min(max(int(total_bytes * RESERVE_RATIO), RESERVE_BYTES), total_bytes // 8)


def jobs(available_bytes: int, total_bytes: int, job_bytes: int, processors: int) -> int:
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


def to_stop(
    compilers: Sequence[Process], available_bytes: int, reserve_bytes: int, peak_bytes: int
) -> tuple[list[Process], list[Process]]:
    """Return which compilers to stop, and which of the stopped to resume: the oldest first, and always one.

    Each running one is given room to grow to ``peak_bytes``; one already beyond that, to grow by a quarter. A stopped
    one needs room only for its remaining growth.
    """
    room, stop, go = available_bytes - reserve_bytes, [], []
    # The biggest is closest to its end, and the others wait for its memory.
    sure = min(compilers, key=lambda p: (-p.bytes, p.start_ticks, p.pid), default=None)
    for process in sorted(compilers, key=lambda p: (p is not sure, p.start_ticks, p.pid)):
        room -= max(peak_bytes - process.bytes, process.bytes // 4)
        if process is sure or room >= 0:
            if process.stopped:
                go.append(process)
        elif not process.stopped:
            stop.append(process)
    return stop, go
