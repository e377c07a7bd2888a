"""Measurements of a run: memory left, memory it holds, the cards' memory, and the resulting figures."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from wslgpud.advise.guard.capacity import Process, is_compiler
from wslgpud.advise.guard.failures import CardUse
from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import GpuSample
from wslgpud.risk.headroom import gpu_key
from wslgpud.sources import cgroups, memory, parse_uint, table
from wslgpud.sources.gpu import GpuSource
from wslgpud.sources.owned_files import OwnedFiles
from wslgpud.words import Message, say

#: far smaller sizes do not matter for a build or a training
_WORTH_BYTES = 16 << 20
#: For PSS the kernel walks over every page, some 10 ms per GB: limited to a hundredth of a processor.
_REST = 100
_GPU_SECONDS = 1.0
#: samples before the end that count: the last one may show the memory that the end has freed
_LAST_SAMPLES = 5
#: A sleeping card takes seconds to wake up.
_FIRST_ANSWER_SECONDS = 15.0
#: the window of the rate, and the limits of a shortage: time left at that rate, share of the memory
_RATE_SECONDS, _SHORT_SECONDS, _SHORT_RATIO = 10.0, 20.0, 0.03
_NEVER_SHORT_RATIO = 0.3
#: size of the shell that starts the command: with no more, the command itself was never sampled
_SHELL_BYTES = 1 << 20


def most_bytes(host: Host) -> int | None:
    """Return RAM plus swap of the machine: no program can hold more."""
    with suppress(NoData, SourceError):
        levels = memory.sizes(host)
        return levels["MemTotal"] + levels.get("SwapTotal", 0)
    return None


class MemoryLeft(NamedTuple):
    """Bytes available without swapping, the total, free swap beside RAM, and OOM kills so far."""

    available_bytes: int
    total_bytes: int
    oom_kills: int = 0
    swap_bytes: int = 0


def memory_left(host: Host) -> MemoryLeft:
    """Return the memory left for us under the tightest limit that applies to us.

    Raises:
        NoData: the machine shows no /proc/meminfo.
        SourceError: it cannot be read.
    """
    levels = memory.sizes(host)
    if "MemAvailable" not in levels:
        raise NoData(say("/proc/meminfo does not show the available memory"))
    kills = parse_uint(table(host.read_optional("/proc/vmstat")).get("oom_kill")) or 0
    # Only the machine's swap counts: a group's swap limit is ignored.
    machine = MemoryLeft(levels["MemAvailable"], levels["MemTotal"], kills, memory.free_swap_bytes(host, levels))
    return min((machine, *_within_limits(host)), key=lambda r: r.available_bytes)


def _within_limits(host: Host) -> Iterator[MemoryLeft]:
    """Yield the memory left in each limited cgroup that we are in; its page cache is reclaimed first at the limit."""
    with suppress(NoData, SourceError):  # without cgroups there are no limits
        tree = cgroups.find_tree(host)
        for group in cgroups.around_us(host, tree):
            values = {reading.spec: int(reading.value) for reading in cgroups.state(host, tree, group.path)}
            cache = values.get(cgroups.INACTIVE_FILE, 0) + values.get(cgroups.ACTIVE_FILE, 0)
            left = max(0, group.limit - group.current + cache)
            yield MemoryLeft(left, group.limit, values.get(cgroups.OOM_KILLS, 0))


class TreeMemory:
    """Sums up the memory of a process tree.

    Two things would be counted many times. Forked workers (a DataLoader's; make's exec another program) share pages
    with their parent, and shared memory (``/dev/shm``) is mapped by all processes that exchange tensors. For such
    processes, PSS is read instead. Unmapped files on a tmpfs are not counted: they stay when the processes end.
    """

    def __init__(self, host: Host) -> None:
        self._host, self._files = host, OwnedFiles(host)
        self._ask_at = float("-inf")

    def now_bytes(self, processes: Sequence[Process]) -> int | None:
        """Return the total bytes of these processes; None: not known exactly this time.

        More than the machine's memory means that something was counted twice.
        """
        sharing = self._sharing(processes)
        held = sum(p.bytes + p.shared_bytes for p in processes if p.key not in sharing)
        if sharing:
            if self._host.clock.mono() < self._ask_at:
                return None
            began = time.process_time()  # CPU time: waiting for a busy processor costs nothing
            held += sum(map(self._share, sharing.values()))
            self._ask_at = self._host.clock.mono() + _REST * (time.process_time() - began)
        most = most_bytes(self._host)
        return None if most is not None and held > most else held

    def _sharing(self, processes: Sequence[Process]) -> dict[tuple[int, int], Process]:
        """Return the processes that may share pages: several with shared memory, or several of one program."""
        families: dict[str | None, list[Process]] = defaultdict(list)
        for process in processes:
            if process.shared_bytes >= _WORTH_BYTES:
                families["shared memory"].append(process)
            if process.bytes >= _WORTH_BYTES and not is_compiler(process.name):
                families[self._host.link(f"/proc/{process.pid}/exe")].append(process)
        return {p.key: p for family in families.values() if len(family) > 1 for p in family}

    def _share(self, process: Process) -> int:
        """Return a process's proportional share of its memory without files, in bytes; all of it where unknown.

        The parts of Pss exist since Linux 5.4: https://docs.kernel.org/filesystems/proc.html
        """
        parts = table(self._files.optional(process.pid, "smaps_rollup"))
        kilobytes = [parse_uint(parts.get(name)) for name in ("Pss_Anon", "Pss_Shmem", "SwapPss")]
        if None in kilobytes:  # ended meanwhile, or another user's
            return process.bytes + process.shared_bytes
        return sum(k or 0 for k in kilobytes) << 10


@dataclass(slots=True)
class RunStats:
    """The figures of a run; ``code`` is the exit status as in a shell, bytes are the watched processes'.

    ``held_bytes`` is their last known total, each page counted once; ``peak_bytes`` its peak, None for a run that ended
    before it was sampled. ``vram_taken_bytes`` is the peak by UUID beyond the use at the start. ``saved`` lists the
    programs that were asked to save, with the time in seconds; ``explanation`` says why a failed run failed.
    """

    seconds: float = 0.0
    code: int = 0
    timed_out: bool = False
    interrupted: bool = False
    held_bytes: int = 0
    peak_bytes: int | None = None
    least_available_bytes: int | None = None
    least_at_seconds: float = 0.0
    total_bytes: int = 0
    biggest: tuple[str, int] = ("", 0)
    compilers: dict[str, int] = field(default_factory=dict)
    compilers_ended: int = 0
    vram_peak_bytes: dict[int, int] = field(default_factory=dict)
    vram_start_bytes: dict[int, int] = field(default_factory=dict)
    vram_taken_bytes: dict[str, int] = field(default_factory=dict)
    explanation: Sequence[Message] = ()
    pauses: int = 0
    paused_seconds: float = 0.0
    oom_kills: int = 0
    saved: list[tuple[str, float]] = field(default_factory=list)

    def note(self, seconds: float, left: MemoryLeft, processes: list[Process], held_bytes: int | None) -> None:
        """Record a sample; ``held_bytes`` is None where the total is unknown."""
        self.seconds, self.total_bytes = seconds, left.total_bytes
        if processes and held_bytes is not None:
            self.held_bytes = held_bytes
            self.peak_bytes = max(self.peak_bytes or 0, held_bytes)
        if self.least_available_bytes is None or left.available_bytes < self.least_available_bytes:
            self.least_available_bytes, self.least_at_seconds = left.available_bytes, seconds
        for process in processes:
            self.biggest = max(self.biggest, (process.name, process.bytes), key=lambda one: one[1])
            if is_compiler(process.name):
                self.compilers[process.name] = max(self.compilers.get(process.name, 0), process.bytes)

    def close_brief(self, largest_bytes: int | None) -> None:
        """Complete a run that ended after a few samples, or before the first.

        ``largest_bytes`` is the kernel's peak of its largest process, including mapped files, if useful.
        """
        if largest_bytes is not None:
            self.peak_bytes = max(self.peak_bytes or 0, largest_bytes)
        elif self.biggest[1] < _SHELL_BYTES:
            self.peak_bytes = None

    @property
    def compiler_bytes(self) -> int:
        """Return the highest memory of one compiler."""
        return max(self.compilers.values(), default=0)


class Shortage:
    """Detects that memory is about to run out: little is left, or it shrinks fast."""

    def __init__(self) -> None:
        self._past: deque[tuple[float, int]] = deque()

    def is_near(self, seconds: float, headroom_bytes: int, total_bytes: int) -> bool:
        """Take a sample and return whether a program should save now."""
        self._past.append((seconds, headroom_bytes))
        while seconds - self._past[0][0] > _RATE_SECONDS:
            self._past.popleft()
        if headroom_bytes < _SHORT_RATIO * total_bytes:
            return True
        elapsed = seconds - self._past[0][0]
        gone = self._past[0][1] - headroom_bytes
        if elapsed < _RATE_SECONDS / 4 or gone <= 0 or headroom_bytes > _NEVER_SHORT_RATIO * total_bytes:
            return False
        return headroom_bytes * elapsed / gone < _SHORT_SECONDS


class VramWatch:
    """Queries NVML once per second, in a thread: a hung driver must not delay the time limit."""

    def __init__(self, host: Host, config: Config) -> None:
        self._source = GpuSource(host, config)
        self._end, self._answered = threading.Event(), threading.Event()
        self._gpus: dict[int, GpuSample] = {}
        self._thread = threading.Thread(target=self._run, name="vram", daemon=True)
        self.start = self._thread.start
        self.start_bytes: dict[int, int] = {}
        self.now_bytes: dict[int, int] = {}
        self.peak_bytes: dict[int, int] = {}
        self._last_bytes: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=_LAST_SAMPLES))

    @property
    def pid(self) -> int | None:
        """The probe's pid, which is not part of the watched tree."""
        return self._source.probe_pid

    def free_bytes(self, index: int) -> int | None:
        """Return the card's free memory; waits for its first answer."""
        gpu = self._cards().get(index)
        return gpu.free_bytes if gpu else None

    def last_cards(self) -> Sequence[CardUse]:
        """Return each card's highest use during the last seconds, and how fast it rose."""
        known = {gpu.index: gpu.total_bytes for gpu in self._gpus.values() if gpu.total_bytes}
        return [
            CardUse(index, max(used), known[index], max((b - a for a, b in pairwise(used)), default=0))
            for index, used in self._last_bytes.items()
            if index in known
        ]

    def taken_bytes(self, used: Mapping[int, int]) -> dict[str, int]:
        """Return the use beyond that at the start, in bytes by UUID, of a use by index."""
        taken = {index: value - self.start_bytes.get(index, value) for index, value in used.items()}
        return {gpu_key(self._gpus[index]): max(0, value) for index, value in taken.items()}

    def free_by_uuid(self) -> dict[str, int]:
        """Return each card's free memory; waits for the first answer."""
        return {gpu_key(gpu): gpu.free_bytes for gpu in self._cards().values() if gpu.free_bytes is not None}

    def total_by_uuid(self) -> dict[str, int]:
        """Return each card's total memory; waits for the first answer."""
        return {gpu_key(gpu): gpu.total_bytes for gpu in self._cards().values() if gpu.total_bytes}

    def stop(self) -> None:
        """End the thread, and its child."""
        self._end.set()
        self._thread.join(2 * _GPU_SECONDS)
        self._source.close()

    def _cards(self) -> dict[int, GpuSample]:
        self._answered.wait(_FIRST_ANSWER_SECONDS)
        return dict(self._gpus)

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                for gpu in self._source.read().gpus or ():
                    self._note(gpu)
            except NoData:
                self._end.set()
            except SourceError:  # it may come back
                self.now_bytes = {}
            self._answered.set()
            self._end.wait(_GPU_SECONDS)

    def _note(self, gpu: GpuSample) -> None:
        self._gpus[gpu.index] = gpu
        used = gpu.used_bytes
        if used is not None and used <= (gpu.total_bytes or used):
            self.start_bytes.setdefault(gpu.index, used)
            self.now_bytes[gpu.index] = used
            self.peak_bytes[gpu.index] = max(self.peak_bytes.get(gpu.index, 0), used)
            self._last_bytes[gpu.index].append(used)
