"""The worker's side of the conversation with its parent, see ``README.md`` beside this folder."""

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
    """Do the job that comes by standard input, until more of it, or its end, tells to leave."""
    # Whatever torch or the driver print must not end up between our lines.
    speech = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("900")

    def send(event: str, **facts: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone: so is the input, and we end soon
            speech.write(json.dumps({"event": event, **facts}) + "\n")

    if not (line := sys.stdin.readline()):
        return  # while torch was being loaded it has turned out that the card is in use
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
    except RuntimeError as error:  # of the driver: this context is lost, and the process must end
        outcome, why = "broken", first_line(error)
    with contextlib.suppress(RuntimeError):
        worker.let_go()
    send("end", outcome=outcome, why=why, facts=facts, phase=worker.phase, verified=worker.verified)
