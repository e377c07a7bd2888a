"""The relevant processes: the biggest, those that hold a GPU, those that train or build.

The role of a process is derived from its name, files and libraries. Of thousands of processes, nearly all sleep for
hours: new ones are read at every scan for a minute, listed ones always, the others in turn; and all at once when
programs hold more memory than those read explain, as then one of the others has grown.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Literal

from wslgpud.host import Host, NoData, SourceError
from wslgpud.metrics import PROGRAM_NAMES, gauge
from wslgpud.model import ProcessSample, Reading, Sample
from wslgpud.security.redaction import named
from wslgpud.sources import Source, parse_uint, table
from wslgpud.sources.procfs import Hangs, OwnedFiles, ProcessStat, memory_cgroup, process_stat, status_number

Role = Literal["gpu", "training", "build"]
ROLES: tuple[Role, ...] = ("gpu", "training", "build")
_NONE: frozenset[Role] = frozenset()
_BUILDS: frozenset[Role] = frozenset({"build"})

#: inspected open files per process; a process with more hides only its own use of a GPU
MAX_FILES = 2048
_COMMAND_LENGTH = 80
#: The longest line of a process's maps that is searched. The process chooses the paths in it, and no other thread runs
#: during a search; no library's path is longer.
MAX_MAPPING = 1024

#: The kernel cuts names at 15 characters, hence "x86_64-linux-gn" for a compiler with a long name.
_BUILD_TOOL = re.compile(
    r"nvcc|cicc|ptxas|cudafe\+\+|fatbinary|nvlink|hipcc"
    r"|cc1|cc1plus|cc1obj|lto1|lto-wrapper|collect2|cpp|(.*-)?(gcc|g\+\+|clang|clang\+\+|clang-cl)(-[\d.]+)?"
    r"|(x86_64|aarch64)-linux-gn|as|ld|ld\.(lld|gold|bfd|mold)|lld|mold|ar|ranlib"
    r"|ninja|make|gmake|cmake|meson|bazel|bazel-real|cargo|rustc|rust-lld|go|compile|link|javac|swiftc"
    r"|pip3?(\.\d+)?|uv|pip-build"
)
PYTHON = re.compile(r"(python|pypy|ipython)[\d.]*")
_BUILD_SCRIPT = re.compile(r"\S+ (-m )?(pip3?|setup\.py|build|_in_process\.py|conda-build)(\s.*)?")
_SOURCE_FILE = re.compile(r".*\.(cu|c|cc|cpp|cxx|rs|ii|i|ptx)")
GPU_DEVICE = re.compile(r"/dev/(dxg|nvidia\d+|nvidiactl|nvidia-uvm)")
#: NVIDIA's files that a program with a CUDA context has mapped
DRIVER = re.compile(r"/libcuda\.so|/dev/nvidia\d")
#: Libraries that indicate that Python trains or serves a model.
FRAMEWORK = re.compile(
    r"/libtorch_|/libtorch\.so|/jaxlib/|/libtensorflow|/tensorflow/|/libpaddle|/libonnxruntime|/libggml"
    r"|/libllama|/cupy/|/libmxnet|/libnvinfer|/tensorrt"
)
#: the folder of torch, and the mapping that only an import of it makes: of its extension, to be executed
TORCH = r"/[^\n]*/lib(?:64)?/python3[^/\n]*/(?:site|dist)-packages/torch"
_IMPORTED = re.compile(rf"\S+ r-xp \S+ \S+ \d+ +({TORCH})/_C\.")


@lru_cache(maxsize=1024)
def build_tool(name: str) -> bool:
    """Return whether a program of this name compiles or drives compilers."""
    return bool(_BUILD_TOOL.fullmatch(name))


def inspect(files: OwnedFiles, pid: int, name: str, command: str, before: frozenset[Role]) -> frozenset[Role]:
    """Return the roles that the process's files and libraries show; only root can see those of other users."""
    roles: set[Role] = set()
    if "build" in before or build_tool(name) or _BUILD_SCRIPT.fullmatch(command):
        roles.add("build")
    if holds_gpu(files, pid):
        roles.add("gpu")
    # Frameworks rename their processes (pt_main_thread, ray::...); the executable stays Python's.
    program = PurePosixPath(files.host.link(f"/proc/{pid}/exe") or name).name
    # A loaded library stays; reading the maps of a big process takes a millisecond, so once is enough.
    if "training" in before or (("gpu" in roles or PYTHON.fullmatch(program)) and _maps(files, pid, FRAMEWORK)):
        roles.add("training")
    return frozenset(roles)


