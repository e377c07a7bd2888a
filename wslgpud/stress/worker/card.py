"""The memory of a card: allocated, timed, read, freed, and left to others who want it.

Four rules. Every kernel works on one chunk and at most ``GROUP_BYTES`` are queued, because Windows resets the driver
after 2 s. A refused allocation is not retried: that has crashed Windows (microsoft/WSL#40732). After each group it
checks whether others want the GPU. And a pass over memory writes all chunks before it checks the first, so that no
check is answered from the cache.
"""

from __future__ import annotations

import collections
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MIB = 1 << 20
#: work between two checks for others: at most 8 x 20 ms on memory behind PCIe
GROUP_BYTES = 2048 * MIB
#: bad chunks examined, and words reported of each
MAX_ERRORS = 32
#: A chunk is read in so many rows: on an H200 that is 2 % faster than all at once, or than words of 32 bits.
ROWS = 1024
LOOK_SECONDS = 0.05
#: how long everything must be slow before another program is assumed to use the GPU
SLOW_SECONDS = 0.25


@dataclass(frozen=True)
class WorkerJob:
    """The job of a worker; sizes in bytes."""

    device: str = "cuda:0"
    reserve: int = 64 * MIB  # stays free
    foreign: int = 256 * MIB  # growth of other programs before we leave
    chunk: int = 256 * MIB
    scratch: int = 16 * MIB  # additional memory for checks and diagnosis
    ladder: Sequence[int] = ()  # sizes of single tensors
    passes: Sequence[str] = ()
    repeats: int = 3
    offsets: int = 2  # number of the modulo pattern's twenty offsets
    retention_seconds: float = 2.0
    soak_seconds: float = 0.0
    slow_ratio: float = 0.5  # below this share of our own speed another program is at work (0: never)
    beyond: int = 0  # chunks to try beyond the limit, to see memory spill
    seed: int = 0
    cpu_bytes: int = 0


class Leave(Exception):  # not an error
    """Free everything now; the reason is a keyword that the parent knows, with figures."""

    def __init__(self, why: str, **facts: int) -> None:
        super().__init__(why)
        self.facts = facts


#: work on a chunk, given its number
Work = Callable[[Tensor, int], Any]


def signed(word: int, bits: int = 64) -> int:
    """Return a word as a signed integer, as in torch."""
    word &= (1 << bits) - 1
    return word - (1 << bits) if word >> (bits - 1) else word


class CardMemory:
    """The chunks that a run has allocated.

    Tests replace ``allocate``, ``free_bytes`` and ``written`` to plant faults.
    """

    def __init__(self, job: WorkerJob, send: Callable[..., None], stop: threading.Event) -> None:
        self.job, self.send, self.stop = job, send, stop
        self.cuda = job.device.startswith("cuda")
        self.device = torch.device(job.device)
        self.chunks: list[Tensor] = []
        self.verified = self.traversed = 0
        self.free_at_start = self.own_at_start = 0
        self.reports: collections.Counter[int] = collections.Counter()
        self.phase = ""
        self._looked = self._slow_since = 0.0
        self._reference: dict[str, list[float]] = {}
        self.group = max(1, GROUP_BYTES // job.chunk)

    def allocate(self, size: int) -> Tensor:
        """Return ``size`` uninitialised bytes as 64-bit words."""
        return torch.empty(size // 8, dtype=torch.int64, device=self.device)

    def free_bytes(self) -> int:
        """Return the free bytes by the driver; on a CPU, a budget instead."""
        if self.cuda:
            return int(torch.cuda.mem_get_info(self.device)[0])
        return self.job.cpu_bytes - self.own_bytes()

    def own_bytes(self) -> int:
        return int(torch.cuda.memory_reserved(self.device)) if self.cuda else sum(x.nbytes for x in self.chunks)

    def written(self, name: str) -> None:
        """Do nothing: a hook for tests to change memory between writing and checking."""

    def settle(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def let_go(self) -> None:
        self.chunks.clear()
        if self.cuda:
            torch.cuda.empty_cache()

    def timings(self, works: Sequence[Callable[[], Any]]) -> list[float]:
        """Return the device time in seconds of each, run back to back.

        Waiting in between would let the device idle, and include launch latency.
        """
        if not self.cuda:
            marks = [time.perf_counter()]
            for work in works:
                work()
                marks.append(time.perf_counter())
            return [later - earlier for earlier, later in itertools.pairwise(marks)]
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(works) + 1)]
        events[0].record()
        for work, event in zip(works, events[1:], strict=True):
            work()
            event.record()
        events[-1].synchronize()
        return [max(a.elapsed_time(b) / 1000, 1e-9) for a, b in itertools.pairwise(events)]

    def bounds(self, count: int) -> Tensor:
        """Return a buffer for minimum and maximum of ``count`` chunks: (2, count, rows)."""
        return torch.zeros((2, count, ROWS), dtype=torch.int64, device=self.device)

    def extremes(self, x: Tensor, low: Tensor, high: Tensor) -> None:
        """Read a chunk once: the minimum and maximum of each row."""
        torch.aminmax(x.view(ROWS, -1), dim=1, out=(low, high))

    def look(self, kind: str = "", group: int = 0, seconds: float = 0.0) -> None:
        """Check whether to continue. Raises Leave: on request, or others need memory or the GPU."""
        if self.stop.is_set():
            raise Leave("told")
        now = time.monotonic()
        usual = self._reference.get(kind, ())
        if group < len(usual) and self.job.slow_ratio and seconds > usual[group] / self.job.slow_ratio:
            self._slow_since = self._slow_since or now - seconds
            if now - self._slow_since > SLOW_SECONDS:
                raise Leave("slow")
        elif kind:
            self._slow_since = 0.0
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        self.send("beat", phase=self.phase, traversed=self.traversed, verified=self.verified)
        free = self.free_bytes()
        foreign = self.free_at_start - free - (self.own_bytes() - self.own_at_start)
        if foreign > self.job.foreign:
            raise Leave("taken", taken_bytes=foreign)
        if free < self.job.reserve // 2:
            raise Leave("scarce", free_bytes=free)

    def sweep(self, kind: str, work: Work, chunks: Sequence[int] = ()) -> None:
        """Do ``work`` on each chunk in order; ``kind`` selects the speed to compare with."""
        order = chunks or range(len(self.chunks))
        self.settle()
        for number, first in enumerate(range(0, len(order), self.group)):
            start = time.perf_counter()
            for index in order[first : first + self.group]:
                work(self.chunks[index], index)
                self.traversed += self.chunks[index].nbytes
            self.settle()
            self.look(kind, number, time.perf_counter() - start)

    def rest(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            self.look()


# Both write 32-bit words, which on an H200 is a few percent faster than 64-bit ones.


def filled(x: Tensor, word: int) -> Tensor:
    """Fill a chunk with a word that repeats after 32 bits."""
    x.view(torch.int32).fill_(signed(word, 32))
    return x


def inverted(x: Tensor) -> Tensor:
    return x.view(torch.int32).bitwise_not_()


def first_line(error: BaseException) -> str:
    """Return the gist of torch's long messages."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
