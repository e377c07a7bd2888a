"""The program that fills a GPU's memory, checks it, and gives it back. Needs torch, and nothing of ours.

The first line of standard input is the job (see ``WorkerJob``); any further line, or the end of the input, tells it
to give everything back. Standard output carries one JSON object a line, see ``README.md`` beside this file.

It keeps to four rules. Every kernel works on one chunk and at most ``GROUP_BYTES`` are queued, because
Windows resets the driver after 2 s. Memory is asked for once: repeating a refused allocation has brought
Windows down (microsoft/WSL#40732). After each group it looks whether somebody else wants the GPU. And a pass
over memory writes all chunks before it checks the first, so that no check is answered from the cache.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import functools
import itertools
import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# As torch reads them while it is imported. Expandable segments fail on WSL (pytorch/pytorch#192330).
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

MIB = 1 << 20
#: what is done between two looks around: at most 8 x 20 ms on memory that lies behind PCIe
GROUP_BYTES = 2048 * MIB
#: words of 8 bytes in one row of a chunk; patterns that vary do so by row and by place in the row
ROW_WORDS = 1 << 17
#: an allocation of at least 10 MiB that is a multiple of 2 MiB is one cudaMalloc without rounding
#: (c10/core/AllocatorConfig.h: kLargeBuffer, kMinLargeAlloc, kRoundLarge)
GRAIN, SMALLEST = 2 * MIB, 10 * MIB
#: how many bad chunks are looked into, and how often one chunk; how many words are told of each, and seen
MOST_ERRORS, MOST_LOOKS, MOST_PLACES = 32, 4, 4096
#: how much of a bad chunk is looked at in one go: what that takes besides fits into the scratch
PART_WORDS = MIB
PATTERNS = ("solid", "checkerboard", "walking", "address", "random", "move", "modulo", "retention")
#: how often each pattern goes over all memory, to tell how far we are (modulo: for each offset)
TRAVERSALS = dict.fromkeys(PATTERNS, 4) | {"walking": 32, "address": 3, "retention": 2}
#: Ways to read a chunk once and know the least and the greatest of its words: as which type and in how many
#: rows, all equally exact. Which is fastest depends on the card and on torch.
FORMS = ((torch.int64, 1), (torch.int64, 1024), (torch.int32, 1), (torch.int32, 1024))
#: memtest86's distance between the words of a modulo pattern: it shares no factor with rows or cache lines
MODULO = 20
#: A soak lasts; a program that comes meanwhile shall find room at once.
SOAK_RATIO = 0.6
SOAK_ROUNDS, SOAK_PAUSE_SECONDS = 16, 1.0
LOOK_SECONDS = 0.05
#: how long everything must run slowly before we take it that somebody else uses the GPU
SLOW_SECONDS = 0.25


@dataclass(frozen=True)
class WorkerJob:
    """What to do: sizes in bytes."""

    device: str = "cuda:0"
    reserve: int = 128 * MIB  # stays free
    foreign: int = 256 * MIB  # by how much others may grow before we leave
    chunk: int = 256 * MIB
    scratch: int = 64 * MIB
    ladder: Sequence[int] = ()  # sizes of single tensors
    passes: Sequence[str] = PATTERNS
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
#: (chunk, places in it, values there) -> what was there before a check turned it into a constant
Restore = Callable[[int, Tensor, Tensor], Tensor]


def signed(word: int, bits: int = 64) -> int:
    """Return a word as torch writes it."""
    word &= (1 << bits) - 1
    return word - (1 << bits) if word >> (bits - 1) else word


class Worker:
    """One run. Tests replace ``allocate``, ``free_bytes`` and ``written`` to plant faults."""

    def __init__(self, job: WorkerJob, send: Callable[..., None], stop: threading.Event) -> None:
        self.job, self.send, self.stop = job, send, stop
        self.cuda = job.device.startswith("cuda")
        self.device = torch.device(job.device)
        self.chunks: list[Tensor] = []
        self.verified = self.traversed = 0
        self.reports: collections.Counter[int] = collections.Counter()
        self.phase = ""
        self._looked = self._slow_since = 0.0
        self._reference: dict[str, list[float]] = {}
        self.form = FORMS[0]
        self.group = max(1, GROUP_BYTES // job.chunk)

    # The machine.

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

    # Looking around.

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

    # Phases.

    def run(self) -> None:
        """Do the whole job. Raises Leave: somebody else wants the GPU."""
        self.begin()
        phases = (self.ladder, self.fragmentation, self.fill, self.bandwidth, self.patterns, self.beyond)
        for work in (*phases, self.soak, self.release):
            self.phase, start = work.__name__, time.perf_counter()
            work()
            self.send("phase", phase=self.phase, seconds=time.perf_counter() - start)

    def begin(self) -> None:
        """Create the context, wake the clocks, learn what is there."""
        self.phase = "begin"
        if self.stop.wait(LOOK_SECONDS):  # told while torch was being loaded
            raise Leave("told")
        facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
        if self.cuda:
            properties = torch.cuda.get_device_properties(self.device)
            facts |= {
                "name": properties.name,
                "total": properties.total_memory,
                "l2": getattr(properties, "L2_cache_size", None),
                "bus_bits": getattr(properties, "memory_bus_width", None),
                "memory_kilohertz": getattr(properties, "memory_clock_rate", None),
            }
            torch.cuda.set_device(self.device)
        # The clock of the memory rises only under load; and every kind of kernel is loaded once, now.
        warm = self.chunks = [self.allocate(min(self.job.scratch, 64 * MIB))]
        end = time.monotonic() + (0.3 if self.cuda else 0.0)
        self.free_at_start, self.own_at_start = self.free_bytes(), self.own_bytes()
        while True:
            rows, columns = warm[0][:2, None], warm[0][None, 2:4]
            torch.mul(rows, columns, out=warm[0][4:8].view(2, 2)).addcmul_(rows, columns, value=-1)
            for word in (0, -1):
                inverted(filled(warm[0], word))
                torch.aminmax(warm[0])
            self.settle()
            self.look()
            if time.monotonic() >= end:
                break
        del warm, rows, columns
        self.let_go()
        facts["form"] = self.choose_form()
        self.free_at_start, self.own_at_start = self.free_bytes(), self.own_bytes()
        self.send("begin", free=self.free_at_start, pid=os.getpid(), **facts)

    def choose_form(self) -> str:
        """Take the fastest way to read on this card; return what it is called."""
        if self.cuda:
            x, seconds = self.allocate(min(self.job.chunk, self.room())), {}
            x.fill_(-1)
            for self.form in FORMS:
                low, high = self.bounds(1)[:, 0]
                seconds[self.form] = min(self.timings([functools.partial(self.extremes, x, low, high)] * 4))
            self.form = min(seconds, key=seconds.__getitem__)
            del x, low, high
            self.let_go()
        dtype, rows = self.form
        return f"{dtype}, rows: {rows}".removeprefix("torch.")

    def room(self) -> int:
        """Return how many bytes may still be taken, a multiple of the driver's grain."""
        return max(0, self.free_bytes() - self.job.reserve) // GRAIN * GRAIN

    def ladder(self) -> None:
        """Take one tensor of each size, write it, let it go."""
        for size in self.job.ladder:
            row: dict[str, Any] = {"target": size}
            if size > self.room():
                self.send("rung", **row, outcome="too large")
                continue
            before, start = self.free_bytes(), time.perf_counter()
            try:
                self.chunks = [self.allocate(size)]
            except torch.OutOfMemoryError as error:
                self.send("rung", **row, outcome="refused", why=self.refusal(error))
                continue
            self.settle()
            row |= {"allocate_seconds": time.perf_counter() - start, "actual": self.chunks[0].nbytes}
            row["free_less"] = before - self.free_bytes()
            times: list[float] = []
            slices = self.chunks[0].split(self.job.chunk // 8)
            for first in range(0, len(slices), self.group):
                parts = slices[first : first + self.group]
                times += self.timings([functools.partial(filled, part, -1) for part in parts])
                self.look()
            row |= {"write_seconds": sum(times), "slowest_slice_seconds": max(times)}
            del slices, parts
            self.let_go()
            self.send("rung", **row, outcome="ok")

    def fragmentation(self) -> None:
        """Free every second piece and ask for twice its size: from the cache, then from the driver."""
        piece = min(64 * MIB, self.job.chunk)
        count = min(32, self.room() // piece)
        if count < 8:
            return
        self.chunks = [self.allocate(piece) for _ in range(count)]
        self.look()
        del self.chunks[::2]
        found: dict[str, Any] = {}
        for name in ("from_cache", "after_empty_cache"):
            if name == "after_empty_cache" and self.cuda:
                torch.cuda.empty_cache()
            start = time.perf_counter()
            double = self.allocate(2 * piece)
            self.settle()
            found[f"{name}_seconds"] = time.perf_counter() - start
            del double
        if self.cuda:
            stats = torch.cuda.memory_stats(self.device)
            found |= {"retries": stats["num_alloc_retries"], "refusals": stats["num_ooms"]}
            found["split"] = stats["inactive_split_bytes.all.current"]
        self.let_go()
        self.send("fragmentation", **found)

    def fill(self) -> None:
        """Take chunks up to the limit, then one of what remains."""
        # Kept in the allocator's cache for what checks need besides; so nothing is taken later.
        scratch = self.allocate(self.job.scratch)
        refused = ""
        while (room := self.room()) >= SMALLEST or (not self.cuda and room >= GRAIN):
            before = self.free_bytes()
            try:
                # A piece too small for itself would be cut out of a bigger one: the last is larger instead.
                size = self.job.chunk if room >= self.job.chunk + SMALLEST else room
                self.chunks.append(self.allocate(min(size, room)))
            except torch.OutOfMemoryError as error:
                refused = self.refusal(error)
                break
            less, index = before - self.free_bytes(), len(self.chunks) - 1
            self.send("chunk", index=index, bytes=self.chunks[-1].nbytes, free_less=less)
            self.look()
        del scratch
        taken, count, free = sum(x.nbytes for x in self.chunks), len(self.chunks), self.free_bytes()
        sweeps = sum(TRAVERSALS[n] * (self.job.offsets if n == "modulo" else 1) for n in self.job.passes)
        planned = taken * (6 * self.job.repeats + sweeps)
        self.send("filled", bytes=taken, chunks=count, refused=refused, free=free, planned=planned)

    def bandwidth(self) -> None:
        """Time each chunk, twice over all: only the second sweep sees what moved when memory was full."""
        if not self.chunks:
            return
        low, high = self.bounds(1)[:, 0]
        works: dict[str, Callable[[Tensor], Any]] = {
            "write": lambda x: filled(x, 0x5A5A5A5A),
            "change": inverted,
            "read": lambda x: self.extremes(x, low, high),
        }

        def measure(x: Tensor, index: int, kind: str, rows: list[dict[str, float]]) -> None:
            times = self.timings([functools.partial(works[kind], x)] * self.job.repeats)
            self.traversed += x.nbytes * (self.job.repeats - 1)
            rows[index][kind] = min(*times, rows[index].get(kind, times[0]))

        for sweep in (1, 2):
            rows: list[dict[str, float]] = [{} for _ in self.chunks]
            for kind in works:
                work = functools.partial(measure, kind=kind, rows=rows)
                self.sweep("", work)
                # What is slow because it was moved out is slow again; what somebody else slowed down is not.
                usual = statistics.median(row[kind] for row in rows)
                if slow := [index for index, row in enumerate(rows) if row[kind] > 2 * usual]:
                    self.sweep("", work, slow)
            for index, row in enumerate(rows):
                self.send("speed", sweep=sweep, index=index, bytes=self.chunks[index].nbytes, **row)
            for kind in works:
                self._reference[kind] = [
                    # What a group costs besides its kernels: launches, waiting, looking around.
                    1e-3 + sum(row[kind] for row in rows[first : first + self.group])
                    for first in range(0, len(rows), self.group)
                ]

    def patterns(self) -> None:
        """Write patterns, check them, and say what was checked."""
        generator = random.Random(self.job.seed)
        for name in self.job.passes:
            before, start = self.verified, time.perf_counter()
            pattern = Patterns(self, name, generator)
            found = getattr(pattern, name)()
            facts = {"checks": pattern.checks, "check_seconds": pattern.check_seconds}
            seconds = time.perf_counter() - start
            self.send("pattern", name=name, verified=self.verified - before, bad_words=found, seconds=seconds, **facts)

    def beyond(self) -> None:
        """Try up to two chunks past the limit, timing each at once, and stop at the first that is slow."""
        best = min((row / self.group for row in self._reference.get("read", ())), default=0.0)
        for _ in range(min(self.job.beyond, 2)):
            try:
                extra = self.allocate(self.job.chunk)
            except torch.OutOfMemoryError as error:
                self.send("beyond", outcome="refused", why=self.refusal(error))
                return
            [seconds] = self.timings([functools.partial(filled, extra, -1)])
            self.send("beyond", outcome="ok", bytes=extra.nbytes, write_seconds=seconds)
            self.chunks.append(extra)
            if seconds > 4 * best:
                return

    def soak(self) -> None:
        """Go on for a while, with pauses: faults that come with heat and when clocks change.

        Only on some of the chunks, other ones each time.
        """
        if not self.job.soak_seconds:
            return
        generator = random.Random(self.job.seed + 1)
        generator.shuffle(self.chunks)
        del self.chunks[max(1, int(SOAK_RATIO * len(self.chunks))) :]
        if self.cuda:
            torch.cuda.empty_cache()
        # What a group usually took was measured on chunks in another order.
        self._reference.clear()
        before, start, found, checking = self.verified, time.perf_counter(), 0, 0.0
        rounds: list[float] = []
        while not rounds or time.perf_counter() - start < self.job.soak_seconds:
            began = time.perf_counter()
            pattern = Patterns(self, "soak", generator)
            found += pattern.random()
            checking += pattern.check_seconds
            rounds.append(time.perf_counter() - began)
            if len(rounds) % SOAK_ROUNDS == 0:
                self.rest(SOAK_PAUSE_SECONDS)
        facts = {"checks": len(rounds), "check_seconds": checking, "seconds": time.perf_counter() - start}
        facts |= {"fastest_seconds": min(rounds), "slowest_seconds": max(rounds)}
        self.send("pattern", name="soak", verified=self.verified - before, bad_words=found, **facts)

    def rest(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            self.look()

    def release(self) -> None:
        """Give everything back and see whether it has come back."""
        self.let_go()
        start, own = time.perf_counter(), self.own_bytes() - self.own_at_start
        while (left := self.free_at_start - self.free_bytes()) > 32 * MIB and time.perf_counter() - start < 2.0:
            time.sleep(LOOK_SECONDS)
        self.send("released", still_taken=own, free_less=left, seconds=time.perf_counter() - start)


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


class Patterns:
    """The patterns, each a method that returns how many words were wrong."""

    def __init__(self, worker: Worker, name: str, generator: random.Random) -> None:
        """Prepare the factors of patterns in which every word differs.

        The word at (row, column) is ``rows[row] * columns[column]`` modulo 2^64, all factors random: unique
        as an address must be, written and checked in one pass each, and, because ``rows`` are odd and hence
        invertible, a word found in the wrong place tells where it belongs.
        """
        self.worker, self.name = worker, name
        self.bad_chunks: set[int] = set()
        self.checks, self.check_seconds = 0, 0.0
        self.generator = generator
        seeded = torch.Generator().manual_seed(generator.getrandbits(60))
        counts = [chunk.numel() // ROW_WORDS for chunk in worker.chunks]

        rows, self.columns = (
            torch.randint(-(1 << 62), 1 << 62, (count,), generator=seeded).to(worker.device)
            for count in (sum(counts), ROW_WORDS)
        )
        self.rows = list((rows * 2 + 1).split(counts))

    def solid(self) -> int:
        """All zeros, all ones: bits that cannot change, dead chips."""
        return self._constants(0)

    def checkerboard(self) -> int:
        """Neighbouring bits differ, and all toggle at once: coupling, crosstalk on the bus."""
        return self._constants(0x5555555555555555)

    def walking(self) -> int:
        """One bit of eight set, then one clear: single data lines, which bus inversion does not hide."""
        return self._constants(*(0x0101010101010101 << bit for bit in range(8)))

    def retention(self) -> int:
        """Leave memory alone for a while: cells that leak, refresh that fails."""
        word = 0x3333333333333333
        self._sweep("write", lambda x, _: filled(x, word))
        self.worker.rest(self.worker.job.retention_seconds)
        return self._check(word)

    def address(self) -> int:
        """Give each word a value of its own: ranges that are mirrored, swapped, or share cells."""
        self._sweep("broadcast", self._write)
        bad = self._verify()
        if bad:  # The check has changed memory while it checked, and twice where two chunks share it.
            self._sweep("", self._write)
        for index in sorted(self.bad_chunks):  # whose words do they hold?
            x = self.worker.chunks[index]
            place = torch.linspace(0, x.numel() - 1, 64, dtype=torch.float64, device=x.device).long()
            product = self.rows[index][place // ROW_WORDS] * self.columns[place % ROW_WORDS]
            homes = [self._home(word) for word in x[place][x[place] != product].tolist()[:4]]
            if any(homes):
                self.worker.send("located", chunk=index, belongs=[home for home in homes if home])
        return bad

    def random(self) -> int:
        """Random words and their inverse, other ones in each run: what depends on the data."""
        self._sweep("broadcast", self._write)
        self._sweep("change", lambda x, _: inverted(x))
        return self._verify(inverted=True)

    def modulo(self) -> int:
        """Write every twentieth word, then all others: no cache and no write combining hides what that does.

        As test 8 of memtest86 and cuda_memtest do, but here the others are checked as well.
        """
        return sum(
            self._modulo(offset, signed(self.generator.getrandbits(64)))
            for offset in self.generator.sample(range(MODULO), min(MODULO, self.worker.job.offsets))
        )

    def _modulo(self, offset: int, word: int) -> int:
        row = torch.full((MODULO,), ~word, device=self.worker.device)
        row[offset] = word

        def twentieth(x: Tensor, _: int) -> None:
            whole, rest = self._in_twenties(x)
            whole[:, offset].fill_(word)
            rest.fill_(0)  # the last few words of a chunk, which make no row

        def others(x: Tensor, _: int) -> None:
            whole = self._in_twenties(x)[0]
            whole[:, :offset].fill_(~word)
            whole[:, offset + 1 :].fill_(~word)

        def restore(index: int, place: Tensor, values: Tensor) -> Tensor:
            whole = self.worker.chunks[index].numel() // MODULO * MODULO
            return values ^ row[place % MODULO].masked_fill(place >= whole, 0)

        self.worker.sweep("", twentieth)
        self._sweep("", others)
        return self._check(0, (), lambda x, _: self._in_twenties(x)[0].bitwise_xor_(row), restore, kind="")

    def _in_twenties(self, x: Tensor) -> tuple[Tensor, Tensor]:
        whole = x.numel() // MODULO * MODULO
        return x[:whole].view(-1, MODULO), x[whole:]

    def move(self) -> int:
        """Copy every second chunk over its neighbour: reading and writing in quick turns."""
        chunks, bad = self.worker.chunks, 0
        pairs = [i for i in range(0, len(chunks) - 1, 2) if chunks[i].numel() == chunks[i + 1].numel()]
        for sources, step in (pairs, 1), ([pair + 1 for pair in pairs], -1):
            if sources:  # none would stand for all
                self._sweep("", self._write, sources)
                self._sweep("", lambda x, i, step=step: chunks[i + step].copy_(x), sources)  # type: ignore[misc]
                bad += self._verify([source + step for source in sources], origin=-step)
        return bad

    def _sweep(self, kind: str, work: Work, chunks: Sequence[int] = ()) -> None:
        self.worker.sweep(kind, work, chunks)
        self.worker.written(self.name)

    def _constants(self, *words: int) -> int:
        bad = 0
        for word in map(signed, words):
            self._sweep("write", lambda x, _, word=word: filled(x, word))  # type: ignore[misc]
            bad += self._check(word)
            self._sweep("change", lambda x, _: inverted(x))
            bad += self._check(signed(~word))
        return bad

    def _write(self, x: Tensor, index: int) -> None:
        torch.mul(self.rows[index][:, None], self.columns[None, :], out=x.view(-1, ROW_WORDS))

    def _verify(self, chunks: Sequence[int] = (), *, inverted: bool = False, origin: int = 0) -> int:
        """Turn what should be there into a constant, and check that.

        ``origin`` is the distance to the chunk from which the words were copied.
        """
        sign = 1 if inverted else -1

        def subtract(x: Tensor, index: int) -> None:
            rows = self.rows[index + origin][:, None]
            x.view(-1, ROW_WORDS).addcmul_(rows, self.columns[None, :], value=sign)

        def restore(index: int, place: Tensor, values: Tensor) -> Tensor:
            product = self.rows[index + origin][place // ROW_WORDS] * self.columns[place % ROW_WORDS]
            return values - sign * product

        return self._check(-1 if inverted else 0, chunks, subtract, restore)

    def _check(
        self,
        word: int,
        chunks: Sequence[int] = (),
        undo: Work | None = None,
        restore: Restore = lambda _index, _place, values: values,
        kind: str = "change",
    ) -> int:
        """Prove that every word is ``word``: the least and the greatest are. One read, and no scratch.

        ``word`` repeats after 32 bits, as it may be read so. ``undo`` turns what is in memory into this constant,
        ``restore`` returns from values what was there before.
        """
        worker = self.worker
        order = chunks or range(len(worker.chunks))
        bounds = worker.bounds(len(worker.chunks))
        start = time.perf_counter()
        if undo is not None:  # not by ``_sweep``: nothing is written that has to last until a check
            worker.sweep(kind, undo, chunks)
        worker.sweep("read", lambda x, i: worker.extremes(x, bounds[0, i], bounds[1, i]), order)
        low, high = bounds[0].amin(1).tolist(), bounds[1].amax(1).tolist()
        self.check_seconds += time.perf_counter() - start
        self.checks += 1
        worker.verified += sum(worker.chunks[i].nbytes for i in order)
        right = signed(word, bounds.dtype.itemsize * 8)
        wrong = [i for i in order if not low[i] == high[i] == right]
        return sum(self._diagnose(i, word, restore) for i in wrong)

    def _diagnose(self, index: int, word: int, restore: Restore) -> int:
        """Say what is wrong with a chunk: how much, where, which bits, and whether it stays so."""
        worker, x = self.worker, self.worker.chunks[index]
        self.bad_chunks.add(index)
        places: list[Tensor] = []
        count = 0
        for number, part in enumerate(x.split(PART_WORDS)):
            wrong = (part != word).nonzero().flatten()
            if count < MOST_PLACES:
                places.append(wrong[:MOST_PLACES] + number * PART_WORDS)
            count += wrong.numel()
            worker.look()
        place = torch.cat(places)[:MOST_PLACES]
        told = worker.reports[index] >= MOST_LOOKS or worker.reports.total() >= MOST_ERRORS
        if not count or told:  # read wrong once and right now, or told often enough
            x.fill_(word)
            nothing: dict[str, Any] = {"samples": [], "bits": {}, "flips": {}}
            worker.send("bad", pattern=self.name, chunk=index, words=count, examined=not count, **nothing)
            return max(count, 1)
        worker.reports[index] += 1
        seen, again = restore(index, place, x[place]), restore(index, place, self._read_again(x, place))
        expected = restore(index, place, torch.full_like(place, word))
        mask = seen ^ expected
        bits = (mask[:, None] >> torch.arange(64, device=worker.device)) & 1
        stuck = torch.zeros_like(place)
        for value in (expected, ~expected):
            x[place] = value
            worker.written("rewrite")
            stuck |= self._read_again(x, place) ^ value
        x[place] = word
        names = ("expected", "got", "again", "stuck")
        rows = zip(*(found[:MOST_ERRORS].tolist() for found in (expected, seen, again, stuck)), strict=True)
        samples = [
            {"word": at} | {name: f"{word & ((1 << 64) - 1):016x}" for name, word in zip(names, row, strict=True)}
            for at, row in zip(place[:MOST_ERRORS].tolist(), rows, strict=True)
        ]
        for sample in samples[:4] if self.name == "address" else ():
            sample["belongs"] = self._home(int(sample["got"], 16))
        ones = bits.sum(1).tolist()
        flipped = {n: bit for n, bit in enumerate(bits.sum(0).tolist()) if bit}
        flips = {n: ones.count(n) for n in sorted(set(ones))}
        worker.send("bad", pattern=self.name, chunk=index, words=count, samples=samples, bits=flipped, flips=flips)
        return count

    def _read_again(self, x: Tensor, place: Tensor) -> Tensor:
        # Larger than the cache: what is read next comes from memory.
        self.worker.extremes(x, *self.worker.bounds(1)[:, 0])
        return x[place]

    def _home(self, word: int) -> list[int] | None:
        """Return (chunk, word in it) where a value of the address pattern belongs, if it is one."""
        rows = torch.cat(self.rows)
        inverse = rows.clone()
        for _ in range(5):  # Newton's step doubles the good bits: 3, 6, ... 96
            inverse *= 2 - rows * inverse
        ordered, order = self.columns.sort()
        wanted = inverse * signed(word)
        near = torch.searchsorted(ordered, wanted).clamp(max=ROW_WORDS - 1)
        starts = [0, *itertools.accumulate(map(len, self.rows))]
        for row in (ordered[near] == wanted).nonzero().flatten().tolist():
            chunk = bisect.bisect_right(starts, row) - 1
            return [chunk, (row - starts[chunk]) * ROW_WORDS + int(order[near[row]])]
        return None


def obedient(make_worker: Callable[[WorkerJob, Callable[..., None], threading.Event], Worker]) -> int:
    # Whatever torch or the driver print must not end up between our lines.
    speech = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("900")

    def send(event: str, **facts: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone: so is the input, and we end soon
            speech.write(json.dumps({"event": event, **facts}) + "\n")

    job, stop = WorkerJob(**json.loads(sys.stdin.readline())), threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    worker = make_worker(job, send, stop)
    outcome, why, facts = "done", "", {}
    try:
        worker.run()
    except Leave as leave:
        outcome, why, facts = "left", str(leave), leave.facts
    except torch.OutOfMemoryError as error:
        outcome, why = "refused", first_line(error)
    except RuntimeError as error:  # of the driver: this context is lost, and the process must end
        outcome, why = "broken", first_line(error)
    with contextlib.suppress(RuntimeError):
        worker.let_go()
    send("end", outcome=outcome, why=why, facts=facts, phase=worker.phase, verified=worker.verified)
    return 0


if __name__ == "__main__":
    raise SystemExit(obedient(Worker))
