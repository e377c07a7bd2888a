"""The worker's side of the protocol with its parent, see ``README.md`` beside this folder."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from .card import Leave, WorkerJob, first_line
from .phases import Worker


def converse(make_worker: Callable[[WorkerJob, Callable[..., None], threading.Event], Worker]) -> None:
    """Do the job from standard input, until further input, or its end, means to leave."""
    # Output of torch or the driver must not mix with our lines.
    speech = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("900")

    def send(event: str, **facts: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone, and so is the input: we exit soon
            speech.write(json.dumps({"event": event, **facts}) + "\n")

    if not (line := sys.stdin.readline()):
        return  # the card was found to be in use while torch was loading
    job, stop = WorkerJob(**json.loads(line)), threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    worker = make_worker(job, send, stop)
    outcome, why, facts = "done", "", {}
    try:
        worker.run()
    except Leave as leave:
        outcome, why, facts = "left", str(leave), leave.facts
    except torch.OutOfMemoryError as error:
        outcome, why = "refused", first_line(error)
    except RuntimeError as error:  # a driver error: this context is lost, and the process must end
        outcome, why = "broken", first_line(error)
    with contextlib.suppress(RuntimeError):
        worker.let_go()
    send("end", outcome=outcome, why=why, facts=facts, phase=worker.phase, verified=worker.verified)
