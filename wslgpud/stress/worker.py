"""The program that fills a GPU's memory, checks it, and gives it back. Needs torch, and nothing of ours.

The first line of standard input is the job (see ``Job``); any further line, or the end of the input, tells it
to give everything back. Standard output carries one JSON object a line, see ``README.md`` beside this file.

It keeps to four rules. Every kernel works on one chunk and at most ``GROUP`` are queued, because Windows
resets the driver after 2 s. Memory is asked for once: repeating a refused allocation has brought Windows down
(microsoft/WSL#40732). After each group it looks whether somebody else wants the GPU. And a pass over memory
writes all chunks before it checks the first, so that no check is answered from the cache.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

# As torch reads them while it is imported. Expandable segments fail on WSL (pytorch/pytorch#192330).
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

MIB = 1 << 20
#: chunks between two looks around: at most 8 x 20 ms on memory that lies behind PCIe
GROUP = 8
#: words of 8 bytes in one row of a chunk; patterns that vary do so by row and by place in the row
ROW_WORDS = 1 << 17
#: an allocation of at least 10 MiB that is a multiple of 2 MiB is one cudaMalloc without rounding
#: (c10/core/AllocatorConfig.h: kLargeBuffer, kMinLargeAlloc, kRoundLarge)
GRAIN, SMALLEST = 2 * MIB, 10 * MIB
MOST_ERRORS = 32
#: how often each pattern goes over all memory, to tell how far we are
TRAVERSALS = {
    "solid": 4,
    "checkerboard": 4,
    "walking": 32,
    "address": 3,
    "random": 4,
    "move": 4,
    "retention": 2,
}
LOOK_SECONDS = 0.05
#: how long everything must run slowly before we take it that somebody else uses the GPU
SLOW_SECONDS = 0.25


@dataclass(frozen=True)
class Job:
    """What to do: sizes in bytes.

    ``reserve`` stays free. ``foreign`` is by how much others may grow before we leave. ``ladder`` are sizes
    of single tensors. ``passes`` names the patterns. Slower than ``slow_ratio`` of its own speed means that
    somebody else is at work (0: never). ``beyond`` chunks may be tried past the limit, to see it spill.
    """

    device: str = "cuda:0"
    reserve: int = 128 * MIB
    foreign: int = 256 * MIB
    chunk: int = 256 * MIB
    scratch: int = 64 * MIB
    ladder: Sequence[int] = ()
    passes: Sequence[str] = ("solid", "checkerboard", "walking", "address", "random", "move", "retention")
    repeats: int = 3
    retention_seconds: float = 2.0
    slow_ratio: float = 0.5
    beyond: int = 0
    seed: int = 0
    cpu_bytes: int = 0


class Leave(Exception):  # noqa: N818 - not a mistake
    """Give everything back now; the message says why."""


def signed(word: int) -> int:
    """Return 64 bits as torch writes them."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def hexadecimal(word: int) -> str:
    """Write 64 bits as people read them."""
    return f"{word & ((1 << 64) - 1):016x}"


