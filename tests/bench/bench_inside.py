"""How much earlier a leak is found inside a training than from outside, with real programs and a real torch.

    python -m tests.bench.bench_inside [--python PYTHON] [--device cuda] [--steps 400] [--jobs 1] [NAME]...
    python -m tests.bench.bench_inside --cost

Twelve leaks that occur in practice and twelve programs without one (``tests/training/programs.py``). Each starts with
as much headroom as its leak uses up by the last step. The outside view is this product's own forecast, one sample per
step. On a CPU both observe the program's anonymous memory; on a GPU the outside sees the allocator's reserved memory.
"""

from __future__ import annotations

import argparse
import re
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from timeit import repeat
from types import SimpleNamespace

from tests.training.judging import Verdict, judge, watched
from wslgpud.training.companion import MAX_CARDS, READ_SECONDS, Companion, Floors

PROGRAMS = Path(__file__).parents[1] / "training" / "programs.py"


def names() -> tuple[list[str], list[str]]:
    """Return the names of the programs with and without a leak, without importing torch."""
    groups = re.findall(r"^(LEAKS|HARMLESS) = \((.*?)^\)", PROGRAMS.read_text(), re.MULTILINE | re.DOTALL)
    found = {name: re.findall(r"\w+", text) for name, text in groups}
    return found["LEAKS"], found["HARMLESS"]


def cost() -> int:
    """Print the companion's overhead in the training's thread, the minimum of seven runs."""
    one, optimizer = Companion(), SimpleNamespace()
    one.stepped(optimizer)
    one._heard, one._due = True, float("inf")
    counted = min(repeat(lambda: one.stepped(optimizer), number=100_000, repeat=7)) / 100_000
    read = min(repeat(one._read, number=1000, repeat=7)) / 1000
    tracemalloc.start()
    full = Companion()
    for step in range(60_000):  # more than the coarsest blocks cover
        for name in ("ram", *map(str, range(MAX_CARDS))):
            full._floors.setdefault(name, Floors()).add(step, 1 << 33, 1 << 34)
    held = tracemalloc.get_traced_memory()[0]
    one.close()
    share = read / READ_SECONDS
    print(f"a step that is counted: {counted * 1e6:.2f} us; a reading of host memory: {read * 1e6:.0f} us, ", end="")
    print(f"at most every {READ_SECONDS:g} s: {share:.3%} of one core; {held >> 10} KiB for RAM and {MAX_CARDS} cards")
    return 0


def judged(python: str, steps: int, device: str, name: str) -> Verdict:
    """Run one program: a leak with the headroom that it fills, the others with four times their own use."""
    rows = watched(python, name, steps, device)
    grown = rows[-1].outside - rows[0].outside
    return judge(rows, grown if name in names()[0] else max(4 * grown, 512 << 20))


def main() -> int:
    """Print a line for each program, and the median lead."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=1, help="programs to run at the same time")
    parser.add_argument("--cost", action="store_true", help="measure the overhead per step instead")
    arguments = parser.parse_args()
    if arguments.cost:
        return cost()
    leaks, harmless = names()
    print("| program | named inside | warned inside | warned outside | full | steps left, inside / outside |")
    print("|---|---|---|---|---|---|")
    found: list[Verdict] = []
    asked = arguments.names or [*leaks, *harmless]
    run = partial(judged, arguments.python, arguments.steps, arguments.device)
    for name, verdict in zip(asked, ThreadPoolExecutor(arguments.jobs).map(run, asked), strict=True):
        said = ["never" if step is None else f"step {step}" for step in verdict]
        left, times = "", f"step {arguments.steps}" if name in leaks else "never"
        if name in leaks:
            found.append(verdict)
            inside, outside = (arguments.steps - (step or arguments.steps) for step in (verdict.named, verdict.outside))
            left = f"{inside} / {outside}" + (f" ({inside / outside:.1f} x)" if outside else "")
        print(f"| {name} | {' | '.join(said)} | {times} | {left} |", flush=True)
    if found:
        middle = [median(step or arguments.steps for step in steps) for steps in zip(*found, strict=True)]
        print(
            f"\nmedian of {len(found)} leaks: named after {middle[0]:.0f} steps, warned after {middle[1]:.0f}, ", end=""
        )
        print(f"outside warned after {middle[2]:.0f} of {arguments.steps}: {middle[2] / middle[0]:.0f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
