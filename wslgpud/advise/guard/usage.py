"""Measurements of a run: memory left, memory it holds, the cards' memory, and the resulting figures."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from wslgpud.advise.guard.tree import Process, is_compiler
from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import GpuSample
from wslgpud.risk.headroom import gpu_key
from wslgpud.sources import cgroups, memory, parse_uint, table
from wslgpud.sources.gpu import GpuSource
from wslgpud.sources.procfs import OwnedFiles
from wslgpud.words import Message, say

if TYPE_CHECKING:
    from typing_extensions import Self

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
#: a card with less of its memory free was full: the next block of a training does not fit
_FULL_RATIO = 0.05


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
        """Return the processes that may share pages: several with shared memory, or several of one program.

        PSS is known only now and then: a training's peak must not be missed because of its launcher.
        """
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
class CardUse:
    """A card's memory in use during a run: at its start, now (None: unknown), at its peak, and in the last seconds.

    ``free_bytes`` is what its driver would give now.
    """

    index: int
    key: str
    total_bytes: int
    start_bytes: int
    now_bytes: int | None = None
    peak_bytes: int = 0
    free_bytes: int | None = None
    last_bytes: deque[int] = field(default_factory=lambda: deque(maxlen=_LAST_SAMPLES))

    def note(self, used_bytes: int) -> None:
        self.now_bytes = used_bytes
        self.peak_bytes = max(self.peak_bytes, used_bytes)
        self.last_bytes.append(used_bytes)

    @property
    def taken_bytes(self) -> int:
        """The peak beyond the use at the start."""
        return max(0, self.peak_bytes - self.start_bytes)

    @property
    def used_bytes(self) -> int:
        """The highest use in the last seconds."""
        return max(self.last_bytes)

    @property
    def rise_bytes(self) -> int:
        """The largest rise between two of the last samples."""
        return max((later - sooner for sooner, later in pairwise([*self.last_bytes])), default=0)

    @property
    def full(self) -> bool:
        """Whether it was full in the last seconds."""
        return self.total_bytes - self.used_bytes < _FULL_RATIO * self.total_bytes


@dataclass(slots=True)
class RunStats:
    """The figures of a run; ``code`` is the exit status as in a shell, bytes are the watched processes'.

    ``held_bytes`` is their last known total, each page counted once; ``peak_bytes`` its peak, None for a run that ended
    before it was sampled. ``saved`` lists the programs that were asked to save, with the time in seconds;
    ``explanation`` says why a failed run failed.
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
    cards: Sequence[CardUse] = ()
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
    """Queries NVML once per second while entered, in a thread: a hung driver must not delay the time limit."""

    def __init__(self, host: Host, config: Config) -> None:
        self._source = GpuSource(host, config)
        self._end, self._answered = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="vram", daemon=True)
        self._cards: dict[int, CardUse] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(2 * _GPU_SECONDS)
        self._source.close()

    @property
    def pid(self) -> int | None:
        """The probe's pid, which is not part of the watched tree."""
        return self._source.probe_pid

    @property
    def cards(self) -> list[CardUse]:
        """The cards, as known so far."""
        return sorted(self._cards.values(), key=lambda card: card.index)

    def first_answer(self) -> list[CardUse]:
        """Return the cards, once they have answered."""
        self._answered.wait(_FIRST_ANSWER_SECONDS)
        return self.cards

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                for gpu in self._source.read().gpus or ():
                    self._note(gpu)
            except NoData:
                self._end.set()
            except SourceError:  # it may come back
                for card in self.cards:
                    card.now_bytes = None
            self._answered.set()
            self._end.wait(_GPU_SECONDS)

    def _note(self, gpu: GpuSample) -> None:
        used, total = gpu.used_bytes, gpu.total_bytes
        if used is not None and total and used <= total:
            card = self._cards.setdefault(gpu.index, CardUse(gpu.index, gpu_key(gpu), total, used))
            card.note(used)
            card.free_bytes = gpu.free_bytes
