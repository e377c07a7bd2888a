"""Cost of the risk engine: microseconds per resource and sample, compared with a least-squares rule.

Run by hand: ``python -m tests.bench.bench_risk`` (the goal is 100 us; a wall-clock limit would make a flaky test).
"""

from __future__ import annotations

import platform
import random
import sys
import time

from tests.bench.scoring import run_baseline
from wslgpud.config import Config
from wslgpud.model import GpuProcess, GpuSample, Observation, ProcessSample, RamState, SwapState, VmState
from wslgpud.risk.engine import RiskEngine

GIB = 1 << 30
#: as many as a daemon keeps per sample
LISTED = Config().sampling.processes_max
RUNS = 5


def stream(samples, gpus, growing, processes=LISTED):
    """A machine at one sample per second; ``growing`` repeatedly climbs through all levels."""
    rng = random.Random(1)
    for i in range(samples):
        used = (i % 1200) / 1200 if growing else 0.3 + 0.02 * rng.random()
        yield Observation(
            t=float(i),
            ram=RamState(48 * GIB, int(48 * GIB * (1 - used)), shmem=GIB, anon=int(40 * GIB * used)),
            swap=SwapState(16 * GIB, int(16 * GIB * (1 - used))),
            vm=VmState(major_faults_total=i, oom_kills_total=0, alloc_stalls_total=0),
            gpus=tuple(
                GpuSample(
                    g, f"GPU-{g}", "card", 16 * GIB, int(16 * GIB * used), processes=(GpuProcess(9, "python", None),)
                )
                for g in range(gpus)
            ),
            processes=tuple(
                ProcessSample(
                    100 + p, 1, "python", int(GIB * used) + p, 0, 1000 + p % 2, command=f"python work{p % 7}.py"
                )
                for p in range(processes)
            ),
        )


def cost(gpus, growing, samples=1500):
    """Return the minimum of several runs: other programs can only add to it."""
    observations = list(stream(samples, gpus, growing))
    least = float("inf")
    for _ in range(RUNS):
        engine, start = RiskEngine(), time.process_time()
        for observation in observations:
            engine.observe(observation)
        least = min(least, time.process_time() - start)
    return least / samples / (1 + gpus) * 1e6


def main():
    print(f"Python {platform.python_version()}, {platform.machine()}; microseconds per resource and sample")
    observations = list(stream(3000, 1, growing=True))
    start = time.process_time()
    run_baseline("predict_linear 5 min -> 10 min", iter(observations))
    peer = (time.process_time() - start) / 3000 / 2 * 1e6
    print(f"  peer: predict_linear 5 min         {peer:6.1f}")
    for gpus in (0, 1, 8):
        for growing in (False, True):
            what, taken = "climbing" if growing else "at rest", cost(gpus, growing)
            print(f"  engine, RAM and {gpus} GPUs, {what:<8} {taken:6.1f}  {taken / peer:.1f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
