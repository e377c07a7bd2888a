"""The memory of a card: taken, timed, read, given back, and left to others who want it.

It keeps to four rules. Every kernel works on one chunk and at most ``GROUP_BYTES`` are queued, because
Windows resets the driver after 2 s. Memory is asked for once: repeating a refused allocation has brought
Windows down (microsoft/WSL#40732). After each group it looks whether somebody else wants the GPU. And a pass
over memory writes all chunks before it checks the first, so that no check is answered from the cache.
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
#: what is done between two looks around: at most 8 x 20 ms on memory that lies behind PCIe
GROUP_BYTES = 2048 * MIB
#: how many bad chunks are looked into, and how many words are told of each
MOST_ERRORS = 32
#: Ways to read a chunk once and know the least and the greatest of its words: as which type and in how many
#: rows, all equally exact. Which is fastest depends on the card and on torch.
FORMS = ((torch.int64, 1), (torch.int64, 1024), (torch.int32, 1), (torch.int32, 1024))
LOOK_SECONDS = 0.05
#: how long everything must run slowly before we take it that somebody else uses the GPU
SLOW_SECONDS = 0.25


@dataclass(frozen=True)
class WorkerJob:
    """What to do: sizes in bytes."""

    device: str = "cuda:0"
    reserve: int = 64 * MIB  # stays free
    foreign: int = 256 * MIB  # by how much others may grow before we leave
    chunk: int = 256 * MIB
    scratch: int = 16 * MIB  # what checks, and looking into what is wrong, need besides
    ladder: Sequence[int] = ()  # sizes of single tensors
    passes: Sequence[str] = ()
    repeats: int = 3
    offsets: int = 2  # how many of the modulo pattern's twenty
    retention_seconds: float = 2.0
    soak_seconds: float = 0.0
    slow_ratio: float = 0.5  # slower than this share of our own speed: somebody else is at work (0: never)
    beyond: int = 0  # chunks that may be tried past the limit, to see it spill
    seed: int = 0
    cpu_bytes: int = 0


class Leave(Exception):  # not a mistake
    """Give everything back now; why is a word that the parent knows, with figures."""

    def __init__(self, why: str, **facts: int) -> None:
        super().__init__(why)
        self.facts = facts


#: what is done with a chunk, and its number
Work = Callable[[Tensor, int], Any]


def signed(word: int, bits: int = 64) -> int:
    """Return a word as torch writes it."""
    word &= (1 << bits) - 1
    return word - (1 << bits) if word >> (bits - 1) else word


class CardMemory:
    """The chunks that a run has taken. Tests replace ``allocate``, ``free_bytes`` and ``written`` to plant faults."""

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
        self.form = FORMS[0]
        self.group = max(1, GROUP_BYTES // job.chunk)

    def allocate(self, size: int) -> Tensor:
        """Return ``size`` bytes as words of 64 bits, not initialised."""
        return torch.empty(size // 8, dtype=torch.int64, device=self.device)

    def free_bytes(self) -> int:
        """Return what the driver calls free; on a CPU, a budget instead."""
        if self.cuda:
            return int(torch.cuda.mem_get_info(self.device)[0])
        return self.job.cpu_bytes - self.own_bytes()

    def own_bytes(self) -> int:
        return int(torch.cuda.memory_reserved(self.device)) if self.cuda else sum(x.nbytes for x in self.chunks)

    def written(self, name: str) -> None:
        """Do nothing: where a test changes memory behind our back, between writing and checking."""

    def settle(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def let_go(self) -> None:
        self.chunks.clear()
        if self.cuda:
            torch.cuda.empty_cache()

    def timings(self, works: Sequence[Callable[[], Any]]) -> list[float]:
        """Return the seconds that the device needs for each, one right after the other.

        Waiting in between would let the device idle, and the time to launch a kernel count as its own.
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
        """Return room for the least and the greatest of ``count`` chunks: (2, count, what one leaves)."""
        dtype, rows = self.form
        return torch.zeros((2, count, rows), dtype=dtype, device=self.device)

    def extremes(self, x: Tensor, low: Tensor, high: Tensor) -> None:
        """Read a chunk once: its least and greatest words, in the form in use."""
        dtype, rows = self.form
        if rows == 1:  # by another kernel than rows are
            torch.aminmax(x.view(dtype), out=(low[0], high[0]))
        else:
            torch.aminmax(x.view(dtype).view(rows, -1), dim=1, out=(low, high))

    def refusal(self, error: BaseException) -> str:
        """Say what the allocator looked like when it was refused, and return the gist of the error."""
        if self.cuda:
            stats = torch.cuda.memory_stats(self.device)
            sizes = [f"{kind}_bytes.all.current" for kind in ("allocated", "reserved", "inactive_split")]
            segments = collections.Counter(part["total_size"] for part in torch.cuda.memory_snapshot())
            self.send(
                "allocator",
                phase=self.phase,
                free=self.free_bytes(),
                stats={name: stats.get(name, 0) for name in (*sizes, "num_alloc_retries", "num_ooms")},
                segments=sorted(segments.items(), reverse=True)[:MOST_ERRORS],
            )
        return first_line(error)

    def look(self, kind: str = "", group: int = 0, seconds: float = 0.0) -> None:
        """Go on. Raises Leave: we were told to, others need memory, or others need the GPU."""
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
        """Do ``work`` on each chunk in order; ``kind`` says with which speed to compare it."""
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


# Both write words of 32 bits, which on an H200 is some percent faster than words of 64.


def filled(x: Tensor, word: int) -> Tensor:
    """Write a word, which repeats after 32 bits, all over a chunk."""
    x.view(torch.int32).fill_(signed(word, 32))
    return x


def inverted(x: Tensor) -> Tensor:
    return x.view(torch.int32).bitwise_not_()


def first_line(error: BaseException) -> str:
    """Return the gist of torch's long messages."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
