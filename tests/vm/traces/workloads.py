"""Programs that use memory the way trainings and builds do; run inside a machine, one by name.

Sizes are shares of the machine's RAM, or of RAM and swap together (``all``), so that each scales with the
machine. Where a program turns fatal it says so, which gives a recording its ground truth.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

MIB = 1 << 20
# Copied, because random bytes are slow to make. As they are zram gains nothing; with COMPRESSIBLE set two
# thirds of each page are text, which it packs like the memory of most programs.
_PAGE = b"".join(b"%08d" % number for number in range(340)).ljust(2731, b"x")
BLOCK = (
    b"".join(_PAGE + os.urandom(1365) for _ in range(MIB // 4096))
    if os.environ.get("COMPRESSIBLE")
    else os.urandom(MIB)
)


def meminfo(*keys: str) -> int:
    """Return the sum of the named fields of /proc/meminfo, in bytes."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(fields[key].split()[0]) * 1024 for key in keys)


def fatal() -> None:
    """Note when growth began that will not stop."""
    Path("/run/fatal").write_text(str(time.monotonic()), encoding="ascii")


class Heap:
    """Anonymous memory of this process, taken and given back in MiB."""

    def __init__(self) -> None:
        self.blocks: list[mmap.mmap] = []

    def grow(self, mib: int) -> None:
        for _ in range(mib):
            block = mmap.mmap(-1, MIB)
            block.write(BLOCK)
            self.blocks.append(block)

    def shrink(self, mib: int) -> None:
        for _ in range(min(mib, len(self.blocks))):
            self.blocks.pop().close()

    def to(self, mib: float, seconds: float) -> None:
        """Reach a size in equal steps of at most a quarter of a second."""
        start, begun = len(self.blocks), time.monotonic()
        while True:
            share = min(1.0, (time.monotonic() - begun) / seconds) if seconds else 1.0
            missing = int(start + (mib - start) * share) - len(self.blocks)
            self.grow(missing) if missing > 0 else self.shrink(-missing)
            if share >= 1.0:
                return
            time.sleep(min(0.25, seconds / 4))

    def touch(self, share: float) -> None:
        """Write to a random share of the pages' blocks, as a program that works with its memory does."""
        for block in random.sample(self.blocks, int(len(self.blocks) * share)):
            block[random.randrange(MIB)] = 1


RAM = meminfo("MemTotal") // MIB
ALL = meminfo("MemTotal", "SwapTotal") // MIB
HEAP = Heap()


def leak(seconds: float, *, hot: bool = False) -> None:
    """Grow at one rate to 110 % of everything in ``seconds``."""
    fatal()
    begun, start = time.monotonic(), len(HEAP.blocks)
    while True:
        target = start + (ALL * 1.1 - start) * (time.monotonic() - begun) / seconds
        HEAP.to(target, 0)
        if hot:
            HEAP.touch(0.2)
        time.sleep(0.25)


def leak_linear(seconds: float) -> None:
    """Lose memory steadily."""
    leak(seconds)


def leak_hot(seconds: float) -> None:
    """Lose memory while working with all of it, so that swap is no relief."""
    leak(seconds, hot=True)


def leak_late(seconds: float) -> None:
    """Train peacefully at 40 % for half of the time, then leak."""
    HEAP.to(RAM * 0.4, 5)
    steady(seconds / 2)
    leak(seconds / 2)


def leak_accelerating(seconds: float) -> None:
    """Lose memory by the square of time, as a list that is copied whole each epoch."""
    fatal()
    begun = time.monotonic()
    while True:
        HEAP.to(ALL * 1.1 * ((time.monotonic() - begun) / seconds) ** 2, 0)
        time.sleep(0.25)


def leak_sawtooth(seconds: float) -> None:
    """Rise and fall by 15 % each few seconds over a floor that creeps up."""
    fatal()
    begun = time.monotonic()
    while True:
        floor = RAM * 0.1 + ALL * 0.95 * (time.monotonic() - begun) / seconds
        HEAP.to(floor + RAM * 0.15, random.uniform(4, 8))
        HEAP.to(floor, 0.5)
        time.sleep(random.uniform(1, 3))


def leak_steps(seconds: float) -> None:
    """Keep a little more after each epoch, quiet in between: a staircase."""
    fatal()
    for step in range(1, 100):
        HEAP.to(ALL * 0.11 * step, 2)
        steady(seconds / 10 - 2)


def leak_that_stops(seconds: float) -> None:
    """Grow to 84 % of everything and stay: a cache that has filled."""
    HEAP.to(ALL * 0.84 - (RAM - meminfo("MemAvailable") / MIB), seconds * 0.6)
    steady(seconds * 0.4)


def warm_up(seconds: float) -> None:
    """Grow to two thirds of everything within a third of the time and stay: a data set that loads."""
    HEAP.to(ALL * 0.66 - (RAM - meminfo("MemAvailable") / MIB), seconds / 3)
    steady(seconds * 2 / 3)


