"""Runs a model on sizes alone, in the Python that trains it: says how much memory it takes while it trains or answers.

It is passed to a foreign Python as a zip archive (``wslgpud.security.run_as``), hence the relative imports, and nothing
of ours is imported. The model's weights are never there. The job comes as one line of JSON on standard input. The only
line of output is an object: what is in use at the peak by purpose, and what the allocator reserves; or ``error``.
"""

from __future__ import annotations

import json
import os
import resource
import sys


def main() -> None:
    """Trace the job on standard input."""
    job = json.loads(sys.stdin.readline())
    resource.setrlimit(resource.RLIMIT_DATA, (job["memory_bytes"],) * 2)
    # What a user's code prints must not look like a line of ours.
    sys.stdout, output = sys.stderr, sys.stdout
    os.environ["PYTORCH_JIT"] = "0"  # a compiled function would run on memory that is not there
    try:
        from .watch import traced

        # Without leave to measure, the card is not touched: a backward pass on its device would open it.
        last = traced(job, "cuda" if job["measure_bytes"] else "cpu")
    except BaseException as error:  # noqa: BLE001 - a user's code may raise anything, and the parent must hear of it
        last = {"error": type(error).__name__, "why": str(error).strip().partition("\n")[0][:500]}
    print(json.dumps(last), file=output, flush=True)
    # Storages end with the interpreter, which is of no interest.
    os._exit(0)
