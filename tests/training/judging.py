"""Judges a training from inside (after each step) and from outside (as any monitor sees it)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from wslgpud.alerts.rules import rule_named
from wslgpud.model import GpuSample, Level, Observation, RamState
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.training_metrics import StepBlock, step_growth
from wslgpud.training.companion import Floors

WATCHED = Path(__file__).parent / "watched.py"
STEP_SECONDS = 2.0
#: programs that leak host memory, on whatever device they compute
ON_HOST = frozenset({"losses_logged", "lists_in_workers"})
PATIENCE_SECONDS = 600.0
_WARNS = next(step.value for step in rule_named("training_leak").thresholds if step.level == Level.WARNING)


class Seen(NamedTuple):
    """After a step: what is in use, the peak so far, and what the outside sees; bytes."""

    used: int
    peak: int
    outside: int


class Verdict(NamedTuple):
    """The steps after which a training was first named and warned of from inside, and warned of from outside."""

    named: int | None
    warned: int | None
    outside: int | None


def watched(python: str, name: str, steps: int, device: str = "cpu") -> list[Seen]:
    """Run a program with the companion in a Python that has torch."""
    memory = "ram" if device == "cpu" or name in ON_HOST else "card"
    command = [python, str(WATCHED), name, str(steps), device, memory]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr[-2000:]
    return [Seen(*row) for row in json.loads(done.stdout.splitlines()[-1])]


def judge(rows: Sequence[Seen], room_bytes: int) -> Verdict:
    """Judge a training that begins with so much room."""
    end = rows[0].outside + room_bytes
    inside = list(_inside(rows, end))
    named = next((step for step, _ in inside), None)
    warned = next((step for step, share in inside if share >= _WARNS), None)
    return Verdict(named, warned, _outside(rows, end))


def _inside(rows: Sequence[Seen], end: int) -> Iterator[tuple[int, float]]:
    floors = Floors()
    for step, seen in enumerate(rows, 1):
        floors.add(step, seen.used, seen.peak)
        if growth := step_growth([[StepBlock(*block) for block in blocks] for blocks in floors.scales]):
            room = max(0, end - seen.outside) + max(0, seen.outside - max(seen.used, seen.peak))
            yield step, growth.grown_bytes / (growth.grown_bytes + room)


def _outside(rows: Sequence[Seen], end: int) -> int | None:
    engine = RiskEngine()
    for step, seen in enumerate(rows, 1):
        left = max(0, end - seen.outside)
        if rows[0].peak:
            card = GpuSample(0, "GPU-1", "card", total_bytes=end, used_bytes=seen.outside, free_bytes=left)
            observation = Observation(step * STEP_SECONDS, gpus=(card,))
        else:
            observation = Observation(step * STEP_SECONDS, ram=RamState(end, left))
        if any(f.level >= Level.WARNING for f in engine.observe(observation).forecasts):
            return step
    return None
