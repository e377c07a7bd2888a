"""Whose memory it is: owners, whose harmless peaks make only their own growth doubtful, and suspects. Pure.

An owner is a user's program, or all programs of a user together where no single one accounts for a growth. Owners are
known by uid, which the kernel tells; a name alone proves nothing. Each owner's own memory is followed, not the
resource's: another user's runs can only leave less of it, which makes a growth more credible. Memory without an owner
(tmpfs, slab, unmapped files), and processes whose user is unknown, earn nothing.

Recordings name no users. Until an observation names one, everything is taken for one user's.

Where the driver does not say who takes a card's memory, as under WSL2, the evidence is what Linux knows of the
processes that hold the GPU. Measured on programs of which one took more and more of a card (``python -m
tests.bench.bench_suspects``), two clues work: a process appeared while the card filled, or it works much more or much
less than before. The more obvious ones (growing RAM, page faults, pinned memory, the share of CPU time) were no better
than chance: other programs load data, too.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from wslgpud.model import GpuSample, Observation, ProcessSample
from wslgpud.risk.growth import Peaks
from wslgpud.risk.headroom import WINDOWS, Room

#: Share of a growth that its owner accounts for; the rest is what the list of processes does not show.
MADE = 0.75
#: A fall of an owner's memory counts if the resource's use falls by at least this share of it: a process may also
#: vanish from the list of the biggest, or its file pages be reclaimed.
FREED = 0.5
#: Programs of one user, and owners altogether, whose peaks are remembered.
MAX_PROGRAMS, MAX_OWNERS = 8, 64
#: Accounts of people begin here; below are those of services. The other is nobody's.
_FIRST_PERSON, _NOBODY = 1000, 65534

#: Placeholder of the script in an interpreter's command line without one.
_ANYTHING = {"", "-c", "-"}


#: Rows that a history keeps, and the newest of them, of which none is dropped; and the time between two.
MAX_SNAPSHOTS, NEWEST_KEPT, SNAPSHOT_SECONDS = 40, 10, 1.9


def thin(history: list[Any]) -> bool:
    """Drop the most dispensable of too many rows (t, ...), whose neighbours are close for its age; was there one?"""
    if len(history) <= MAX_SNAPSHOTS:
        return False
    now, old = history[-1][0], list(map(itemgetter(0), history[: 1 - NEWEST_KEPT]))
    worths = [(after - before) / (now - t) for before, t, after in zip(old, old[1:], old[2:], strict=False)]
    del history[1 + worths.index(min(worths))]
    return True


class Owner(NamedTuple):
    """A user's program; ``program`` is empty for all of the user's together."""

    uid: int | None
    program: str

    @property
    def is_command(self) -> bool:
        """Return whether the program has a script, a subject: a mere name is kept without blanks."""
        return " " in self.program


@lru_cache(maxsize=1024)
def owner_of(uid: int | None, command: str, name: str) -> Owner:
    """Return the user and the program with its script; its name where the command line names nothing specific.

    Remembered, as each list of processes asks for the same ones again.
    """
    program, _, subject = command.partition(" ")
    return Owner(uid, name.replace(" ", "_") if subject in _ANYTHING else f"{program} {subject}")


class Holders:
    """Who holds how much of each resource, by the newest list of processes.

    ``known`` says that processes name their users. ``fresh`` says that the list has just been read.
    """

    def __init__(self, *, known: bool) -> None:
        self.known, self.fresh = known, False
        self._processes: tuple[ProcessSample, ...] = ()
        self._by_pid: dict[int, Owner] = {}
        self._ram: dict[Owner, int] | None = None
        self._now = Observation(0.0)

    def push(self, now: Observation) -> None:
        """Take the next sample; an empty list of processes means unknown."""
        self._now = now
        self.fresh = bool(now.processes) and now.processes is not self._processes
        if self.fresh:
            self._processes, self._ram = now.processes, None
            self.known = self.known or any(process.uid is not None for process in now.processes)

    def listed(self) -> tuple[Mapping[int, Owner], Mapping[Owner, int]]:
        """Return the owner of each process by pid, and the RAM of each owner in bytes.

        A list is looked through when that is asked, and once. Without any user, all are one unknown user's.
        """
        if self._ram is None:
            self._ram = defaultdict(int)
            # The list shows the biggest; a program on a card stays known while the driver lists it.
            on_cards = {program.pid for gpu in self._now.gpus for program in gpu.processes}
            self._by_pid = {pid: self._by_pid[pid] for pid in on_cards & self._by_pid.keys()}
            for process in self._processes:
                if process.uid is not None or not self.known:
                    owner = self._by_pid[process.pid] = owner_of(process.uid, process.command, process.name)
                    self._ram[owner] += process.rss_bytes + process.swap_bytes
        return self._by_pid, self._ram

    def of(self, room: Room) -> Mapping[Owner, int] | None:
        """Return the bytes of a resource by owner; None where nothing new is known."""
        if not self.known:
            return None
        measured = room.gpu is not None and any(program.used_bytes is not None for program in room.gpu.processes)
        if room.key == WINDOWS or (room.gpu is not None and self._now.wsl and not measured):
            owner = self._only_person() if self.fresh else None
            return None if owner is None else {owner: room.capacity - room.headroom}
        if room.gpu is None and not self.fresh:
            return None
        owners, ram = self.listed()
        parts = ram if room.key == "ram" else self._parts(room, owners)
        users: dict[int | None, int] = defaultdict(int)
        for owner, size in parts.items():
            users[owner.uid] += size
        return {**parts, **{Owner(uid, ""): size for uid, size in users.items()}}

    def _parts(self, room: Room, owners: Mapping[int, Owner]) -> Mapping[Owner, int]:
        """Return the bytes that each owner's processes hold on a card, or in a group."""
        if room.gpu is not None:
            sizes = [(program.pid, program.used_bytes or 0) for program in room.gpu.processes]
        else:
            group = room.key.removeprefix("cgroup:")
            sizes = [(process.pid, process.held_bytes) for process in self._processes if process.within(group)]
        parts: dict[Owner, int] = defaultdict(int)
        for pid, size in sizes:
            if pid in owners:
                parts[owners[pid]] += size
        return parts

    def _only_person(self) -> Owner | None:
        """Return the one person who uses this machine; None where there are several.

        Where nothing tells whose VRAM it is, nor Windows whose RAM. Root counts for anybody.
        """
        people = {p.uid for p in self._processes if "gpu" in p.roles or _is_person(p.uid)} - {0}
        return Owner(next(iter(people), 0), "") if len(people) <= 1 and None not in people else None


