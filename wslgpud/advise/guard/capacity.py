"""Capacity decisions: how many jobs fit, which compilers may run, which value of a sweep still fits. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from wslgpud.security.redaction import masked, named
from wslgpud.sources.processes import title
from wslgpud.words import Fact, Message, say

GIB = 1 << 30
#: nvcc's cicc takes 2 to 4 GB on big kernels (Dao-AILab/flash-attention#832), a heavy C++ file 1 to 2.
NVCC_BYTES, CXX_BYTES = 4 * GIB, 2 * GIB
#: Left for everything else: page cache of the sources, the editor, the desktop.
RESERVE_RATIO, RESERVE_BYTES = 0.05, GIB
#: Margin on top of earlier measurements: the next file may be bigger.
MARGIN = 1.25
#: Compilers that must have ended before their peaks replace the defaults.
ENOUGH_SEEN = 3
#: Margin on top of predictions: allocators take memory in steps.
CAUTION = 1.05

#: Programs that use the memory; drivers like make, g++ and nvcc only wait.
_COMPILER = re.compile(
    r"cicc|ptxas|cudafe\+\+|fatbinary|nvlink|cc1|cc1plus|cc1obj|lto1|lto1-wpa|lto1-ltrans|f951"
    r"|(clang|clang\+\+)(-[\d.]+)?"
    r"|ld|ld\.(lld|gold|bfd|mold)|lld|mold|rustc|rust-lld|javac|swift-frontend|compile|link"
)
_MAKE_JOBS = re.compile(r"(?:^|\s)(?:-?j|--jobs)(?:=|\s+)?(\d*)(?!\S)")


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the watched tree; ``bytes`` is its memory, excluding file pages.

    ``shared_bytes`` is additional shared memory (/dev/shm), which others may map as well.
    """

    pid: int
    start_ticks: int
    name: str
    bytes: int
    stopped: bool = False
    shared_bytes: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """Identity that survives the reuse of a pid."""
        return self.pid, self.start_ticks


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


@dataclass(frozen=True, slots=True)
class SweepStep:
    """A value and the memory of its run, None where unknown; VRAM in addition to that used before."""

    value: str
    code: int
    seconds: float
    ram_bytes: int | None
    vram_bytes: int | None


def _number(value: str) -> float | None:
    """Return a value of a sweep as a number, if it is a finite one."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def predict(points: Sequence[tuple[float, int]], value: float) -> int | None:
    """Return the predicted memory of ``value``: on the line through the last two points, at least the last one.

    Memory grows with a batch by a constant for each sample on top of a fixed part; one point determines neither. Where
    growth accelerates (attention without flash), the last two are the steepest.
    """
    known = sorted(points)[-2:]
    if len(known) < 2 or known[0][0] == known[1][0]:
        return None
    (x0, y0), (x1, y1) = known
    slope = max(0.0, (y1 - y0) / (x1 - x0))
    return max(y1 if value >= x1 else 0, round(y1 + slope * (value - x1)))


def too_much(
    steps: Sequence[SweepStep], value: str, ram_room_bytes: int, vram_room_bytes: int | None
) -> Message | None:
    """Return why the next value will not fit; None: it fits, or is unknown."""
    new = _number(value)
    if new is None:
        return None
    known = [(x, s.ram_bytes, s.vram_bytes) for s in steps if s.code == 0 and (x := _number(s.value)) is not None]
    ram = predict([(x, ram) for x, ram, _ in known if ram is not None], new)
    vram = predict([(x, vram) for x, _, vram in known if vram is not None], new)
    if vram is not None and vram_room_bytes is not None and vram * CAUTION > vram_room_bytes:
        need: dict[str, Fact] = {"value": value, "need_bytes": vram, "free_bytes": vram_room_bytes}
        return say("{value} would take {need_bytes} of VRAM, but only {free_bytes} is free: stopped before it", **need)
    if ram is not None and ram * CAUTION > ram_room_bytes:
        need = {"value": value, "need_bytes": ram, "free_bytes": ram_room_bytes}
        return say("{value} would take {need_bytes} of RAM, but only {free_bytes} is free: stopped before it", **need)
    return None
