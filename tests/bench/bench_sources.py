"""Cost of each source on this machine, compared with psutil reading a minimum of the same.

Run by hand: ``python tests/bench/bench_sources.py [rounds]``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import psutil

from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sampling.sampler import SOURCES

#: psutil's calls for some of the readings of the source with that name.
PEERS: dict[str, tuple[Callable[[], object], ...]] = {
    "memory": (psutil.virtual_memory, psutil.swap_memory),
    "cpu": (psutil.cpu_times, psutil.getloadavg),
    "disk": (psutil.disk_io_counters,),
    "network": (lambda: psutil.net_io_counters(pernic=True),),
    "filesystem": (lambda: psutil.disk_usage("/"),),
    "processes": (lambda: [p.info for p in psutil.process_iter(["name", "memory_info", "create_time"])],),
}


def microseconds(call: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the median and the 99th percentile of a call's CPU time."""
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        call()
        times.append((time.thread_time() - began) * 1e6)
    return statistics.median(times), sorted(times)[int(rounds * 0.99)]


def main() -> None:
    """Print a table, and the cost of a tick."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    tick = per_second = 0.0
    print(f"{'source':14} {'p50 us':>8} {'p99 us':>8} {'every s':>8} {'series':>7} {'psutil p50 us':>14}")
    for kind in SOURCES:
        source = kind(Host(), Config())
        try:
            series = len(source.read().readings)
            middle, slow = microseconds(source.read, rounds)
        except (NoData, SourceError) as reason:
            print(f"{kind.name:14} {reason}")
            continue
        peers = PEERS.get(kind.name, ())
        peer = sum(microseconds(call, rounds // 5)[0] for call in peers)
        shown = f"{peer:14.0f}" if peers else ""
        every = source.period_seconds or 1.0
        print(f"{kind.name:14} {middle:8.0f} {slow:8.0f} {every:8.0f} {series:7} {shown}")
        per_second += middle / every
        tick += middle if kind.name != "processes" and not source.period_seconds else 0
        source.close()
    print(f"a tick without the process scan: {tick:.0f} us (goal 2000)")
    print(f"all sources at their periods: {per_second / 1e4:.3f} % of one core")


if __name__ == "__main__":
    main()
