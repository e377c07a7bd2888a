"""Plant single faults in the package, one at a time, and see whether the tests see them.

    python -m tests.faults --sample 70 --seed 1 --jobs 2 --minutes 60
    python -m tests.faults --modules 'risk/*' store/codec.py
    python -m tests.faults --modules risk/levels.py:83         (every fault of one line)

A fault is a comparison turned round, a number moved, a condition negated. Everything happens in copies of the
repository below the folder for temporary files. Ends with 0 when at least ``--share`` percent were seen.

Why not a tool that exists: mutmut (3.3) changes functions only, no tables and thresholds at the top of a module, and
runs everything in one process, so that the commands and daemons that our tests start are without the fault.
cosmic-ray (8.4) changes the working tree in place, has one test command for all modules and no sample by a seed.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tests.faults.hunt import AS_NOBODY, Outcome, Workshop, apart
from tests.faults.plant import places

ROOT = Path(__file__).parents[2]
#: needs torch, which the tests that run here go without
LEFT_OUT = "stress/worker/"


class Where(NamedTuple):
    """The how-manieth fault of a module."""

    module: str
    number: int


def candidates(root: Path, package: str, patterns: Sequence[str]) -> list[Where]:
    """Return all faults of the modules that match a pattern, which may end with the number of a line."""
    found = []
    for path in sorted((root / package).rglob("*.py")):
        name = str(path.relative_to(root / package))
        for number, line in enumerate(places(path.read_text())):
            wanted = any(fnmatch.fnmatch(name, one) or fnmatch.fnmatch(f"{name}:{line}", one) for one in patterns)
            if wanted and (not name.startswith(LEFT_OUT) or name in patterns):
                found.append(Where(f"{package}/{name}", number))
    return found


def judged(root: Path, sample: Sequence[Where], jobs: int, minutes: float, limit: float) -> Iterator[Outcome]:
    """Yield what became of each fault, in order, as long as there is time to begin with another."""
    end = time.monotonic() + minutes * 60
    with tempfile.TemporaryDirectory(prefix="wslgpud-faults-") as folder, ThreadPoolExecutor(jobs) as pool:
        Path(folder).chmod(0o755)
        shops: SimpleQueue[Workshop] = SimpleQueue()
        for shop in pool.map(Workshop, repeat(root), (Path(folder) / str(job) for job in range(jobs))):
            shops.put(shop)

        def judge(where: Where) -> Outcome | None:
            if time.monotonic() > end:
                return None
            shop = shops.get()
            try:
                return shop.judge(*where, limit)
            finally:
                shops.put(shop)

        yield from filter(None, pool.map(judge, sample))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--modules", nargs="+", metavar="PATTERN", default=["*"], help="of these files; FILE:LINE works"
    )
    parser.add_argument("--sample", type=int, metavar="NUMBER", help="so many at random (all of them)")
    parser.add_argument("--seed", type=int, default=1, help="which random ones (1)")
    parser.add_argument("--jobs", type=int, default=1, metavar="NUMBER", help="so many at once (1)")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin with none after that (60)")
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS", help="for each fault (600)")
    parser.add_argument("--share", type=float, default=90.0, metavar="PERCENT", help="to be seen (90)")
    parser.add_argument("--root", type=Path, default=ROOT, help="another repository")
    parser.add_argument("--package", default="wslgpud", help="another package")
    asked = parser.parse_args(arguments)
    if os.geteuid() == 0 and asked.root == ROOT and AS_NOBODY[0] not in apart():
        # With root's rights, a fault in what signals processes or deletes files reaches everything.
        print(f"faults are planted by an ordinary user, and nobody else may run {sys.executable}", file=sys.stderr)
        return 2

    sample = candidates(asked.root, asked.package, asked.modules)
    if asked.sample is not None and asked.sample < len(sample):
        sample = random.Random(asked.seed).sample(sample, asked.sample)
    seen: list[bool] = []
    for outcome in judged(asked.root, sample, asked.jobs, asked.minutes, asked.limit):
        seen.append(outcome.seen)
        word = "seen" if outcome.seen else "NOT SEEN"
        print(f"{word:8} {outcome.place}  {outcome.change}  {outcome.by}  ({outcome.seconds:.0f} s)", flush=True)
    share = 100 * sum(seen) / len(seen) if seen else 100.0
    print(f"{sum(seen)} of {len(seen)} faults were seen: {share:.0f} %")
    return 0 if share >= asked.share else 1


if __name__ == "__main__":
    sys.exit(main())
