"""What is noted of a run: its peaks, how close it came, what was paused."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from wslgpud.advise.guard.memory import Room
from wslgpud.advise.guard.plan import Process, is_compiler
from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
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
class Account:
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

    def note(self, seconds: float, room: Room, processes: list[Process], held_bytes: int | None) -> None:
        """Take over one look; ``held_bytes`` is None where it is not known what they hold together."""
        self.seconds = seconds
        if processes and held_bytes is not None:
            self.held_bytes = held_bytes
            self.peak_bytes = max(self.peak_bytes or 0, held_bytes)
        if self.least_available_bytes is None or room.available_bytes < self.least_available_bytes:
            self.least_available_bytes, self.least_at_seconds = room.available_bytes, seconds
        self.total_bytes = room.total_bytes
        for process in processes:
            if process.bytes > self.biggest[1]:
                self.biggest = (process.name, process.bytes)
            if is_compiler(process.name):
                self.compilers[process.name] = max(self.compilers.get(process.name, 0), process.bytes)

    def close_brief(self, largest_bytes: int | None) -> None:
        """End a run that was over after a few looks, or before the first.

        Args:
            largest_bytes: what the kernel has noted of its largest process, mapped files included; None:
                nothing that tells.
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
        """Know no past."""
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
        """Nothing is asked before ``start``."""
        self._source = GpuSource(host, config)
        self._end, self._answered = threading.Event(), threading.Event()
        self._free_bytes: dict[int, int] = {}
        self._total_bytes: dict[int, int] = {}
        self._uuids: dict[int, str] = {}
        self._thread = threading.Thread(target=self._run, name="vram", daemon=True)
        self.start_bytes: dict[int, int] = {}
        self.now_bytes: dict[int, int] = {}
        self.peak_bytes: dict[int, int] = {}

    @property
    def pid(self) -> int | None:
        """The child that asks, which is none of the watched."""
        return self._source.probe_pid

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def free_bytes(self, index: int) -> int | None:
        """Return what the card calls free, once it has answered; waits for its first answer."""
        self._answered.wait(_FIRST_ANSWER_SECONDS)
        return self._free_bytes.get(index)

    def taken_bytes(self, used: Mapping[int, int]) -> dict[str, int]:
        """Return what is beyond the use at the start, in bytes by UUID, of a use by index."""
        return {
            self._uuids[index]: max(0, value - self.start_bytes.get(index, value))
            for index, value in used.items()
        }

    def free_by_uuid(self) -> dict[str, int]:
        """Return what each card calls free, once it has answered; waits for its first answer."""
        self._answered.wait(_FIRST_ANSWER_SECONDS)
        return {self._uuids[index]: free for index, free in self._free_bytes.items()}

    def total_by_uuid(self) -> dict[str, int]:
        """Return how much memory each card has, once it has answered; waits for its first answer."""
        self._answered.wait(_FIRST_ANSWER_SECONDS)
        return {self._uuids[index]: total for index, total in self._total_bytes.items()}

    def stop(self) -> None:
        """End the thread, and the child with it."""
        self._end.set()
        self._thread.join(2 * _GPU_SECONDS)
        self._source.close()

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                for gpu in self._source.read().gpus or ():
                    self._uuids[gpu.index] = gpu.uuid or f"gpu{gpu.index}"
                    if gpu.free_bytes is not None:
                        self._free_bytes[gpu.index] = gpu.free_bytes
                    if gpu.total_bytes:
                        self._total_bytes[gpu.index] = gpu.total_bytes
                    if gpu.used_bytes is not None and gpu.used_bytes <= (gpu.total_bytes or gpu.used_bytes):
                        self.start_bytes.setdefault(gpu.index, gpu.used_bytes)
                        self.now_bytes[gpu.index] = gpu.used_bytes
                        self.peak_bytes[gpu.index] = max(self.peak_bytes.get(gpu.index, 0), gpu.used_bytes)
            except NoData:
                self._answered.set()
                return
            except SourceError:  # it may come back
                self.now_bytes = {}
            self._answered.set()
            self._end.wait(_GPU_SECONDS)
