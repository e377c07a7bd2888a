"""Loads torch, and does the job."""

from __future__ import annotations

import gc
import os


def main() -> None:
    """Run the worker."""
    # As torch reads them while it is imported. Expandable segments fail on WSL (pytorch/pytorch#192330).
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Of the objects that torch makes while it is imported none becomes garbage. To look through them again and again
    # takes a sixth of its time, and once more at the end.
    gc.disable()
    from .phases import Worker
    from .protocol import converse

    gc.freeze()
    gc.enable()
    converse(Worker)
