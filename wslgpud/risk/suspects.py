"""Who probably takes a card's memory where its driver does not say: under WSL2, never. Pure.

There is what Linux knows of the processes that hold the GPU. Two things tell, as measured on programs of which one
took ever more of a card (``python -m tests.bench.bench_suspects``): that a process came while the card filled, and that
it works much more or much less than before. What one would rather think of (RAM that grows, page faults, pinned
memory, the share of the work) was no better than chance: other programs load data, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wslgpud.model import GpuSample, Observation, ProcessSample

MOST_LOOKS, MOST_SUSPECTS = 40, 32
#: over less time the list of processes, which is read every few seconds, has hardly changed
SHORTEST_SECONDS = 10.0
#: length of the time before, with which a process is compared; less is not compared
BEFORE_SECONDS, FEWEST_SECONDS = 60.0, 3.0
#: a program that comes so shortly before the growth has only loaded its libraries
LOADING_SECONDS = 10.0
#: of a processor core: less is as good as nothing
IDLE = 0.02

_Key = tuple[int, int]


class Clues(NamedTuple):
    """Evidence against one process, over the time in which the card filled; shares are of all suspects together."""

    new: float  # 1: came meanwhile, or just before
    changed: float  # works more or less than before, in orders of magnitude, up to 2
    noted: float  # 1: guard runs it, and it uses this card
    working: float = 0.0  # share of their processor time
    grown: float = 0.0  # share of their growth in RAM and swap
    faults: float = 0.0  # share of the pages that they were given
    pinned: float = 0.0  # share of what they have pinned since
    training: float = 0.0  # 1: has a training framework loaded


#: fitted to all kinds of growth that were recorded but one, and as good on that one; not measured: ``noted``
WEIGHTS = Clues(3.4, 2.7, 1.0)
#: what speaks for somebody else, a program of Windows say: as much as for a process without any clue
UNKNOWN = 0.0


class Suspect(NamedTuple):
    """A process, how likely it is the one (0 to 1), and among how many."""

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
    """Return the processes that may hold memory of the card: who has its device open, or is listed by the driver."""
    listed = {process.pid for process in gpu.processes if process.pid}
    return [p for p in now.processes if "gpu" in p.roles or p.pid in listed][:MOST_SUSPECTS]


def _work(process: ProcessSample) -> _Work:
    faults, pinned = process.faults_total or 0, process.pinned_bytes or 0
    return _Work(process.cpu_seconds or 0.0, process.held_bytes, faults, pinned)


class CardSuspects:
    """Remembers what the processes of one card have done."""

    def __init__(self) -> None:
        self._looks: list[_Look] = []
        self._processes: Sequence[ProcessSample] = ()

    def push(self, now: Observation, gpu: GpuSample) -> None:
        """Remember one list of processes; one that has not been read anew tells nothing."""
        if now.processes is self._processes:
            return
        self._processes = now.processes
        work = {process.key: _work(process) for process in _suspects(now, gpu)}
        if not self._looks or work != self._looks[-1].work:
            self._looks.append(_Look(now.t, work))
            del self._looks[:-MOST_LOOKS]

    def clues(self, now: Observation, gpu: GpuSample, window: float) -> list[tuple[ProcessSample, Clues]]:
        """Return what speaks for each suspect, over the time in which the card has filled."""
        found = _suspects(now, gpu)
        if not self._looks:
            return []
        start = now.t - max(window, SHORTEST_SECONDS)
        before = next((look for look in reversed(self._looks) if look.t <= start), self._looks[0])
        earlier = next((look for look in reversed(self._looks) if look.t <= before.t - LOADING_SECONDS), self._looks[0])
        seconds = max(1.0, now.t - before.t)
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
            changed = self._change(process.key, before, did[0] / seconds)
            training = float("training" in process.roles)
            clues.append(Clues(float(new), changed, float(process.pid in noted), cpu, held, faults, pinned, training))
        return list(zip(found, clues, strict=True))

    def _change(self, key: _Key, until: _Look, rate: float) -> float:
        """Return by how many orders of magnitude a process works more or less than before; 0 where that is unknown."""
        seen = (look for look in self._looks if key in look.work and until.t - look.t <= BEFORE_SECONDS)
        first = next(seen, until)
        if until.t - first.t < FEWEST_SECONDS or key not in until.work:
            return 0.0
        before = (until.work[key].cpu - first.work[key].cpu) / (until.t - first.t)
        return min(2.0, abs(math.log10((rate + IDLE) / (max(0.0, before) + IDLE))))

    def likeliest(self, now: Observation, gpu: GpuSample, window: float) -> Suspect | None:
        """Return who is likeliest to have taken what the card has lost over the last ``window`` seconds."""
        clues = self.clues(now, gpu, window)
        if not clues:
            return None
        odds = chances([clue for _, clue in clues])
        best = max(range(len(odds)), key=odds.__getitem__)
        return Suspect(clues[best][0], odds[best], len(clues))


def chances(clues: Sequence[Clues], weights: Clues = WEIGHTS, unknown: float = UNKNOWN) -> list[float]:
    """Return how likely each of them is the one, 0 to 1; what is missing to 1 is the chance of somebody unknown."""
    strengths = [math.exp(sum(w * c for w, c in zip(weights, clue, strict=True))) for clue in clues]
    whole = sum(strengths) + math.exp(unknown)
    return [strength / whole for strength in strengths]
