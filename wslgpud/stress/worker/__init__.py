"""The program that fills a GPU's memory, checks it, and frees it. Needs torch, and nothing else of ours.

It is passed to a foreign Python as a zip archive (``wslgpud.security.run_as``), hence the relative imports. The first
line of standard input is the job (see ``WorkerJob``); any further line, or the end of the input, means to free
everything and exit. Standard output carries one JSON object per line, see ``README.md`` beside this folder.
"""

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
