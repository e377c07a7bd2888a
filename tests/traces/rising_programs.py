"""Programs whose rise ends by itself, and programs like them that do not fit; for ``record_cgroup.py``, limit 1 GiB.

    python -m tests.traces.record_cgroup --group-only OUT.jsonl.gz 1024 python tests/traces/rising_programs.py NAME

Written on 2026-11-28, before the rules that are judged by them. None is a program of the other modules; those named
``*_oom`` end in the kernel's kill. :func:`half` says which are for choosing rules, and which are looked at once.
"""

from __future__ import annotations

import collections
import math
import mmap
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MIB = 1 << 20
LIMIT_BYTES = 1 << 30
CHUNK = 4 * MIB
rng = random.Random(sys.argv[1]) if len(sys.argv) > 1 else random.Random()
_programs: dict[str, Callable[[], None]] = {}
_fork = multiprocessing.get_context("fork")


def program(run: Callable[[], None]) -> Callable[[], None]:
    _programs[run.__name__] = run
    return run


def half(name: str) -> str:
    """Return the folder of a program's recording: every second, of those that end well and of those that do not."""
    alike = [other for other in _programs if other.endswith("_oom") == name.endswith("_oom")]
    return "rises" if alike.index(name) % 2 == 0 else "rises_unseen"


