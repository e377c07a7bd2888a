"""Programs whose memory ends well or badly, for ``record_cgroup.py``.

    python -m tests.traces.record_cgroup OUT.jsonl.gz 512 python tests/traces/programs.py NAME [SECONDS]

``SECONDS`` is how long the program takes to its end, good or bad, where the limit is 512 MiB.
"""

from __future__ import annotations

import collections
import json
import math
import random
import sys
import time

LIMIT_KIB = 512 << 10
rng = random.Random(int.from_bytes(sys.argv[1].encode()[:8], "little"))
began = time.monotonic()


def now():
    return time.monotonic() - began


def record(kib):
    """What a service keeps of a request: many small objects, as a parsed document makes them."""
    return json.loads(json.dumps([{"id": i, "text": "x" * 656, "tags": ["a", "b"]} for i in range(int(kib))]))


def requests(load=lambda t: 1.0):
    """Yield at the moments at which requests come: at random, one a second at a load of 1."""
    while True:
        time.sleep(min(20.0, rng.expovariate(max(0.02, load(now())))))
        yield


def service_leak(seconds):
    """Keeps a little of each request for ever, and has busier and calmer quarters of an hour."""
    load = requests(lambda t: 1.0 + 0.6 * math.sin(t / 150.0))
    _kept = [record(LIMIT_KIB / seconds * rng.uniform(0.3, 1.7)) for _ in load]


def bounded_cache(seconds):
    """Fills a cache of two thirds of the memory in half its time; then each new entry drops the oldest."""
    kept, entry = collections.deque(), LIMIT_KIB * 0.66 / (seconds / 2)
    for _ in requests():
        kept.append(record(entry * rng.uniform(0.3, 1.7)))
        if sum(map(len, kept)) > 0.62 * LIMIT_KIB:
            kept.popleft()
        if now() > seconds:
            return


def hourly_report(seconds):
    """Loads 40 % for a report every eighth of its time, drops it, and leaks all the while."""
    kept, due = [], seconds / 16
    for _ in requests():
        kept.append(record(0.58 * LIMIT_KIB / seconds * rng.uniform(0.3, 1.7)))
        if now() > due:
            due += seconds / 8
            report = []
            for _ in range(20):
                report.append(record(0.02 * LIMIT_KIB))
                time.sleep(seconds / 1000)
            del report


def quiet_service(seconds):
    """Serves requests of all sizes and keeps nothing."""
    for _ in requests(lambda t: 1.0 + 0.6 * math.sin(t / 150.0)):
        document = record(min(0.4 * LIMIT_KIB, 400 * rng.paretovariate(0.8)))
        time.sleep(rng.uniform(0.0, 2.0))
        del document
        if now() > seconds:
            return


if __name__ == "__main__":
    globals()[sys.argv[1]](float(sys.argv[2]) if len(sys.argv) > 2 else 600.0)
