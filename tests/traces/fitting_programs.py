"""Programs that climb fast and fit, and programs that do not: for ``record_cgroup.py``, with a limit of 1 GiB.

    python -m tests.traces.record_cgroup --group-only OUT.jsonl.gz 1024 python tests/traces/fitting_programs.py NAME

What most of them have in common is a rise with an end in it: a heap touched at the start, a table that fills ever more
slowly, a pool, a linker, a job that its supervisor starts again. Those named ``*_oom`` end in the kernel's kill.
"""

from __future__ import annotations

import math
import mmap
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MIB = 1 << 20
LIMIT_BYTES = 1 << 30
rng = random.Random(sys.argv[1]) if len(sys.argv) > 1 else random.Random()
_programs: dict[str, Callable[[], None]] = {}
_kept: list[object] = []


def program(run: Callable[[], None]) -> Callable[[], None]:
    _programs[run.__name__] = run
    return run


def take(size: float) -> bytearray:
    """Return memory of which every page is in use."""
    taken = bytearray(int(size))
    taken[:: mmap.PAGESIZE] = b"\1" * len(taken[:: mmap.PAGESIZE])
    return taken


def keep(size: float) -> None:
    _kept.append(take(size))


def ticks(seconds: float, every: float = 0.1) -> Iterator[float]:
    """Yield the share of the time that has passed, from 0 to 1."""
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        yield now / seconds
        time.sleep(every)


def work(seconds: float) -> None:
    """Go on as a program does that has all it needs: small things come and go."""
    for _ in ticks(seconds, 0.2):
        take(rng.uniform(1, 8) * MIB)


def ramp(to_share: float, seconds: float, curve: Callable[[float], float] = lambda x: x) -> None:
    """Take a share of the limit, along a curve from 0 to 1."""
    taken = 0.0
    for x in ticks(seconds):
        wanted = curve(x) * to_share * LIMIT_BYTES
        if wanted > taken:
            keep(wanted - taken)
            taken = wanted


def saturating(x: float) -> float:
    return (1 - math.exp(-4 * x)) / (1 - math.exp(-4))


@program
def heap_touched() -> None:
    """A heap of fixed size, touched at the start (AlwaysPreTouch)."""
    ramp(0.72, 9)
    work(35)


@program
def heap_touched_slowly() -> None:
    ramp(0.76, 32)
    work(60)