class Worker:
    """One run. Tests replace ``allocate``, ``free_bytes`` and ``written`` to plant faults."""

    def __init__(self, job: Job, send: Callable[..., None], stop: threading.Event) -> None:
        """Touch nothing yet."""
        self.job, self.send, self.stop = job, send, stop
        self.cuda = job.device.startswith("cuda")
        self.device = torch.device(job.device)
        self.chunks: list[Tensor] = []
        self.verified = 0
        self.traversed = 0
        self.reports = 0
        self.phase = ""
        self._looked = self._slow_since = 0.0
        self._reference: dict[str, list[float]] = {}

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
        """Return what this process has taken for tensors."""
        if self.cuda:
            return int(torch.cuda.memory_reserved(self.device))
        return sum(chunk.nbytes for chunk in self.chunks)

    def written(self, name: str) -> None:
        """Do nothing: where a test changes memory behind our back, between writing and checking."""

    def settle(self) -> None:
        """Wait until the GPU has done all it was told."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def let_go(self) -> None:
        """Give the memory of all tensors back to the driver."""
        self.chunks.clear()
        if self.cuda:
            torch.cuda.empty_cache()

    @contextlib.contextmanager
    def timed(self, into: list[float]) -> Iterator[None]:
        """Append the seconds that the device needs for what is done inside."""
        if not self.cuda:
            start = time.perf_counter()
            yield
            into.append(time.perf_counter() - start)
            return
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        yield
        end.record()
        end.synchronize()
        into.append(max(begin.elapsed_time(end) / 1000, 1e-9))

    # Looking around.

    def look(self, kind: str = "", group: int = 0, seconds: float = 0.0) -> None:
        """Go on, or leave because we were told to, others need memory, or others need the GPU.

        Raises:
            Leave: with the reason.
        """
        if self.stop.is_set():
            raise Leave("told to stop")
        now = time.monotonic()
        usual = self._reference.get(kind, ())
        if group < len(usual) and self.job.slow_ratio and seconds > usual[group] / self.job.slow_ratio:
            self._slow_since = self._slow_since or now - seconds
            if now - self._slow_since > SLOW_SECONDS:
                raise Leave("slow: another program uses the GPU")
        elif kind:
            self._slow_since = 0.0
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        self.send("beat", phase=self.phase, traversed=self.traversed, verified=self.verified)
        free = self.free_bytes()
        foreign = self.free_at_start - free - (self.own_bytes() - self.own_at_start)
        if foreign > self.job.foreign:
            raise Leave(f"another program took {foreign // MIB} MiB")
        if free < self.job.reserve // 2:
            raise Leave(f"only {free // MIB} MiB are left free")

    def sweep(self, kind: str, work: Callable[[Tensor, int], Any], chunks: Sequence[int] = ()) -> None:
        """Do ``work`` on each chunk in order; ``kind`` says with which speed to compare it."""
        order = chunks or range(len(self.chunks))
        self.settle()
        for number, first in enumerate(range(0, len(order), GROUP)):
            start = time.perf_counter()
            for index in order[first : first + GROUP]:
                work(self.chunks[index], index)
                self.traversed += self.chunks[index].nbytes
            self.settle()
            self.look(kind, number, time.perf_counter() - start)

    # Phases.

    def run(self) -> None:
        """Do the whole job.

        Raises:
            Leave: somebody else wants the GPU.
        """
        self.begin()
        phases = (self.ladder, self.fragmentation, self.fill, self.bandwidth, self.patterns, self.beyond)
        for work in (*phases, self.release):
            self.phase, start = work.__name__, time.perf_counter()
            work()
            self.send("phase", phase=self.phase, seconds=time.perf_counter() - start)

    def begin(self) -> None:
        """Create the context, wake the clocks, learn what is there."""
        self.phase = "begin"
        facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
        if self.cuda:
            properties = torch.cuda.get_device_properties(self.device)
            facts |= {
                "name": properties.name,
                "total": properties.total_memory,
                "l2": getattr(properties, "L2_cache_size", None),
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
                warm[0].fill_(word).bitwise_not_()
                torch.aminmax(warm[0])
            self.settle()
            self.look()
            if time.monotonic() >= end:
                break
        del warm, rows, columns
        self.let_go()
        self.free_at_start, self.own_at_start = self.free_bytes(), self.own_bytes()
        self.send("begin", free=self.free_at_start, pid=os.getpid(), **facts)

    def room(self) -> int:
        """Return how many bytes may still be taken, a multiple of the driver's grain."""
        return max(0, self.free_bytes() - self.job.reserve) // GRAIN * GRAIN

    def ladder(self) -> None:
        """Take one tensor of each size, write it, let it go."""
        for size in self.job.ladder:
            row: dict[str, Any] = {"target": size}
            if size > self.room():
                self.send("rung", **row, outcome="larger than what may be taken")
                continue
            before, start = self.free_bytes(), time.perf_counter()
            try:
                self.chunks = [self.allocate(size)]
            except torch.OutOfMemoryError as error:
                self.send("rung", **row, outcome=f"refused: {first_line(error)}")
                continue
            self.settle()
            row |= {"allocate_seconds": time.perf_counter() - start, "actual": self.chunks[0].nbytes}
            row["free_less"] = before - self.free_bytes()
            times: list[float] = []
            slices = self.chunks[0].split(self.job.chunk // 8)
            for part in slices:
                with self.timed(times):
                    part.fill_(-1)
                self.look()
            row["write_seconds"] = sum(times)
            del slices, part
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
                refused = first_line(error)
                break
            self.send("chunk", index=len(self.chunks) - 1, bytes=self.chunks[-1].nbytes,
                      free_less=before - self.free_bytes())  # fmt: skip
            self.look()
        del scratch
        taken = sum(chunk.nbytes for chunk in self.chunks)
        planned = taken * (6 * self.job.repeats + sum(TRAVERSALS[name] for name in self.job.passes))
        self.send("filled", bytes=taken, chunks=len(self.chunks), refused=refused, free=self.free_bytes(),
                  planned=planned)  # fmt: skip

    def bandwidth(self) -> None:
        """Time each chunk, twice over all: only the second sweep sees what moved when memory was full."""
        low, high = torch.empty(2, dtype=torch.int64, device=self.device)
        works: dict[str, Callable[[Tensor], Any]] = {
            "write": lambda x: x.fill_(0x5A5A5A5A5A5A5A5A),
            "change": lambda x: x.bitwise_not_(),
            "read": lambda x: torch.aminmax(x, out=(low, high)),
        }
        for sweep in (1, 2):
            rows: list[dict[str, float]] = [{} for _ in self.chunks]
            for kind, work in works.items():

                def measure(x: Tensor, index: int, kind: str = kind, work: Any = work) -> None:
                    times: list[float] = []
                    for _ in range(self.job.repeats):
                        with self.timed(times):
                            work(x)
                    self.traversed += x.nbytes * (self.job.repeats - 1)
                    rows[index][kind] = min(times)  # noqa: B023 - called in this turn of the loop only

                self.sweep("", measure)
            for index, row in enumerate(rows):
                self.send("speed", sweep=sweep, index=index, bytes=self.chunks[index].nbytes, **row)
            for kind in works:
                self._reference[kind] = [
                    # What a group costs besides its kernels: launches, waiting, looking around.
                    1e-3 + sum(row[kind] for row in rows[first : first + GROUP])
                    for first in range(0, len(rows), GROUP)
                ]

    def patterns(self) -> None:
        """Write patterns, check them, and say what was checked."""
        generator = random.Random(self.job.seed)  # noqa: S311 - patterns, not secrets
        for name in self.job.passes:
            before, start = self.verified, time.perf_counter()
            pattern = Patterns(self, name, generator)
            found = getattr(pattern, name)()
            self.send("pattern", name=name, verified=self.verified - before, bad_words=found,
                      check_seconds=pattern.check_seconds, seconds=time.perf_counter() - start)  # fmt: skip

    def beyond(self) -> None:
        """Try up to two chunks past the limit, timing each at once, and stop at the first that is slow."""
        best = min((row / GROUP for row in self._reference.get("read", ())), default=0.0)
        for _ in range(min(self.job.beyond, 2)):
            try:
                extra = self.allocate(self.job.chunk)
            except torch.OutOfMemoryError as error:
                self.send("beyond", outcome=f"refused: {first_line(error)}")
                return
            times: list[float] = []
            with self.timed(times):
                extra.fill_(-1)
            self.send("beyond", outcome="ok", bytes=extra.nbytes, write_seconds=times[0])
            self.chunks.append(extra)
            if times[0] > 4 * best:
                return

    def release(self) -> None:
        """Give everything back and see whether it has come back."""
        self.let_go()
        start, own, left = time.perf_counter(), self.own_bytes() - self.own_at_start, 0
        while time.perf_counter() - start < 2.0:
            left = self.free_at_start - self.free_bytes()
            if left <= 32 * MIB:
                break
            time.sleep(LOOK_SECONDS)
        self.send("released", still_taken=own, free_less=left, seconds=time.perf_counter() - start)


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
        self.check_seconds = 0.0
        seeded = torch.Generator().manual_seed(generator.getrandbits(60))
        counts = [chunk.numel() // ROW_WORDS for chunk in worker.chunks]

        def factors(count: int) -> Tensor:
            return torch.randint(-(1 << 62), 1 << 62, (count,), generator=seeded).to(worker.device)

        self.rows = list((factors(sum(counts)) * 2 + 1).split(counts))
        self.columns = factors(ROW_WORDS)

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
        word, end = 0x3333333333333333, 0.0
        self._sweep("write", lambda x, _: x.fill_(word))
        end = time.monotonic() + self.worker.job.retention_seconds
        while time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            self.worker.look()
        return self._check(word)

    def address(self) -> int:
        """Give each word a value of its own: ranges that are mirrored, swapped, or share cells."""
        self._sweep("broadcast", self._write)
        bad = self._verify(range(len(self.worker.chunks)))
        if bad:
            self._locate()
        return bad

    def _locate(self) -> None:
        """Write the addresses once more and look at them directly, to see whose words a chunk holds.

        The check before has changed memory while it checked, and twice where two chunks share it.
        """
        self._sweep("", self._write)
        for index in sorted(self.bad_chunks):
            x = self.worker.chunks[index]
            place = torch.linspace(0, x.numel() - 1, 64, dtype=torch.float64, device=x.device).long()
            product = self.rows[index][place // ROW_WORDS] * self.columns[place % ROW_WORDS]
            homes = [self._home(word) for word in x[place][x[place] != product].tolist()[:4]]
            if any(homes):
                self.worker.send("located", chunk=index, belongs=[home for home in homes if home])

    def random(self) -> int:
        """Random words and their inverse, other ones in each run: what depends on the data."""
        self._sweep("broadcast", self._write)
        self._sweep("change", lambda x, _: x.bitwise_not_())
        return self._verify(range(len(self.worker.chunks)), inverted=True)

    def move(self) -> int:
        """Copy every second chunk over its neighbour: reading and writing in quick turns."""
        chunks, bad = self.worker.chunks, 0
        pairs = [i for i in range(0, len(chunks) - 1, 2) if chunks[i].numel() == chunks[i + 1].numel()]
        for here, there in ((0, 1), (1, 0)):
            sources = [pair + here for pair in pairs]
            self._sweep("", self._write, sources)
            step = there - here
            self._sweep("", lambda x, i, step=step: chunks[i + step].copy_(x), sources)  # type: ignore[misc]
            bad += self._verify([pair + there for pair in pairs], origin=here - there)
        return bad

    def _sweep(
        self, kind: str, work: Callable[[Tensor, int], Any], chunks: Sequence[int] | None = None
    ) -> None:
        if chunks is None or chunks:
            self.worker.sweep(kind, work, chunks or ())
            self.worker.written(self.name)

    def _constants(self, *words: int) -> int:
        bad = 0
        for word in map(signed, words):
            self._sweep("write", lambda x, _, word=word: x.fill_(word))  # type: ignore[misc]
            bad += self._check(word)
            self._sweep("change", lambda x, _: x.bitwise_not_())
            bad += self._check(signed(~word))
        return bad

    def _write(self, x: Tensor, index: int) -> None:
        torch.mul(self.rows[index][:, None], self.columns[None, :], out=x.view(-1, ROW_WORDS))

    def _verify(self, chunks: Sequence[int], *, inverted: bool = False, origin: int = 0) -> int:
        """Turn what should be there into a constant, and check that.

        ``origin`` is the distance to the chunk from which the words were copied.
        """
        sign = 1 if inverted else -1

        def subtract(x: Tensor, index: int) -> None:
            rows = self.rows[index + origin][:, None]
            x.view(-1, ROW_WORDS).addcmul_(rows, self.columns[None, :], value=sign)

        if not chunks:
            return 0
        start = time.perf_counter()
        # Not by ``_sweep``: nothing is written that has to last until a check.
        self.worker.sweep("change", subtract, chunks)
        self.check_seconds += time.perf_counter() - start
        return self._check(-1 if inverted else 0, chunks, origin=origin, sign=sign)

    def _check(self, word: int, chunks: Sequence[int] = (), *, origin: int = 0, sign: int = 0) -> int:
        """Prove that every word is ``word``: the least and the greatest are. One read, and no scratch."""
        worker = self.worker
        order = chunks or range(len(worker.chunks))
        bounds = torch.empty((2, len(worker.chunks)), dtype=torch.int64, device=worker.device)
        start = time.perf_counter()
        worker.sweep("read", lambda x, i: torch.aminmax(x, out=(bounds[0, i], bounds[1, i])), order)
        low, high = bounds.tolist()
        self.check_seconds += time.perf_counter() - start
        worker.verified += sum(worker.chunks[i].nbytes for i in order)
        return sum(self._diagnose(i, word, origin, sign) for i in order if low[i] != word or high[i] != word)

    def _diagnose(self, index: int, word: int, origin: int, sign: int) -> int:
        """Say what is wrong with a chunk: how much, where, which bits, and whether it stays so."""
        worker, x = self.worker, self.worker.chunks[index]
        self.bad_chunks.add(index)
        worker.reports += 1
        places: list[Tensor] = []
        count = 0
        for number, part in enumerate(x.split(MIB)):
            wrong = (part != word).nonzero().flatten()
            count += wrong.numel()
            if len(places) * 64 < 4096:
                places.append(wrong[:4096] + number * MIB)
            worker.look()
        place = torch.cat(places)[:4096]
        if not count or worker.reports > MOST_ERRORS:  # read wrong once and right now, or told often enough
            x.fill_(word)
            worker.send("bad", pattern=self.name, chunk=index, words=count, samples=[], bits={}, flips={})
            return max(count, 1)
        if sign:
            product = self.rows[index + origin][place // ROW_WORDS] * self.columns[place % ROW_WORDS]
        else:
            product = torch.zeros_like(place)
        seen = x[place] - sign * product
        expected = word - sign * product
        again = self._read_again(x, place) - sign * product
        mask = seen ^ expected
        bits = (mask[:, None] >> torch.arange(64, device=worker.device)) & 1
        stuck = torch.zeros_like(place)
        for value in (expected, ~expected):
            x[place] = value
            worker.written("rewrite")
            stuck |= self._read_again(x, place) ^ value
        x[place] = word
        columns = [c[:MOST_ERRORS].tolist() for c in (expected, seen, again, stuck)]
        samples = [
            {
                "word": at,
                **{
                    k: hexadecimal(w) for k, w in zip(("expected", "got", "again", "stuck"), row, strict=True)
                },
            }
            for at, *row in zip(place[:MOST_ERRORS].tolist(), *columns, strict=True)
        ]
        for sample in samples[:4] if self.name == "address" else ():
            sample["belongs"] = self._home(int(sample["got"], 16))
        ones = bits.sum(1).tolist()
        worker.send("bad", pattern=self.name, chunk=index, words=count, samples=samples,
                    bits={n: bit for n, bit in enumerate(bits.sum(0).tolist()) if bit},
                    flips={n: ones.count(n) for n in sorted(set(ones))})  # fmt: skip
        return count

    def _read_again(self, x: Tensor, place: Tensor) -> Tensor:
        torch.aminmax(x)  # a chunk is larger than the cache: what is read next comes from memory
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
        for row in (ordered[near] == wanted).nonzero().flatten().tolist():
            column = int(order[near[row]])
            starts = list(itertools.accumulate((len(mine) for mine in self.rows), initial=0))
            chunk = bisect.bisect_right(starts, row) - 1
            return [chunk, (row - starts[chunk]) * ROW_WORDS + column]
        return None


def obedient(make_worker: Callable[[Job, Callable[..., None], threading.Event], Worker]) -> int:
    """Do the job on standard input, speak on standard output; return the exit status."""
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

    given = json.loads(sys.stdin.readline())
    known = {field.name for field in fields(Job)}
    if unknown := set(given) - known:
        raise SystemExit(f"unknown in the job: {', '.join(sorted(unknown))}")
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    worker = make_worker(Job(**given), send, stop)
    outcome, why = "done", ""
    try:
        worker.run()
    except Leave as leave:
        outcome, why = "left", str(leave)
    except torch.OutOfMemoryError as error:
        outcome, why = "refused", first_line(error)
    except RuntimeError as error:  # of the driver: this context is lost, and the process must end
        outcome, why = "broken", first_line(error)
    with contextlib.suppress(RuntimeError):
        worker.let_go()
    send("end", outcome=outcome, why=why, phase=worker.phase, verified=worker.verified)
    return 0


if __name__ == "__main__":
    raise SystemExit(obedient(Worker))