class Held:
    """Memory that grows and shrinks to a share of the limit, every page of it touched."""

    def __init__(self) -> None:
        self._parts: list[mmap.mmap] = []

    @property
    def share(self) -> float:
        return len(self._parts) * CHUNK / LIMIT_BYTES

    def to(self, share: float) -> None:
        wanted = round(share * LIMIT_BYTES / CHUNK)
        while len(self._parts) < wanted:
            part = mmap.mmap(-1, CHUNK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            part[:: mmap.PAGESIZE] = b"\1" * (CHUNK // mmap.PAGESIZE)
            self._parts.append(part)
        while len(self._parts) > wanted:
            self._parts.pop().close()

    def ramp(self, share: float, seconds: float, curve: Callable[[float], float] = lambda x: x) -> None:
        """Go from the share that is held to another one, along a curve from 0 to 1."""
        start = self.share
        for x in ticks(seconds):
            self.to(start + (share - start) * curve(x))
        self.to(share)


def ticks(seconds: float, every: float = 0.1) -> Iterator[float]:
    """Yield the share of the time that has passed, from 0 to 1."""
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        yield now / seconds
        time.sleep(every)


def rest(seconds: float) -> None:
    """Work with small things that come and go."""
    small = Held()
    for _ in ticks(seconds, 0.25):
        small.to(rng.uniform(0.0, 0.01))


def wait_for(children: list[multiprocessing.process.BaseProcess]) -> None:
    for child in children:
        child.join()


# Rises that end by themselves.


@program
def snapshot_saved() -> None:
    """A store that loads its data, and saves it twice: pages that are written meanwhile exist twice."""
    data = Held()
    data.ramp(0.52, 15)
    rest(10)
    for _ in range(2):
        copies = Held()
        copies.ramp(0.2, 9, math.sqrt)
        copies.to(0)
        rest(12)


@program
def heap_to_its_maximum() -> None:
    """A virtual machine that lets its heap grow to its maximum, with a collector's sawtooth."""
    old, young = Held(), Held()
    for x in ticks(75, 0.05):
        old.to(0.5 * min(1.0, 1.6 * x))
        young.to(young.share + 0.012 if young.share < 0.1 + 0.15 * x else 0.01)


@program
def tabs() -> None:
    """A browser's tabs; the oldest are put to sleep beyond a number."""
    open_tabs: collections.deque[Held] = collections.deque()
    for _ in ticks(80, 2.2):
        open_tabs.append(Held())
        open_tabs[-1].ramp(rng.uniform(0.03, 0.07), 0.6)
        if sum(tab.share for tab in open_tabs) > 0.66:
            open_tabs.popleft().to(0)


@program
def weights_converted() -> None:
    """Weights that are read through the page cache, and converted one layer after another."""
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
        for _ in range(60):
            file.write(os.urandom(1 << 16) * 128)
        file.flush()
        weights = Held()
        for layer in range(20):
            file.seek(layer * 24 * MIB)
            file.read(24 * MIB)
            weights.ramp(0.033 * (layer + 1), 0.8)
    rest(35)


@program
def suite() -> None:
    """Tests, each of which takes what it needs and gives it back."""
    need = Held()
    for _ in range(22):
        need.ramp(rng.triangular(0.15, 0.74, 0.3), rng.uniform(0.8, 3))
        need.to(0.06)
        time.sleep(rng.uniform(0.2, 1.5))


@program
def recycled_workers() -> None:
    """Workers that are replaced after so many requests; at first they all grow together."""
    workers = [Held() for _ in range(5)]
    ends = [rng.uniform(0.10, 0.16) for _ in workers]
    for _ in ticks(90, 0.2):
        for worker, end in zip(workers, ends, strict=True):
            worker.to(0.02 if worker.share >= end else worker.share + rng.choice((0.0, 0.004)))


@program
def table_rehashed() -> None:
    """A table that is copied into one of twice the size, and never gets a further one."""
    table = Held()
    for size in (0.05, 0.1, 0.2, 0.4):
        table.ramp(size, 6)
        if size < 0.4:
            larger = Held()
            larger.ramp(2 * size, 1.2)
            table.to(size)
            table, _ = larger, table.to(0)
    rest(30)


@program
def decoded_images() -> None:
    """A cache of images with a limit, that fills quickly and then turns over."""
    images = Held()
    for _ in ticks(70, 0.2):
        images.to(min(0.67, images.share + rng.uniform(0.0, 0.025)) if images.share < 0.66 else 0.62)


@program
def model_saved() -> None:
    """A training that copies its weights every quarter of a minute to save them."""
    weights = Held()
    weights.ramp(0.42, 5)
    for _ in range(5):
        rest(10)
        copy = Held()
        copy.ramp(0.3, 2.0)
        rest(1)
        copy.to(0)


@program
def unpacked_into_shm() -> None:
    """An archive of known size, unpacked into shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix=f"rise-{sys.argv[1]}-") as folder:
        for number in range(92):
            Path(folder, str(number)).write_bytes(os.urandom(1 << 16) * 128)
            time.sleep(0.25)
        time.sleep(30)


@program
def link_steps() -> None:
    """A linker's partitions, each larger than the one before."""
    need = Held()
    for share in (0.38, 0.5, 0.61, 0.72):
        need.ramp(share, 7)
        rest(1)
        need.to(0.03)
        rest(5)


@program
def notebook() -> None:
    """Tables loaded, copied, merged; the last one stays."""
    first, second, third = Held(), Held(), Held()
    first.ramp(0.2, 4)
    rest(9)
    second.ramp(0.2, 3)
    rest(7)
    second.to(0)
    rest(6)
    third.ramp(0.5, 7)
    rest(35)


@program
def collector_doubles() -> None:
    """A collector that lets the heap reach twice what lives; what lives stops growing."""
    heap, live = Held(), 0.06
    for _ in range(9):
        heap.ramp(2 * live, 5)
        heap.to(live)
        live = min(0.36, 1.7 * live)


@program
def scaled_out() -> None:
    """Workers added under load, one every eight seconds, and taken away again."""

    def serve(seconds: float) -> None:
        mine = Held()
        mine.ramp(0.088, 2.5)
        rest(seconds)

    workers = []
    for number in range(8):
        workers.append(_fork.Process(target=serve, args=(75 - 8 * number,)))
        workers[-1].start()
        time.sleep(7)
    wait_for(workers)


@program
def import_of_known_size() -> None:
    """A slow import, which ends at three quarters."""
    held = Held()
    held.ramp(0.75, 90)
    rest(30)


@program
def arenas() -> None:
    """Threads that each get an arena when they first wait for another."""
    arena = Held()
    arena.ramp(0.73, 55, lambda x: 1 - (1 - x) ** 2.5)
    rest(30)


@program
def bounded_queue() -> None:
    """A queue that blocks its producer at a number of entries."""
    queue = Held()
    queue.ramp(0.7, 26)
    for _ in ticks(45, 0.5):
        queue.to(rng.uniform(0.62, 0.7))


@program
def build_in_shm() -> None:
    """A build whose objects stay in shared memory while compilers come and go."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix=f"rise-{sys.argv[1]}-") as folder:
        compilers = Held()
        for number in range(9):
            compilers.ramp(rng.uniform(0.18, 0.34), 3)
            compilers.to(0)
            for part in range(5):
                Path(folder, f"{number}-{part}").write_bytes(os.urandom(1 << 16) * 128)
            time.sleep(2)


@program
def two_jobs_in_turn() -> None:
    """Two jobs of a queue, of which the second begins when the first gives back."""
    first, second = Held(), Held()
    for _ in range(3):
        first.ramp(0.55, 9)
        for x in ticks(6):
            first.to(0.55 * (1 - x))
            second.to(0.5 * x)
        first.to(0)
        second.ramp(0.66, 4)
        rest(3)
        second.to(0)
        rest(4)


@program
def shuffled_then_written() -> None:
    """A shuffle buffer filled at the speed of the disk, then kept full."""
    Held().ramp(0.02, 1)
    buffer = Held()
    buffer.ramp(0.69, 40)
    rest(40)


# Those that do not fit.


@program
def late_and_fast_oom() -> None:
    """Calm for long, then a leak over half a minute."""
    held = Held()
    held.ramp(0.5, 8)
    rest(35)
    held.ramp(1.3, 27)


@program
def creeping_oom() -> None:
    """A leak over three minutes from the middle."""
    held = Held()
    held.ramp(0.5, 6)
    held.ramp(1.05, 190)


@program
def snapshot_under_load_oom() -> None:
    """A store that is saved while nearly every page is written."""
    data, copies = Held(), Held()
    data.ramp(0.56, 10)
    rest(12)
    copies.ramp(0.7, 15, math.sqrt)


@program
def tabs_kept_oom() -> None:
    """A browser whose tabs are never closed."""
    while True:
        tab = Held()
        tab.ramp(rng.uniform(0.03, 0.08), 0.7)
        _kept.append(tab)
        rest(rng.uniform(1.0, 5.5))


@program
def notebook_outputs_oom() -> None:
    """Each cell keeps its result."""
    kept = Held()
    while True:
        work = Held()
        work.ramp(rng.uniform(0.05, 0.12), 1.5)
        kept.ramp(kept.share + rng.uniform(0.05, 0.1), 1.0)
        work.to(0)
        rest(rng.uniform(2.5, 7))


@program
def rotated_logs_oom() -> None:
    """Logs in shared memory, of which every rotation removes less than was written."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix=f"rise-{sys.argv[1]}-") as folder:
        files: list[Path] = []
        for number in range(10_000):
            files.append(Path(folder, str(number)))
            files[-1].write_bytes(os.urandom(1 << 16) * 96)
            if number % 24 == 23:
                for old in files[:11]:
                    old.unlink()
                del files[:11]
            time.sleep(0.18)


@program
def leaking_workers_oom() -> None:
    """Workers that leak, each at its own speed."""
    speeds = [rng.uniform(0.0005, 0.004) for _ in range(4)]
    workers = [Held() for _ in speeds]
    for _ in ticks(600, 0.2):
        for worker, speed in zip(workers, speeds, strict=True):
            if rng.random() < speed * LIMIT_BYTES / CHUNK:
                worker.to(worker.share + CHUNK / LIMIT_BYTES)


@program
def checkpoints_kept_oom() -> None:
    """A training that keeps each of its checkpoints."""
    weights = Held()
    weights.ramp(0.3, 5)
    while True:
        rest(10)
        weights.ramp(weights.share + 0.12, 1.2)


@program
def states_explode_oom() -> None:
    """A search whose states double every seven seconds."""
    Held().ramp(4.0, 49, lambda x: (2 ** (7 * x) - 1) / 127)


@program
def link_steps_oom() -> None:
    """The partitions of a linker that are too large in the end."""
    need = Held()
    for share in (0.35, 0.55, 0.75, 1.1):
        need.ramp(share, 16 * share)
        rest(1)
        need.to(0.03)
        rest(5)


@program
def merge_explodes_oom() -> None:
    """A join by a key that is not unique."""
    Held().ramp(0.1, 2)
    table, result = Held(), Held()
    table.ramp(0.3, 7)
    rest(9)
    result.ramp(1.2, 30)


@program
def recycled_too_late_oom() -> None:
    """Workers that would be replaced at a height that does not fit."""
    workers = [Held() for _ in range(5)]
    for _ in ticks(600, 0.2):
        for worker in workers:
            worker.to(0.02 if worker.share >= 0.25 else worker.share + rng.choice((0.0, 0.004)))


@program
def floor_rises_oom() -> None:
    """A heap that fragments: each collection leaves more behind."""
    heap, floor = Held(), 0.1
    while True:
        heap.ramp(floor + rng.uniform(0.15, 0.22), 4)
        heap.to(floor)
        floor += rng.uniform(0.02, 0.05)
        rest(0.5)


@program
def bursts_oom() -> None:
    """Bursts of messages, drained too slowly."""
    queue = Held()
    while True:
        queue.ramp(queue.share + rng.uniform(0.06, 0.14), 1.8)
        queue.ramp(max(0.0, queue.share - rng.uniform(0.02, 0.06)), 4)


@program
def pinned_buffers_oom() -> None:
    """Buffers in a memory file, as for transfers to a card."""
    files = []
    for number in range(10_000):
        files.append(os.memfd_create(str(number)))
        os.write(files[-1], b"\1" * 8 * MIB)
        time.sleep(0.33)


@program
def cache_then_leak_oom() -> None:
    """Files are read until the cache has taken all; then a program takes it from the cache."""
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
        for _ in range(75):
            file.write(os.urandom(1 << 16) * 160)
        file.flush()
        held = Held()
        for x in ticks(300):
            file.seek(rng.randrange(70) * 10 * MIB)
            file.read(2 * MIB)
            held.to(1.2 * min(1.0, 5 * x))


@program
def small_files_oom() -> None:
    """Millions of empty files in shared memory: what grows is the kernel's."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix=f"rise-{sys.argv[1]}-") as folder:
        for number in range(10_000_000):
            os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY))
            if number % 2000 == 0:
                time.sleep(0.02)


@program
def doubled_batches_oom() -> None:
    """A search for the largest batch: twice as much each time, given back in between."""
    need, share = Held(), 0.08
    while True:
        need.ramp(share, 2.5)
        rest(4)
        need.to(0.02)
        rest(2)
        share *= 1.7


@program
def second_service_oom() -> None:
    """A service that climbs to its usual height, while another one beside it leaks."""
    service, other = Held(), Held()
    for x in ticks(70):
        service.to(0.5 * min(1.0, 2 * x))
        other.to(0.9 * max(0.0, x - 0.3))


@program
def prompts_get_longer_oom() -> None:
    """A chat whose cache grows by a larger piece with each question."""
    cache, piece = Held(), 0.02
    while True:
        cache.ramp(cache.share + piece, 1.5)
        piece *= 1.14
        rest(3)


_kept: list[Held] = []

if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(f"{half(name)} {name}" for name in _programs))
    else:
        _programs[sys.argv[1]]()
