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

MOST_LOOKS, MOST_SUSPECTS = 40, 32
#: shortest window: the list of processes is read only every few seconds
SHORTEST_SECONDS = 10.0
#: length of the earlier window that a process is compared with; it must be complete
BEFORE_SECONDS, FEWEST_SECONDS = 60.0, 3.0
#: a program that appears this shortly before the growth has only loaded its libraries
LOADING_SECONDS = 10.0
#: share of a processor core below which a process counts as idle
IDLE = 0.02

_Key = tuple[int, int]


class Clues(NamedTuple):
    """Evidence against one process, while the card filled; shares are of all suspects together."""

    new: float  # 1: appeared meanwhile, or just before
    changed: float  # change of CPU use, in orders of magnitude, up to 2
    noted: float  # 1: run by guard, and uses this card
    working: float = 0.0  # share of their CPU time
    grown: float = 0.0  # share of their growth in RAM and swap
    faults: float = 0.0  # share of their page faults
    pinned: float = 0.0  # share of the memory that they have pinned since
    training: float = 0.0  # 1: has a training framework loaded


#: fitted to all recorded kinds of growth but one, and as good on that one; ``noted`` was not measured
WEIGHTS = Clues(3.4, 2.7, 1.0)
#: weight of an unknown culprit, such as a Windows program: that of a process without any clue
UNKNOWN = 0.0


class Suspect(NamedTuple):
    """A process, its probability (0 to 1), and the number of suspects."""

    process: ProcessSample
    chance: float
    among: int


class _Work(NamedTuple):
    """The counters of a process since its start."""

    cpu: float
    held: int
    faults: int
    pinned: int


class _Look(NamedTuple):
    t: float
    work: Mapping[_Key, _Work]


_NOTHING = _Work(0.0, 0, 0, 0)


def _suspects(now: Observation, gpu: GpuSample) -> list[ProcessSample]:
    """Return the processes that may hold memory of the card: those with its device open, or listed by the driver."""
    listed = {process.pid for process in gpu.processes}
    return [p for p in now.processes if "gpu" in p.roles or p.pid in listed][:MOST_SUSPECTS]


def _work(process: ProcessSample) -> _Work:
    faults, pinned = process.faults_total or 0, process.pinned_bytes or 0
    return _Work(process.cpu_seconds or 0.0, process.held_bytes, faults, pinned)


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
        work = {process.key: _work(process) for process in _suspects(now, gpu)}
        if not self._looks or work != self._looks[-1].work:
            self._looks.append(_Look(now.t, work))
            del self._looks[:-MOST_LOOKS]

    def clues(self, now: Observation, gpu: GpuSample, window: float) -> list[tuple[ProcessSample, Clues]]:
        """Return the clues for each suspect, over the time in which the card has filled."""
        found = _suspects(now, gpu)
        if not self._looks:
            return []
        start = now.t - max(window, SHORTEST_SECONDS)
        before = next((look for look in reversed(self._looks) if look.t <= start), self._looks[0])
        earlier = next((look for look in reversed(self._looks) if look.t <= before.t - LOADING_SECONDS), self._looks[0])
        done = []
        for process in found:
            then, now_done = before.work.get(process.key, _NOTHING), _work(process)
            done.append([max(0.0, b - a) for a, b in zip(then, now_done, strict=True)])
        sums = [sum(column) for column in zip(*done, strict=True)]
        noted = {pid for one in now.expected if one.resource == gpu.uuid for pid in one.pids}
        clues = []
        for process, did in zip(found, done, strict=True):
            cpu, held, faults, pinned = (part / whole if whole else 0.0 for part, whole in zip(did, sums, strict=True))
            new = process.key not in earlier.work and earlier.t < now.t
            changed = self._change(process.key, before, did[0], now.t)
            training = float("training" in process.roles)
            clues.append(Clues(float(new), changed, float(process.pid in noted), cpu, held, faults, pinned, training))
        return list(zip(found, clues, strict=True))

    def _change(self, key: _Key, until: _Look, since: float, t: float) -> float:
        """Return the change of a process's CPU use in orders of magnitude; 0 where unknown.

        ``since`` is the CPU time used from ``until`` to ``t``.
        """
        seen = (look for look in self._looks if key in look.work and until.t - look.t <= BEFORE_SECONDS)
        first = next(seen, until)
        if until.t - first.t < FEWEST_SECONDS or key not in until.work:
            return 0.0
        before = (until.work[key].cpu - first.work[key].cpu) / (until.t - first.t)
        rate = since / (t - until.t)
        return min(2.0, abs(math.log10((rate + IDLE) / (max(0.0, before) + IDLE))))

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
