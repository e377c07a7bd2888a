"""Cost of a scan of 3,000 processes, compared with reading the same by psutil.

Run by hand: ``python -m tests.bench.bench_processes [processes] [rounds]``. A round is a scan five simulated seconds
later; the first minute, in which all processes are new, does not count.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

from wslgpud.config import Config
from wslgpud.host import Host, SystemClock
from wslgpud.sources.processes import ProcessSource

FIRST_MINUTE_SCANS = 14


class BenchClock(SystemClock):
    """A clock that is advanced from scan to scan."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def mono(self) -> float:  # type: ignore[override]  # a plain function there
        return time.monotonic() + self.ahead_seconds


def mean_milliseconds(call: Callable[[], object], rounds: int) -> float:
    """Return the mean CPU time of a call in milliseconds; the mean, as calls differ."""
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        call()
        times.append((time.thread_time() - began) * 1e3)
    return statistics.mean(times)


def main() -> None:
    """Start sleeping children, scan, print."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 48
    clock, config = BenchClock(), Config()
    source = ProcessSource(Host(clock=clock), config)

    def scan() -> int:
        clock.ahead_seconds += config.sampling.processes_seconds
        return int(next(r.value for r in source.read().readings if r.spec.name == "processes"))

    children = [subprocess.Popen(["sleep", "600"]) for _ in range(max(0, wanted - scan()))]
    try:
        time.sleep(0.5)  # until all have called exec
        for _ in range(FIRST_MINUTE_SCANS):
            seen = scan()
        ours = mean_milliseconds(scan, rounds)
        fields = ["name", "memory_info", "create_time", "uids"]
        peer = mean_milliseconds(lambda: [p.info for p in psutil.process_iter(fields)], max(3, rounds // 5))
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()
    every = config.sampling.processes_seconds
    print(f"{seen} processes: {ours:.2f} ms a scan, {ours / seen * 1e3:.1f} us each; psutil: {peer:.2f} ms")
    print(f"every {every:g} s: {ours / every / 10:.3f} % of one core; psutil: {peer / every / 10:.3f} %")


if __name__ == "__main__":
    main()
