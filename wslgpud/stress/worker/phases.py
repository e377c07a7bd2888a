"""A run, from its job to its end: sizes, fill, speed, patterns, soak, release.

How it speaks with its parent: ``README.md`` beside this folder.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .card import LOOK_SECONDS, MIB, CardMemory, Leave, WorkerJob, filled, first_line, inverted
from .patterns import TRAVERSALS, Patterns

#: an allocation of at least 10 MiB that is a multiple of 2 MiB is one cudaMalloc without rounding
#: (c10/core/AllocatorConfig.h: kLargeBuffer, kMinLargeAlloc, kRoundLarge)
GRAIN, SMALLEST = 2 * MIB, 10 * MIB
#: The memory clock rises only under load.
WARM_SECONDS = 0.3
#: A soak takes long; a program that starts meanwhile must find room at once.
SOAK_RATIO = 0.6
SOAK_ROUNDS, SOAK_PAUSE_SECONDS = 16, 1.0


class Worker(CardMemory):
    """One run."""

    def run(self) -> None:
        """Do the whole job. Raises Leave: another program wants the GPU."""
        self.begin()
        phases = (self.ladder, self.fill, self.bandwidth, self.patterns, self.beyond, self.soak, self.release)
        for work in phases:
            self.phase, start = work.__name__, time.perf_counter()
            work()
            self.send("phase", phase=self.phase, seconds=time.perf_counter() - start)

    def begin(self) -> None:
        """Create the context, raise the clocks, determine the memory."""
        self.phase = "begin"
        if self.stop.wait(LOOK_SECONDS):  # asked to leave while torch was loading
            raise Leave("told")
        facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
        if self.cuda:
            properties = torch.cuda.get_device_properties(self.device)
            facts |= {
                "total": properties.total_memory,
                "bus_bits": getattr(properties, "memory_bus_width", None),
                "memory_kilohertz": getattr(properties, "memory_clock_rate", None),
            }
            torch.cuda.set_device(self.device)
        self.free_at_start, self.own_at_start = self.free_bytes(), self.own_bytes()
        if self.room() < SMALLEST:
            raise Leave("scarce", free_bytes=self.free_at_start)
        self.warm_up(self.allocate(min(self.job.chunk, self.room())))
        self.let_go()
        self.free_at_start, self.own_at_start = self.free_bytes(), self.own_bytes()
        self.send("begin", free=self.free_at_start, **facts)

    def warm_up(self, x: Tensor) -> None:
        """Raise the clocks and load every kind of kernel."""
        end = time.monotonic() + (WARM_SECONDS if self.cuda else 0.0)
        low, high = self.bounds(1)[:, 0]
        while True:
            rows, columns = x[:2, None], x[None, 2:4]
            torch.mul(rows, columns, out=x[4:8].view(2, 2)).addcmul_(rows, columns, value=-1)
            inverted(filled(x, 0))
            self.extremes(x, low, high)
            self.settle()
            self.look()
            if time.monotonic() >= end:
                return

    def room(self) -> int:
        """Return how many bytes may still be allocated, a multiple of the driver's granularity."""
        return max(0, self.free_bytes() - self.job.reserve) // GRAIN * GRAIN

    def ladder(self) -> None:
        """Allocate one tensor of each size, write it, free it."""
        for size in self.job.ladder:
            row: dict[str, Any] = {"target": size}
            if size > self.room():
                self.send("rung", **row, outcome="too large")
                continue
            before, start = self.free_bytes(), time.perf_counter()
            try:
                self.chunks = [self.allocate(size)]
            except torch.OutOfMemoryError as error:
                self.send("rung", **row, outcome="refused", why=first_line(error))
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
            row["write_seconds"] = sum(times)
            del slices, parts
            self.let_go()
            self.send("rung", **row, outcome="ok")

    def fill(self) -> None:
        """Allocate chunks up to the limit, then one of the remaining size.

        Raises OutOfMemoryError or Leave: there is no memory for one.
        """
        # Kept in the allocator's cache for the checks, so that nothing is allocated later.
        scratch = self.allocate(self.job.scratch)
        refused = ""
        while (room := self.room()) >= SMALLEST or (not self.cuda and room >= GRAIN):
            before = self.free_bytes()
            try:
                # A piece below the minimum would be split off a bigger one: the last is larger instead.
                size = self.job.chunk if room >= self.job.chunk + SMALLEST else room
                self.chunks.append(self.allocate(min(size, room)))
            except torch.OutOfMemoryError as error:
                if not self.chunks:  # nothing could be tested, and nothing wrong would be found
                    raise
                refused = first_line(error)
                break
            less, index = before - self.free_bytes(), len(self.chunks) - 1
            self.send("chunk", index=index, bytes=self.chunks[-1].nbytes, free_less=less)
            self.look()
        del scratch
        if not self.chunks:  # others took it since the beginning
            raise Leave("scarce", free_bytes=self.free_bytes())
        taken, count, free = sum(x.nbytes for x in self.chunks), len(self.chunks), self.free_bytes()
        sweeps = sum(TRAVERSALS[n] * (self.job.offsets if n == "modulo" else 1) for n in self.job.passes)
        planned = taken * (3 * (1 + self.job.repeats) + sweeps)
        self.send("filled", bytes=taken, chunks=count, refused=refused, free=free, planned=planned)

    def bandwidth(self) -> None:
        """Time each chunk in two sweeps: only the second sees chunks that were moved when memory was full."""
        low, high = self.bounds(1)[:, 0]
        works: dict[str, Callable[[Tensor], Any]] = {
            "write": lambda x: filled(x, 0x5A5A5A5A),
            "change": inverted,
            "read": lambda x: self.extremes(x, low, high),
        }

        def measure(x: Tensor, index: int, kind: str, rows: list[dict[str, float]], repeats: int) -> None:
            times = self.timings([functools.partial(works[kind], x)] * repeats)
            self.traversed += x.nbytes * (repeats - 1)
            rows[index][kind] = min([*times, rows[index].get(kind, times[0])])

        for sweep, repeats in (1, 1), (2, self.job.repeats):
            rows: list[dict[str, float]] = [{} for _ in self.chunks]
            for kind in works:
                work = functools.partial(measure, kind=kind, rows=rows, repeats=repeats)
                self.sweep("", work)
                # A chunk that was moved out is slow again; one slowed by another program is not.
                usual = statistics.median(row[kind] for row in rows)
                if slow := [index for index, row in enumerate(rows) if row[kind] > 2 * usual]:
                    self.sweep("", work, slow)
            for index, row in enumerate(rows):
                self.send("speed", sweep=sweep, index=index, bytes=self.chunks[index].nbytes, **row)
            for kind in works:
                self._reference[kind] = [
                    # Cost of a group besides its kernels: launches, waiting, checks.
                    1e-3 + sum(row[kind] for row in rows[first : first + self.group])
                    for first in range(0, len(rows), self.group)
                ]

    def patterns(self) -> None:
        """Write patterns, check them, and report coverage."""
        generator = random.Random(self.job.seed)
        for name in self.job.passes:
            before, start = self.verified, time.perf_counter()
            pattern = Patterns(self, name, generator)
            bad_words = getattr(pattern, name)()
            facts = {"checks": pattern.checks, "seconds": time.perf_counter() - start}
            self.send("pattern", name=name, verified=self.verified - before, bad_words=bad_words, **facts)

    def beyond(self) -> None:
        """Try up to two chunks beyond the limit, timing each at once, and stop at the first slow one."""
        best = min((row / self.group for row in self._reference.get("read", ())), default=0.0)
        for _ in range(min(self.job.beyond, 2)):
            try:
                extra = self.allocate(self.job.chunk)
            except torch.OutOfMemoryError as error:
                self.send("beyond", outcome="refused", why=first_line(error))
                return
            [seconds] = self.timings([functools.partial(filled, extra, -1)])
            self.send("beyond", outcome="ok", bytes=extra.nbytes, write_seconds=seconds)
            self.chunks.append(extra)
            if seconds > 4 * best:
                return

    def soak(self) -> None:
        """Continue for a while, with pauses: finds faults due to heat and clock changes.

        Only on some of the chunks, different ones each time.
        """
        if not self.job.soak_seconds:
            return
        generator = random.Random(self.job.seed + 1)
        generator.shuffle(self.chunks)
        del self.chunks[max(1, int(SOAK_RATIO * len(self.chunks))) :]
        if self.cuda:
            torch.cuda.empty_cache()
        # The usual time of a group was measured on chunks in another order.
        self._reference.clear()
        before, start, rounds, bad_words = self.verified, time.perf_counter(), 0, 0
        while not rounds or time.perf_counter() - start < self.job.soak_seconds:
            bad_words += Patterns(self, "soak", generator).random()
            rounds += 1
            if rounds % SOAK_ROUNDS == 0:
                self.rest(SOAK_PAUSE_SECONDS)
        facts = {"checks": rounds, "seconds": time.perf_counter() - start}
        self.send("pattern", name="soak", verified=self.verified - before, bad_words=bad_words, **facts)

    def release(self) -> None:
        """Free everything and check that it is free."""
        self.let_go()
        start, own = time.perf_counter(), self.own_bytes() - self.own_at_start
        while (left := self.free_at_start - self.free_bytes()) > 32 * MIB and time.perf_counter() - start < 2.0:
            time.sleep(LOOK_SECONDS)
        self.send("released", still_taken=own, free_less=left, seconds=time.perf_counter() - start)


def converse(make_worker: Callable[[WorkerJob, Callable[..., None], threading.Event], Worker]) -> None:
    """Do the job from standard input, until further input, or its end, means to leave."""
    # Output of torch or the driver must not mix with our lines.
    speech = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("900")

    def send(event: str, **facts: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone, and so is the input: we exit soon
            speech.write(json.dumps({"event": event, **facts}) + "\n")

    if not (line := sys.stdin.readline()):
        return  # the card was found to be in use while torch was loading
    job, stop = WorkerJob(**json.loads(line)), threading.Event()

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
    except RuntimeError as error:  # a driver error: this context is lost, and the process must end
        outcome, why = "broken", first_line(error)
    with contextlib.suppress(RuntimeError):
        worker.let_go()
    send("end", outcome=outcome, why=why, facts=facts, phase=worker.phase, verified=worker.verified)