@program
def sparse_table() -> None:
    """A table touched at random: new pages become ever rarer."""
    table = mmap.mmap(-1, int(0.7 * LIMIT_BYTES))
    pages = len(table) // mmap.PAGESIZE
    for _ in ticks(60, 0.05):
        for _ in range(pages // 220):
            table[rng.randrange(pages) * mmap.PAGESIZE] = 1


@program
def prefetch() -> None:
    """A queue of batches that a fast reader fills, and a slow training empties."""
    ramp(0.66, 14)
    work(45)


@program
def averaged_weights() -> None:
    """Weights, then their optimizer, then a running average: three steps of equal size, and no fourth."""
    for _ in range(3):
        ramp(0.22, 4)
        work(12)
    work(25)


@program
def pool() -> None:
    """Connections one by one, up to the pool's size."""
    for _ in range(80):
        keep(0.68 * LIMIT_BYTES / 80)
        time.sleep(0.25)
    work(40)


@program
def linker() -> None:
    """Objects read at a constant speed to a known height, three times: what ``ld`` does for three programs."""
    for _ in range(3):
        ramp(0.7, 11)
        work(3)
        _kept.clear()
        time.sleep(6)


@program
def restarted_job() -> None:
    """A job that ends itself at a height, and is started again by its supervisor."""
    for _ in range(4):
        job = multiprocessing.get_context("fork").Process(target=ramp, args=(0.71, 16))
        job.start()
        job.join()
        time.sleep(4)


@program
def fragmented() -> None:
    """An allocator whose arenas fill more and more slowly."""
    ramp(0.77, 70, lambda x: math.log1p(30 * x) / math.log1p(30))
    work(20)


@program
def imported_database() -> None:
    """An import of known size, and an index at the end."""
    ramp(0.6, 30)
    ramp(0.12, 5)
    work(30)


@program
def joined() -> None:
    """A hash join: its table, its sorted output, and both are gone."""
    for _ in range(2):
        ramp(0.58, 12)
        ramp(0.13, 4)
        work(3)
        _kept.clear()
        time.sleep(8)


@program
def thumbnails() -> None:
    """A cache with a limit, filled by requests at random."""
    size = 0
    for _ in ticks(75, 0.05):
        one = rng.uniform(0.3, 3.0) * MIB
        if size < 0.65 * LIMIT_BYTES:
            keep(one)
            size += int(one)
        else:
            _kept.pop(rng.randrange(len(_kept)))
            keep(one)


@program
def workers_warm_up() -> None:
    """Six workers that each load their own copy."""
    context = multiprocessing.get_context("fork")
    workers = []
    for _ in range(6):
        workers.append(context.Process(target=lambda: (ramp(0.115, 3), work(40))))
        workers[-1].start()
        time.sleep(2.5)
    for worker in workers:
        worker.join()


@program
def sorted_runs() -> None:
    """An external sort: runs of the same size, each given back."""
    for _ in range(7):
        ramp(rng.uniform(0.6, 0.7), 5)
        _kept.clear()
        time.sleep(2.5)


@program
def s_curve() -> None:
    """A training that warms up: slow, fast, slow."""
    ramp(0.74, 40, lambda x: x * x * (3 - 2 * x))
    work(25)


def _threads(stack_share: float, count: int, every: float) -> None:
    for _ in range(count):
        threading.Thread(target=lambda: (keep(stack_share * LIMIT_BYTES), time.sleep(600)), daemon=True).start()
        time.sleep(every)


@program
def retry_storm_oom() -> None:
    """Failed requests are retried, and come back with more."""
    ramp(1.6, 45, lambda x: (math.exp(5 * x) - 1) / (math.exp(5) - 1))


@program
def queue_oom() -> None:
    """A producer that is faster than its consumer."""
    ramp(0.2, 5)
    work(10)
    ramp(1.2, 50)


@program
def tree_oom() -> None:
    """A search that keeps every node, ever more of them."""
    ramp(1.3, 25, lambda x: x**2)


@program
def forks_oom() -> None:
    """A process for each job, of which none ends."""
    context = multiprocessing.get_context("fork")
    while True:
        context.Process(target=lambda: (keep(rng.uniform(40, 90) * MIB), time.sleep(600)), daemon=True).start()
        time.sleep(rng.uniform(1.5, 4.0))


@program
def doubled_oom() -> None:
    """A buffer that doubles when it is full, and is copied."""
    size = 16 * MIB
    while True:
        old, size = take(size), size * 2
        work(5)
        ramp(size / LIMIT_BYTES, 3)
        del old


@program
def appended_oom() -> None:
    """Tables appended to a list, at irregular times."""
    while True:
        ramp(rng.uniform(0.03, 0.09), 1.0)
        work(rng.uniform(1, 7))


@program
def collected_oom() -> None:
    """A leak under a collector that runs now and then."""
    garbage: list[bytearray] = []
    while True:
        for _ in range(20):
            garbage.append(take(8 * MIB))
            time.sleep(0.1)
        keep(34 * MIB)
        garbage.clear()
        time.sleep(1)


@program
def shared_files_oom() -> None:
    """Tensors left in shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for number in range(10_000):
            Path(folder, str(number)).write_bytes(os.urandom(1 << 16) * 192)
            time.sleep(0.5)


@program
def threads_oom() -> None:
    """A thread for each request, each with a buffer."""
    _threads(0.018, 400, 0.6)


@program
def log_kept_oom() -> None:
    """A log kept for a report, by a program that gets busier."""
    ramp(1.4, 100, lambda x: x**1.5)


@program
def cache_without_end_oom() -> None:
    """A cache of keys as people ask for them: new ones become rarer, but never stop."""
    ramp(1.25, 90, lambda x: math.log1p(9 * x) / math.log1p(9))


@program
def second_job_oom() -> None:
    """A job that fits, and another one beside it that would fit alone."""
    ramp(0.55, 12)
    work(15)
    job = multiprocessing.get_context("fork").Process(target=ramp, args=(0.7, 20))
    job.start()
    job.join()


@program
def slow_leak_oom() -> None:
    ramp(0.45, 4)
    ramp(0.65, 150)


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(_programs))
    else:
        _programs[sys.argv[1]]()
