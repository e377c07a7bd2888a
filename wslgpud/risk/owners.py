"""Whose memory it is: peaks that did no harm make a growth doubtful only where its owner made them. Pure.

An owner is a user's program, or all programs of a user together where no single one accounts for a growth. Owners are
known by uid, which the kernel tells; a name alone proves nothing. Each owner's own memory is followed, not the
resource's: another user's runs can only leave less of it, which makes a growth more credible. Memory without an owner
(tmpfs, slab, unmapped files), and processes whose user is unknown, earn nothing.

Recordings name no users. Until an observation names one, everything is taken for one user's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from wslgpud.model import Observation, ProcessSample
from wslgpud.risk.attribution import SNAPSHOT_SECONDS, thin
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