def fatal_spikes(seconds: float) -> None:
    """Work at 40 %, with an evaluation each half minute that needs more every time."""
    HEAP.to(RAM * 0.4, 5)
    rounds = int(seconds / 30)
    for evaluation in range(rounds * 2):
        if evaluation == rounds - 2:
            fatal()
        steady(22)
        HEAP.to(ALL * (0.5 + 0.6 * evaluation / rounds), 4)
        time.sleep(3)
        HEAP.to(RAM * 0.4, 1)


def safe_spikes(seconds: float) -> None:
    """Work at 35 %, with an evaluation each half minute that needs 65 %, always the same."""
    HEAP.to(RAM * 0.35, 5)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        steady(20)
        HEAP.to(RAM * 0.65, 3)
        time.sleep(5)
        HEAP.to(RAM * 0.35, 1)


def sawtooth_safe(seconds: float) -> None:
    """Rise to two thirds and fall again, by garbage collection."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        HEAP.to(RAM * random.uniform(0.6, 0.68), random.uniform(6, 18))
        HEAP.to(RAM * random.uniform(0.25, 0.35), 0.5)
        time.sleep(1)


def prealloc(seconds: float) -> None:
    """Take 65 % at once and work with it: normal for many frameworks."""
    HEAP.to(RAM * 0.65, 4)
    steady(seconds)


def steady(seconds: float) -> None:
    """Work with what is there, with a little noise."""
    end, base = time.monotonic() + seconds, len(HEAP.blocks)
    while time.monotonic() < end:
        HEAP.to(base + random.uniform(0, RAM * 0.02), 0)
        HEAP.touch(0.05)
        time.sleep(min(0.5, max(0.0, end - time.monotonic())))
    HEAP.to(base, 0)


def compiler() -> None:
    """One translation unit: grows unevenly to its peak and ends (``CC_PEAK`` MiB, ``CC_SECONDS``)."""
    peak, seconds = float(os.environ["CC_PEAK"]), float(os.environ["CC_SECONDS"])
    HEAP.to(peak * 0.3, seconds * 0.2)
    time.sleep(seconds * 0.2)
    HEAP.to(peak, seconds * 0.5)
    time.sleep(seconds * 0.1)


def build(seconds: float, jobs: int, peak_share: Callable[[float], float]) -> None:
    """Keep ``jobs`` compilers running; ``peak_share`` gives a peak in shares of RAM for a progress of 0-1."""
    begun = time.monotonic()
    running: list[subprocess.Popen[bytes]] = []
    while (progress := (time.monotonic() - begun) / seconds) < 1:
        running = [child for child in running if child.poll() is None]
        if len(running) < jobs:
            peak = RAM * peak_share(progress) * random.uniform(0.5, 1.0)
            variables = {"CC_PEAK": str(peak), "CC_SECONDS": str(random.uniform(4, 12))}
            command = [sys.executable, __file__, "compiler", "0"]
            running.append(subprocess.Popen(command, env={**os.environ, **variables}))
        time.sleep(0.3)
    for child in running:
        child.wait()


def build_safe(seconds: float) -> None:
    """Build with as many jobs as fit."""
    build(seconds, jobs=3, peak_share=lambda _: 0.18)


def build_oom(seconds: float) -> None:
    """Build with jobs that fit until the heavy CUDA files come, in the last third."""
    build(seconds * 0.6, jobs=4, peak_share=lambda _: 0.12)
    fatal()
    build(seconds * 0.4, jobs=4, peak_share=lambda progress: (0.25 + 0.5 * progress) * ALL / RAM)


def tmpfs_oom(seconds: float) -> None:
    """Fill /dev/shm, which no process owns and nobody frees."""
    subprocess.run(["mount", "-o", f"remount,size={ALL * 2}m", "/dev/shm"], check=True)
    fatal()
    written, begun = 0, time.monotonic()
    with Path("/dev/shm/fill").open("wb") as file:
        while True:
            while written < ALL * 1.1 * (time.monotonic() - begun) / seconds:
                file.write(BLOCK)
                written += 1
            time.sleep(0.25)


def page_cache(seconds: float) -> None:
    """Write and read files of twice the RAM: all memory fills, none of it is in need."""
    HEAP.to(RAM * 0.25, 5)
    end, path, size = time.monotonic() + seconds, Path("/var/tmp/data"), min(RAM * 3 // 2, 2200)
    while time.monotonic() < end:
        with path.open("wb") as file:
            for _ in range(size):
                file.write(BLOCK)
                time.sleep(0.005)
        with path.open("rb") as file:
            while file.read(4 * MIB):
                time.sleep(0.01)
    path.unlink()


def cold_swap(seconds: float) -> None:
    """A browser of half the RAM goes idle and is swapped out by a training of 60 %: full, and fine."""
    idle = subprocess.Popen([sys.executable, __file__, "idle_half", str(seconds + 30)])
    time.sleep(10)
    HEAP.to(RAM * 0.6, 30)
    steady(seconds - 40)
    idle.kill()


def idle_half(seconds: float) -> None:
    """Hold half of the RAM and never look at it again."""
    HEAP.to(RAM * 0.5, 8)
    time.sleep(seconds)


def fork_workers(seconds: float) -> None:
    """Data loader workers that copy the parent's pages one by one, by touching reference counts."""
    objects = [[number] for number in range(int(RAM * 0.22 * MIB / 130))]
    fatal()
    workers = 6
    for _ in range(workers):
        if os.fork() == 0:
            for index, item in enumerate(objects):
                item.append(index)
                if index % 500 == 0:
                    time.sleep(seconds * 500 / len(objects))
            time.sleep(seconds)
    for _ in range(workers):
        os.wait()


