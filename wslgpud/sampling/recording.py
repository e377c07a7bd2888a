"""What the risk engine is given: recorded as ``wslgpud replay`` reads it, or replayed from the history."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from wslgpud.risk import trace
from wslgpud.risk.replay import Replay, replay
from wslgpud.sampling.observation import observations
from wslgpud.sampling.pipeline import SamplingPipeline
from wslgpud.store import Reader, shown
from wslgpud.words import MessageError


class NoSamplesError(MessageError):
    """The history has none between these moments."""


def lines(pipeline: SamplingPipeline, interval_seconds: float, seconds: float) -> Iterator[str]:
    """Sample for so long, and yield the header of a trace, then a line for each sample."""
    end, wait, first = time.monotonic() + seconds, threading.Event(), None
    while (began := time.monotonic()) < end:
        state, _ = pipeline.tick()
        seen = state.observation
        if first is None:
            first = seen.t
            yield json.dumps(trace.header(interval_seconds, {"wsl": seen.wsl})) + "\n"
        yield json.dumps(trace.row_from_observation(replace(seen, t=seen.t - first)), separators=(",", ":")) + "\n"
        wait.wait(max(0.0, min(began + pipeline.delay_seconds, end) - time.monotonic()))


def replayed(database: str, start_wall: float, end_wall: float) -> Replay:
    """Run the engine over the history between two moments. Raises NoSamplesError."""
    with Reader(database) as reader:
        seen = observations(reader, start_wall, end_wall)
        result = replay("history", (replace(one, t=one.t - start_wall) for one in seen))
    if not result.samples:
        raise NoSamplesError("{database} holds no samples between these moments", database=shown(database))
    result.start_wall = start_wall
    return result
