"""Figures of a run: its peaks, how close it came to running out, what was paused."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from wslgpud.advise.guard.memory import MemoryLeft
from wslgpud.advise.guard.plan import Process, is_compiler
from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import GpuSample
from wslgpud.sources.gpu import GpuSource

_GPU_SECONDS = 1.0
#: A card that sleeps takes seconds to wake up.
_FIRST_ANSWER_SECONDS = 15.0
#: the window over which a rate is taken, and what is short: time left at that rate, share of the memory
_RATE_SECONDS, _SHORT_SECONDS, _SHORT_RATIO = 10.0, 20.0, 0.03
_NEVER_SHORT_RATIO = 0.3
#: no more has the shell that starts the command: then nobody has seen the command itself
_SHELL_BYTES = 1 << 20


@dataclass(slots=True)
class RunStats:
    """One run in figures; ``code`` is the exit status as a shell has it, bytes are the watched processes'.

    ``held_bytes`` is what they hold together, as last known, each page counted once; ``peak_bytes`` its peak,
    None for a run that was over before it was seen. ``vram_taken_bytes`` is by UUID the most beyond what
    others held at the start. ``saved`` are the programs that were asked to save themselves, and after how
    many seconds.
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
    pauses: int = 0
    paused_seconds: float = 0.0
    oom_kills: int = 0
    saved: list[tuple[str, float]] = field(default_factory=list)

    def note(self, seconds: float, left: MemoryLeft, processes: list[Process], held_bytes: int | None) -> None:
        """Record one look; ``held_bytes`` is None where it is not known what they hold together."""
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
        """End a run that was over after a few looks, or before the first.

        ``largest_bytes`` is what the kernel has noted of its largest process, mapped files included, if that tells.
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
    """Tells when memory is about to run out: little is left, or it goes away fast."""

    def __init__(self) -> None:
        self._past: deque[tuple[float, int]] = deque()

    def is_near(self, seconds: float, headroom_bytes: int, total_bytes: int) -> bool:
        """Take one look and tell whether a program should save itself now."""
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
    """Asks NVML once a second, in a thread: a driver that hangs must not hold up the time limit."""

    def __init__(self, host: Host, config: Config) -> None:
        self._source = GpuSource(host, config)
        self._end, self._answered = threading.Event(), threading.Event()
        self._gpus: dict[int, GpuSample] = {}
        self._thread = threading.Thread(target=self._run, name="vram", daemon=True)
        self.start = self._thread.start
        self.start_bytes: dict[int, int] = {}
        self.now_bytes: dict[int, int] = {}
        self.peak_bytes: dict[int, int] = {}

    @property
    def pid(self) -> int | None:
        """The child that asks, which is none of the watched."""
        return self._source.probe_pid

    def free_bytes(self, index: int) -> int | None:
        """Return what the card calls free, once it has answered; waits for its first answer."""
        gpu = self._cards().get(index)
        return gpu.free_bytes if gpu else None

    def taken_bytes(self, used: Mapping[int, int]) -> dict[str, int]:
        """Return what is beyond the use at the start, in bytes by UUID, of a use by index."""
        taken = {index: value - self.start_bytes.get(index, value) for index, value in used.items()}
        return {_uuid(self._gpus[index]): max(0, value) for index, value in taken.items()}

    def free_by_uuid(self) -> dict[str, int]:
        """Return what each card calls free, once it has answered; waits for its first answer."""
        return {_uuid(gpu): gpu.free_bytes for gpu in self._cards().values() if gpu.free_bytes is not None}

    def total_by_uuid(self) -> dict[str, int]:
        """Return how much memory each card has, once it has answered; waits for its first answer."""
        return {_uuid(gpu): gpu.total_bytes for gpu in self._cards().values() if gpu.total_bytes}

    def stop(self) -> None:
        """End the thread, and the child with it."""
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


def _uuid(gpu: GpuSample) -> str:
    return gpu.uuid or f"gpu{gpu.index}"