def pushed_aside(seconds: float) -> None:
    """A service of three quarters of the RAM falls idle, and a job of a third of everything moves it to swap."""
    idle = subprocess.Popen([sys.executable, __file__, "idle_most", str(seconds + 30)])
    time.sleep(14)
    HEAP.to(ALL * 0.36, seconds / 4)
    steady(seconds / 2)
    idle.kill()


def idle_most(seconds: float) -> None:
    """Hold three quarters of the RAM and never look at it again."""
    HEAP.to(RAM * 0.75, 8)
    time.sleep(seconds)


def twice_too_large(seconds: float) -> None:
    """A job that is larger than the RAM and smaller than everything, twice."""
    for _ in range(2):
        HEAP.to(ALL * 0.7, seconds / 5)
        time.sleep(seconds / 8)
        HEAP.to(0, 1)
        time.sleep(seconds / 8)


def archive_in_shm(seconds: float) -> None:
    """Unpack 70 % of everything into /dev/shm, most of which goes to swap, and delete it again."""
    subprocess.run(["mount", "-o", f"remount,size={ALL}m", "/dev/shm"], check=True)
    path, written, begun = Path("/dev/shm/archive"), 0, time.monotonic()
    with path.open("wb") as file:
        while written < ALL * 0.7:
            while written < ALL * 0.7 * (time.monotonic() - begun) / seconds * 2:
                file.write(BLOCK)
                written += 1
            time.sleep(0.25)
    time.sleep(seconds / 4)
    path.unlink()
    time.sleep(seconds / 8)


def stages_kept(seconds: float) -> None:
    """A pipeline of five stages, each of which keeps its result: 78 % of everything in the end."""
    for stage in range(1, 6):
        HEAP.to(ALL * 0.145 * stage, seconds / 14)
        time.sleep(seconds / 10)
    time.sleep(seconds / 6)


def forgotten_results(seconds: float) -> None:
    """Results that nobody reads again pile up, first in RAM and then in swap, until both are full."""
    fatal()
    while True:
        HEAP.grow(random.randint(2, int(ALL / seconds) + 2))
        time.sleep(0.5)


def swapped_then_hot(seconds: float) -> None:
    """A job half in swap begins to work with all it has while it grows."""
    HEAP.to(ALL * 0.6, seconds / 3)
    time.sleep(10)
    leak(seconds * 0.7, hot=True)


def files_in_shm(seconds: float) -> None:
    """Create ever more empty files in /dev/shm: names and inodes that the kernel cannot take back."""
    fatal()
    subprocess.run(["mount", "-o", "remount,nr_inodes=0", "/dev/shm"], check=True)
    for number in range(100_000_000):
        if number % 5000 == 0:
            folder = Path(f"/dev/shm/{number}")
            folder.mkdir()
        os.link("/dev/shm/0/0", folder / str(number)) if number % 3 else (folder / str(number)).touch()


def names_sought(seconds: float) -> None:
    """Look for files that are not there: names that the kernel remembers, and takes back on demand."""
    HEAP.to(RAM * 0.3, 5)
    end = time.monotonic() + seconds
    for number in range(100_000_000):
        os.access(f"/usr/{number}-which-is-a-rather-long-name-that-is-not-there", os.F_OK)
        if number % 2000 == 0 and time.monotonic() > end:
            return


def names_sought_then_leak(seconds: float) -> None:
    """The same, and then a leak, which takes the place of the names."""
    names_sought(seconds / 2)
    leak(seconds / 2)


def main() -> None:
    """Run one workload by its name."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("name")
    arguments.add_argument("seconds", type=float)
    chosen = arguments.parse_args()
    random.seed(chosen.name)
    if chosen.name == "compiler":
        compiler()
    else:
        globals()[chosen.name](chosen.seconds)


if __name__ == "__main__":
    main()