def imported_torch(files: OwnedFiles, pid: int) -> tuple[str, str] | None:
    """Return the interpreter of a process and the torch that it has imported, both as paths; None if it is no such one.

    ``exe`` is the interpreter from which a virtual environment was made: the environment is known by its torch.
    """
    python = files.host.link(f"/proc/{pid}/exe") or ""
    torch = next(filter(None, map(_IMPORTED.match, _mappings(files, pid))), None)
    return (python, torch[1]) if torch and PYTHON.fullmatch(PurePosixPath(python).name) else None


def holds_gpu(files: OwnedFiles, pid: int) -> bool:
    """Return whether the process has a GPU's device file open.

    Names of other users' open files need CAP_DAC_READ_SEARCH, which is too much to ask for; without it, the process's
    maps (CAP_SYS_PTRACE) show whether it has loaded CUDA's driver.
    """
    host, folder = files.host, f"/proc/{pid}/fd"
    try:
        return any(GPU_DEVICE.fullmatch(host.link(f"{folder}/{name}") or "") for name in host.names(folder, MAX_FILES))
    except NoData:
        return False
    except SourceError:
        return _maps(files, pid, DRIVER)


def short_command(files: OwnedFiles, pid: int) -> str:
    """Return the ``title`` of a process; empty where it has ended or hides it."""
    return title(files.optional(pid, "cmdline").rstrip("\0").split("\0"))


def title(words: Sequence[str]) -> str:
    """Return program and script or source file; all other arguments are omitted, as they may hold secrets.

    A program that replaced its arguments with a title (setproctitle) has a single argument: the part before the first
    blank counts, without the colon of ``postgres: writer``.
    """
    program = PurePosixPath(words[0].lstrip().partition(" ")[0]).name.rstrip(":")
    text = f"{program} {_subject(program, words[1:])}".strip()
    # A secret may extend beyond the part that is kept, but a process may choose a title of megabytes.
    return named(text[: 4 * _COMMAND_LENGTH])[:_COMMAND_LENGTH]


def _subject(program: str, arguments: Sequence[str]) -> str:
    if not PYTHON.fullmatch(program):
        sources = [a for a in arguments if _SOURCE_FILE.fullmatch(a) and not a.startswith("-")]
        return PurePosixPath(sources[-1]).name if sources and build_tool(program[:15]) else ""
    rest = iter(arguments)
    for argument in rest:
        if argument == "-m":
            return f"-m {next(rest, '')}"
        if argument == "-c":
            return "-c"
        if argument in ("-X", "-W"):
            next(rest, None)
        elif not argument.startswith("-"):
            return PurePosixPath(argument).name
    return ""


def _mappings(files: OwnedFiles, pid: int) -> Iterator[str]:
    return (line for line in files.optional(pid, "maps").split("\n") if len(line) <= MAX_MAPPING)


def _maps(files: OwnedFiles, pid: int, pattern: re.Pattern[str]) -> bool:
    return any(map(pattern.search, _mappings(files, pid)))


#: a new process is read at every scan for this long, as it may exec or load a framework; later at least this often
_NEW_SECONDS = 60.0
#: unexplained growth beyond which all processes are read
_UNEXPLAINED_BYTES = 8 << 20
#: pid, start in ticks, name: what stays the same while a process runs the same program
ProcessKey = tuple[int, int, str]


def _key(row: ProcessStat) -> ProcessKey:
    return row.pid, row.start_ticks, row.name


def programs_bytes(meminfo: Mapping[str, str]) -> int | None:
    """Return the memory of all programs together, in RAM and swap, from /proc/meminfo; None where unknown.

    Mapped files count once here, but in each process that maps them.
    """
    names = ("AnonPages", "Mapped", "SwapTotal", "SwapFree")
    anon, mapped, swap, swap_free = (parse_uint(meminfo.get(name)) for name in names)
    if anon is None or mapped is None:
        return None
    return (anon + mapped + (swap or 0) - (swap_free or 0)) * 1024