def _is_person(uid: int | None) -> bool:
    return uid is not None and uid >= _FIRST_PERSON and uid != _NOBODY


class _Shares(NamedTuple):
    t: float
    used: float
    held: Mapping[Owner, float]


@dataclass(slots=True)
class _Own:
    """An owner's peaks; their memory and the resource's use when it was last at its highest."""

    peaks: Peaks
    high: float = 0.0
    used: float = 0.0


class OwnedPeaks:
    """The harmless peaks of each owner's part of one resource. Shares are of its capacity."""

    def __init__(self, swing: float, memory_seconds: float) -> None:
        """Take the fall that ends an excursion and how long its peak is remembered."""
        self._swing, self._memory = swing, memory_seconds
        self._own: dict[Owner, _Own] = {}
        self._looks: list[_Shares] = []
        self._growers: dict[float, Owner | None] = {}  # by the time of the earlier look

    @property
    def any(self) -> bool:
        """Return whether a peak of any owner is remembered."""
        return any(own.peaks.any for own in self._own.values())

    def due(self, t: float) -> bool:
        """Return whether it is time to record again: every other second."""
        return not self._looks or t - self._looks[-1].t >= SNAPSHOT_SECONDS

    def push(self, t: float, used: float, held: Mapping[Owner, float]) -> None:
        """Record who holds which share now."""
        self._looks.append(_Shares(t, used, held))
        self._growers.clear()
        thin(self._looks)
        for owner, share in held.items():
            if share >= self._swing:
                self._follow(owner)
        for owner, own in self._own.items():
            share = held.get(owner, 0.0)
            if share >= own.high or used <= own.used - FREED * (own.high - share):
                own.peaks.push(t, share)
                own.high, own.used = share, used

    def _follow(self, owner: Owner) -> None:
        """Keep an owner as the newest; forget the oldest of a user with too many programs, or of all."""
        if own := self._own.pop(owner, None):
            self._own[owner] = own
            return
        self._own[owner] = _Own(Peaks(self._swing, self._memory))
        same = [one for one in self._own if one.uid == owner.uid]
        if len(same) > MAX_PROGRAMS:
            del self._own[same[0]]
        elif len(self._own) > MAX_OWNERS:
            del self._own[next(iter(self._own))]

    def grower(self, since: float) -> Owner | None:
        """Return the owner that accounts for the growth since then; None where nobody does."""
        if len(self._looks) < 2:
            return None
        before = self._looks[max(0, bisect_right(self._looks, since, hi=len(self._looks) - 1, key=itemgetter(0)) - 1)]
        if before.t not in self._growers:
            self._growers[before.t] = self._grower(self._looks[-1], before)
        return self._growers[before.t]

    @staticmethod
    def _grower(now: _Shares, before: _Shares) -> Owner | None:
        least, held = max(MADE * (now.used - before.used), 1e-9), before.held.get
        grown = [
            (bool(owner.program), gain, owner)
            for owner, share in now.held.items()
            if share >= least and (gain := share - held(owner, 0.0)) >= least
        ]
        return max(grown, key=itemgetter(0, 1), default=(False, 0.0, None))[2]

    def doubt(self, owner: Owner, height: float, since: float) -> float:
        """Return how many peaks of an owner reached its part of ``height``; see ``Peaks.doubt``."""
        own, now = self._own.get(owner), self._looks[-1]
        return 0.0 if own is None else own.peaks.doubt(height, since, now.used - now.held.get(owner, 0.0))

    def clear(self) -> None:
        """Forget all peaks: the last one did harm."""
        self._own.clear()

    def document(self, t: float) -> list[list[Any]]:
        """Return uid, program and [age in seconds, share] of each peak of every owner, to be kept across restarts."""
        return [[*owner, peaks] for owner, own in self._own.items() if (peaks := own.peaks.document(t))]

    def recall(self, t: float, document: Iterable[list[Any]], age_seconds: float) -> None:
        """Take over an earlier run's peaks."""
        for uid, program, peaks in document:
            owner = Owner(uid, program)
            self._follow(owner)
            self._own[owner].peaks.recall(t, ((age + age_seconds, share) for age, share in peaks))


#: of the suspects: lists of processes kept, and processes looked at
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


def _on_card(now: Observation, gpu: GpuSample) -> list[ProcessSample]:
    """Return the processes that may hold a part of the card: its device is open, or the driver lists them."""
    listed = {process.pid for process in gpu.processes}
    return [process for process in now.processes if "gpu" in process.roles or process.pid in listed]


def _suspects(now: Observation, gpu: GpuSample) -> list[ProcessSample]:
    """Return the processes that may hold an unknown part of the card."""
    measured = {process.pid for process in gpu.processes if process.used_bytes is not None}
    return [process for process in _on_card(now, gpu) if process.pid not in measured][:MAX_SUSPECTS]


class CardSuspects:
    """Keeps the activity of the processes on one card."""

    def __init__(self) -> None:
        self._looks: list[_Look] = []

    def push(self, now: Observation, gpu: GpuSample) -> None:
        """Record what the processes have done since the last list; an empty one means unknown."""
        cpu_seconds = {process.key: process.cpu_seconds or 0.0 for process in _on_card(now, gpu)}
        if now.processes and (not self._looks or cpu_seconds != self._looks[-1].cpu_seconds):
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
