"""Who probably takes a card's memory where the driver does not say, as under WSL2. Pure.

The evidence is what Linux knows of the processes that hold the GPU. Measured on programs of which one took more and
more of a card (``python -m tests.bench.bench_suspects``), two clues work: a process appeared while the card filled, or
it works much more or much less than before. The more obvious ones (growing RAM, page faults, pinned memory, the share
of CPU time) were no better than chance: other programs load data, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wslgpud.model import GpuSample, Observation, ProcessSample

MAX_LOOKS, MAX_SUSPECTS = 40, 32
#: shortest window: the list of processes is read only every few seconds
MIN_WINDOW_SECONDS = 10.0
#: length of the earlier window that a process is compared with; it must be complete
BEFORE_SECONDS, MIN_BEFORE_SECONDS = 60.0, 3.0
#: a program that appears this shortly before the growth has only loaded its libraries
LOADING_SECONDS = 10.0
#: share of a processor core below which a process counts as idle
IDLE = 0.02

_Key = tuple[int, int]


class Clues(NamedTuple):
    """Evidence against one process, while the card filled."""

    new: float  # 1: appeared meanwhile, or just before
    changed: float  # change of CPU use, in orders of magnitude, up to 2
    noted: float  # 1: run by guard, and uses this card


#: fitted to all recorded kinds of growth but one, and as good on that one; ``noted`` was not measured
WEIGHTS = Clues(3.4, 2.7, 1.0)
#: weight of an unknown culprit, such as a Windows program: that of a process without any clue
UNKNOWN = 0.0


class Suspect(NamedTuple):
    """A process, its probability (0 to 1), and the number of suspects."""

    process: ProcessSample
    chance: float
    among: int


class _Look(NamedTuple):
    t: float
    cpu_seconds: Mapping[_Key, float]


def _suspects(now: Observation, gpu: GpuSample) -> list[ProcessSample]:
    """Return the processes that may hold an unknown part of the card: its device is open, or the driver lists them."""
    listed = {process.pid for process in gpu.processes}
    measured = {process.pid for process in gpu.processes if process.used_bytes is not None}
    may_hold = (p for p in now.processes if "gpu" in p.roles or p.pid in listed)
    return [p for p in may_hold if p.pid not in measured][:MAX_SUSPECTS]


class CardSuspects:
    """Keeps the activity of the processes on one card."""

    def __init__(self) -> None:
        self._looks: list[_Look] = []
        self._processes: Sequence[ProcessSample] = ()

    def push(self, now: Observation, gpu: GpuSample) -> None:
        """Record a list of processes; ignore one that has not been read afresh."""
        if now.processes is self._processes:
            return
        self._processes = now.processes
        cpu_seconds = {process.key: process.cpu_seconds or 0.0 for process in _suspects(now, gpu)}
        if not self._looks or cpu_seconds != self._looks[-1].cpu_seconds:
            self._looks.append(_Look(now.t, cpu_seconds))
            del self._looks[:-MAX_LOOKS]

    def clues(self, now: Observation, gpu: GpuSample, window: float) -> list[tuple[ProcessSample, Clues]]:
        """Return the clues for each suspect, over the time in which the card has filled."""
        if not self._looks:
            return []
        start = now.t - max(window, MIN_WINDOW_SECONDS)
        before = next((look for look in reversed(self._looks) if look.t <= start), self._looks[0])
        earlier = next((look for look in reversed(self._looks) if look.t <= before.t - LOADING_SECONDS), self._looks[0])
        noted = {pid for one in now.expected if one.resource == gpu.uuid for pid in one.pids}
        found = []
        for process in _suspects(now, gpu):
            new = process.key not in earlier.cpu_seconds and earlier.t < now.t
            changed = self._change(process, before, now.t)
            found.append((process, Clues(float(new), changed, float(process.pid in noted))))
        return found

    def _change(self, process: ProcessSample, until: _Look, t: float) -> float:
        """Return the change of a process's CPU use since ``until``, in orders of magnitude; 0 where unknown."""
        key = process.key
        seen = (look for look in self._looks if key in look.cpu_seconds and until.t - look.t <= BEFORE_SECONDS)
        first = next(seen, until)
        if until.t - first.t < MIN_BEFORE_SECONDS or key not in until.cpu_seconds:
            return 0.0
        before = (until.cpu_seconds[key] - first.cpu_seconds[key]) / (until.t - first.t)
        rate = ((process.cpu_seconds or 0.0) - until.cpu_seconds[key]) / (t - until.t)
        return min(2.0, abs(math.log10((max(0.0, rate) + IDLE) / (max(0.0, before) + IDLE))))

    def likeliest(self, now: Observation, gpu: GpuSample, window: float) -> Suspect | None:
        """Return the likeliest culprit for the card's loss over the last ``window`` seconds."""
        clues = self.clues(now, gpu, window)
        if not clues:
            return None
        odds = chances([clue for _, clue in clues])
        best = max(range(len(odds)), key=odds.__getitem__)
        return Suspect(clues[best][0], odds[best], len(clues))


def chances(clues: Sequence[Clues], weights: Clues = WEIGHTS, unknown: float = UNKNOWN) -> list[float]:
    """Return the probability of each, 0 to 1; the rest to 1 is that of an unknown culprit."""
    strengths = [math.exp(sum(w * c for w, c in zip(weights, clue, strict=True))) for clue in clues]
    whole = sum(strengths) + math.exp(unknown)
    return [strength / whole for strength in strengths]
