"""What a scan of 300 processes costs, beside psutil reading the same of them.

Run by hand: ``python tests/bench/bench_processes.py [processes] [rounds]``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.sources.processes import ProcessSource


def median_milliseconds(call: Callable[[], object], rounds: int) -> float:
    """Return the median processor time of the call."""
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        call()
        times.append((time.thread_time() - began) * 1e3)
    return statistics.median(times)


def main() -> None:
    """Start sleeping children, scan, print."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    source = ProcessSource(Host(), Config())
    here = int(next(r.value for r in source.read().readings if r.spec.name == "processes"))
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(max(0, wanted - here))]
    try:
        time.sleep(0.5)  # until all have replaced themselves
        seen = int(next(r.value for r in source.read().readings if r.spec.name == "processes"))
        ours = median_milliseconds(source.read, rounds)
        fields = ["name", "memory_info", "create_time", "uids"]
        peer = median_milliseconds(lambda: [p.info for p in psutil.process_iter(fields)], max(3, rounds // 5))
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()
    every = Config().sampling.processes_seconds
    print(f"{seen} processes: {ours:.2f} ms a scan, {ours / seen * 1e3:.1f} us each; psutil: {peer:.2f} ms")
    print(f"every {every:g} s: {ours / every / 10:.3f} % of one core")


if __name__ == "__main__":
    main()
