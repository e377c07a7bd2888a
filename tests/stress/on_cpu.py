"""Stands in for a Python with torch on a machine without a GPU: ``on_cpu.py WORKER`` runs that worker small.

What the parent asks for a card is done on 120 MiB of the host's memory; every phase is gone through.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from dataclasses import replace

loader = importlib.machinery.SourceFileLoader("worker", sys.argv[1])  # /dev/fd/N does not end in .py
spec = importlib.util.spec_from_loader("worker", loader)
worker = importlib.util.module_from_spec(spec)
sys.modules["worker"] = worker
spec.loader.exec_module(worker)

MIB = worker.MIB
SIZES = {
    "device": "cpu",
    "cpu_bytes": 120 * MIB,
    "reserve": 4 * MIB,
    "chunk": 8 * MIB,
    "scratch": 2 * MIB,
    "slow_ratio": 0.0,
}


class Even(worker.Worker):
    """On a CPU that others use as well a time says nothing."""

    def timings(self, works):
        return [0.001] * len(super().timings(works))


def small(job, send, stop):
    quicker = {
        "retention_seconds": min(job.retention_seconds, 0.1),
        "soak_seconds": min(job.soak_seconds, float(os.environ.get("SOAK_SECONDS", "0.5"))),
        "ladder": [10 * MIB, 50 * MIB],
        "offsets": min(job.offsets, 2),
    }
    return Even(replace(job, **SIZES, **quicker), send, stop)


if __name__ == "__main__":
    raise SystemExit(worker.obedient(small))
