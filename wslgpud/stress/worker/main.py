"""Loads torch, and does the job."""

from __future__ import annotations

import gc
import os


def main() -> None:
    """Run the worker."""
    # Set before torch is imported, which reads them. Expandable segments fail on WSL (pytorch/pytorch#192330).
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Importing torch creates no garbage. Collections would take a sixth of its time, and again at exit.
    gc.disable()
    from .phases import Worker, converse

    gc.freeze()
    gc.enable()
    converse(Worker)