class ProcessScan:
    """Keeps each process as last seen."""

    def __init__(self, host: Host, period_seconds: float) -> None:
        """Prepare for a scan every ``period_seconds``."""
        self._host, self._period = host, period_seconds
        self._rows: dict[int, ProcessStat] = {}
        #: read since the last update
        self._fresh: set[int] = set()
        #: pid -> until when it is new
        self._new: dict[int, float] = {}
        self._waiting: deque[int] = deque()
        self._held: int | None = None
        self._unexplained = 0

    def update(self, listed: Collection[int], meminfo: Mapping[str, str]) -> None:
        """Read the processes that may have changed, and all ``listed`` ones."""
        now = self._host.clock.mono()
        self._fresh.clear()
        pids = {int(name): None for name in self._host.names("/proc") if name.isdecimal()}
        new = [pid for pid in pids if pid not in self._rows]
        ended = [pid for pid in self._rows if pid not in pids]
        self._new = {pid: until for pid, until in self._new.items() if until > now and pid in pids}
        # One that hides its stat (hidepid=1) is listed and never known.
        known = filter(self._rows.__contains__, (*listed, *self._new))
        looked = dict.fromkeys((*ended, *known, *self._turn()))
        explained = sum(map(self._growth, looked))
        for pid in new:
            self._look(pid)
            self._new[pid] = now + _NEW_SECONDS
        before, self._held = self._held, programs_bytes(meminfo)
        if before is not None and self._held is not None:
            self._unexplained = max(0, self._unexplained + self._held - before - explained)
        if self._held is None or self._unexplained >= _UNEXPLAINED_BYTES:
            for pid in self._rows.keys() - self._fresh:
                self._look(pid)
            self._unexplained = 0

    def running(self) -> list[ProcessStat]:
        """Return the processes that have memory of their own, each as last seen."""
        return [row for row in self._rows.values() if row.virtual_bytes]

    def fresh(self, row: ProcessStat) -> ProcessStat | None:
        """Return a process as it is now; None where it has ended."""
        now = self._rows.get(row.pid) if row.pid in self._fresh else self._look(row.pid)
        return now if now is not None and _key(now) == _key(row) else None

    def _look(self, pid: int) -> ProcessStat | None:
        row, before = process_stat(self._host, pid), self._rows.get(pid)
        if row is None:
            self._rows.pop(pid, None)
            return None
        if before is not None and _key(row) != _key(before):
            self._new[pid] = self._host.clock.mono() + _NEW_SECONDS
        self._rows[pid] = row
        self._fresh.add(pid)
        return row

    def _growth(self, pid: int) -> int:
        """Read a known process and return its growth."""
        before, row = self._rows[pid], self._look(pid)
        return (row.rss_bytes if row is not None else 0) - before.rss_bytes

    def _turn(self) -> list[int]:
        """Return the processes whose turn it is."""
        if not self._waiting:
            self._waiting.extend(self._rows)
        share = -(-len(self._rows) * self._period // _NEW_SECONDS)
        turn = [self._waiting.popleft() for _ in range(min(len(self._waiting), int(share)))]
        return [pid for pid in turn if pid in self._rows]


#: A process that has grown this much since the last inspection may have loaded a framework or opened a GPU: importing
#: torch takes 150 MB, a CUDA context 100 MB.
_GROWN_BYTES = 48 << 20
#: Others as large are inspected again after this time.
_REINSPECT_SECONDS = 60.0
_MAX_LOOKS = 8

PROCESSES = gauge("processes", "Processes, excluding kernel threads.")
ROLE_PROCESSES = gauge(
    "role_processes",
    "Processes that hold a GPU (gpu), have a training framework loaded (training), or compile (build).",
    "role",
)
RESIDENT = gauge(
    "program_resident_bytes",
    "RAM of the listed programs, all their processes together; shared pages count in each.",
    "program",
    names=(PROGRAM_NAMES,),
)
SWAPPED = gauge("program_swap_bytes", "Swap used by these programs.", "program", names=(PROGRAM_NAMES,))


@dataclass(slots=True)
class _Known:
    """Details of a process that are not in its ``stat``."""

    roles: frozenset[Role] = _NONE
    torch: tuple[str, str] | None = None
    looked_rss_bytes: int = 0
    looked_mono: float = float("-inf")
    command: str | None = None


class ProcessSource(Source):
    """Scans /proc: one small file for each process that may have changed, more only for those that are listed."""

    name = "processes"
    lane = "processes"  # a process that holds its own lock costs it half a second, once
    deadline_seconds = 2.0
    metrics = (PROCESSES, ROLE_PROCESSES, RESIDENT, SWAPPED)

    def _prepare(self) -> None:
        self.period_seconds = self.config.sampling.processes_seconds
        self._scan = ProcessScan(self.host, self.period_seconds)
        self._files = OwnedFiles(self.host)
        #: of those that have been looked into or listed
        self._known: dict[ProcessKey, _Known] = {}
        self._listed: tuple[int, ...] = ()

    def read(self) -> Sample:
        """Return the relevant processes, biggest first."""
        meminfo = table(self.host.read("/proc/meminfo"))
        self._scan.update(self._listed, meminfo)
        rows = self._scan.running()
        self._known = {key: known for key in map(_key, rows) if (known := self._known.get(key)) is not None}
        self._find_roles(rows)
        swap = self._swap(rows, meminfo)
        roles = {row.pid: found for row in rows if (found := self._roles(row))}
        chosen = choose(rows, swap, roles, self.config.sampling.processes_max)
        kept = [row for row in map(self._scan.fresh, chosen) if row is not None]
        samples = tuple(map(self._sample, kept))
        self._listed = tuple(row.pid for row in kept)
        return Sample(_readings(len(rows), roles, samples), processes=samples)

    def _roles(self, row: ProcessStat) -> frozenset[Role]:
        known = self._known.get(_key(row))
        return (known.roles if known else _NONE) | (_BUILDS if build_tool(row.name) else _NONE)

    def _find_roles(self, rows: Iterable[ProcessStat]) -> None:
        """Inspect those that may have changed, biggest growth first, a few per scan."""
        now = self.host.clock.mono()
        grown: list[tuple[int, ProcessStat, _Known]] = []
        for row in rows:
            if row.rss_bytes < _GROWN_BYTES:
                continue
            known = self._known.setdefault(_key(row), _Known())
            growth = row.rss_bytes - known.looked_rss_bytes
            if growth >= _GROWN_BYTES or now - known.looked_mono >= _REINSPECT_SECONDS:
                grown.append((growth, row, known))
        for _, row, known in heapq.nlargest(_MAX_LOOKS, grown, key=lambda item: item[0]):
            known.looked_rss_bytes, known.looked_mono = row.rss_bytes, now
            command = self._command(row)
            # The NVML probe has the GPU's device open, but is not a program to wait for.
            ours = "-m wslgpud.probes." in command
            known.roles = _NONE if ours else inspect(self._files, row.pid, row.name, command, known.roles)
            if "training" in known.roles and known.torch is None:
                known.torch = imported_torch(self._files, row.pid)

    def _command(self, row: ProcessStat) -> str:
        known = self._known.setdefault(_key(row), _Known())
        if known.command is None:
            try:
                known.command = title(self._files.text(row.pid, "cmdline").rstrip("\0").split("\0"))
            except Hangs:
                return ""  # until it answers, its name will do
            except (NoData, SourceError):
                known.command = ""
        return known.command

    def _swap(self, rows: list[ProcessStat], meminfo: Mapping[str, str]) -> dict[int, int]:
        """Return the swapped bytes of processes that these may make one of the biggest."""
        if parse_uint(meminfo.get("SwapTotal")) == parse_uint(meminfo.get("SwapFree")):
            return {}
        # No process occupies more than its virtual size: one mapped smaller than these is not among the biggest.
        biggest = heapq.nlargest(self.config.sampling.processes_max, (row.rss_bytes for row in rows))
        return {
            row.pid: _swapped_bytes(self.host.read_optional(f"/proc/{row.pid}/status"))
            for row in rows
            if row.virtual_bytes > biggest[-1]
        }

    def _sample(self, row: ProcessStat) -> ProcessSample:
        cgroup = memory_cgroup(self.host.read_optional(f"/proc/{row.pid}/cgroup"))
        status = self.host.read_optional(f"/proc/{row.pid}/status")
        # Memory that cannot be moved: locked by the program, pinned for a device.
        pinned = [size for name in ("VmLck", "VmPin") if (size := status_number(status, name)) is not None]
        return ProcessSample(
            row.pid,
            row.start_ticks,
            row.name,
            row.rss_bytes,
            _swapped_bytes(status),
            status_number(status, "Uid"),
            self._roles(row),
            self._command(row),
            cgroup,
            row.cpu_seconds,
            row.faults_total,
            row.major_faults_total,
            sum(pinned) << 10 if pinned else None,
            self._known[_key(row)].torch,
        )


def _swapped_bytes(status: str) -> int:
    """Return the swapped bytes in the text of /proc/<pid>/status; a kernel without swap has no such line."""
    return (status_number(status, "VmSwap") or 0) << 10


def choose(
    rows: Iterable[ProcessStat], swap: dict[int, int], roles: dict[int, frozenset[Role]], most: int
) -> list[ProcessStat]:
    """Return the ``most`` rows to keep, biggest first: half by size alone, then those with a role."""
    by_size = sorted(rows, key=lambda r: r.rss_bytes + swap.get(r.pid, 0), reverse=True)
    sure, rest = by_size[: most - most // 2], by_size[most - most // 2 :]
    # Stable sort: the order by size stays within each group.
    rest.sort(key=lambda r: not roles.get(r.pid))
    kept = {r.pid for r in (*sure, *rest[: most // 2])}
    return [r for r in by_size if r.pid in kept]


def _readings(seen: int, roles: dict[int, frozenset[Role]], samples: Iterable[ProcessSample]) -> tuple[Reading, ...]:
    resident, swapped = Counter[str](), Counter[str]()
    for process in samples:
        resident[process.name] += process.rss_bytes
        swapped[process.name] += process.swap_bytes
    number = Counter(role for found in roles.values() for role in found)
    return (
        Reading(PROCESSES, seen),
        *(Reading(ROLE_PROCESSES, number[role], (role,)) for role in ROLES),
        *(Reading(RESIDENT, value, (name,)) for name, value in resident.items()),
        *(Reading(SWAPPED, value, (name,)) for name, value in swapped.items()),
    )
