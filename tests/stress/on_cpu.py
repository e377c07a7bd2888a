"""Stands in for a Python with torch on a machine without a GPU: ``on_cpu.py WORKER`` runs that worker small.

What the parent asks for a card is done on 120 MiB of the host's memory; every phase is gone through.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

sys.path.insert(0, sys.argv[1])  # an archive

from worker import card, phases

MIB = card.MIB
SIZES = {
    "device": "cpu",
    "cpu_bytes": 120 * MIB,
    "reserve": 4 * MIB,
    "chunk": 8 * MIB,
    "scratch": 2 * MIB,
    "slow_ratio": 0.0,
}


class Even(phases.Worker):
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
    phases.converse(small)
