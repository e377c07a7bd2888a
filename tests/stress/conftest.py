from __future__ import annotations

import importlib.util
import threading

import pytest

from tests.stress.support import gpu
from wslgpud.stress.result import Frame, WorkerOutput, digest
from wslgpud.stress.stress_run import PASSES

MIB = 1 << 20
#: some 48 MiB in six chunks; the whole battery takes a third of a second
SMALL = {
    "device": "cpu",
    "cpu_bytes": 56 * MIB,
    "reserve": 4 * MIB,
    "chunk": 8 * MIB,
    "scratch": 2 * MIB,
    "passes": PASSES["nightly"],
    "repeats": 2,
    "retention_seconds": 0.01,
    "slow_ratio": 0.0,
    "seed": 7,
}


@pytest.fixture(scope="session")
def faulty():
    """The worker with faults planted, in this process; only where torch is."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: pip install torch==2.13.0 into .venv-test to run the stress worker")
    from tests.stress import faulty_worker  # loads torch

    return faulty_worker


class Done:
    """The output of a run."""

    def __init__(self, lines, left):
        self.lines, self.left = lines, left

    def of(self, event):
        return [line for line in self.lines if line["event"] == event]

    @property
    def result(self):
        end = {"event": "end", "outcome": "left" if self.left else "done", "why": "", **self.left}
        return digest(WorkerOutput([*self.lines, end]), Frame(1.0, gpu(), {}))


@pytest.fixture
def run(faulty):
    """Run the whole worker on the CPU, with faults planted."""

    def do(faults=None, stop=None, **job):
        lines = []
        worker = faulty.Faulty(
            faulty.card.WorkerJob(**SMALL | job),
            lambda event, **facts: lines.append({"event": event, **facts}),
            stop or threading.Event(),
        )
        worker.faults = faults or {}
        left = {}
        try:
            worker.run()
        except faulty.card.Leave as leave:
            left = {"why": str(leave), "facts": leave.facts}
        worker.let_go()
        assert worker.own_bytes() == 0
        return Done(lines, left)

    return do
