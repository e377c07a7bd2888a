"""Cards under test by one of our runs, which fills them completely, so that warnings are suppressed.

No one else can suppress a daemon's warnings. A run is proven only by the kernel: who holds the card's lock exclusively
(device and inode of that file), whose process that is, and that the worker named in its note is its living child.
``wslgpud.sources.identity.Trust`` defines trusted users; this daemon's own configuration and clock limit the time of a
test.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from wslgpud.active_runs.note_reader import RunNotes
from wslgpud.active_runs.notes import Noted
from wslgpud.config import Stress
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import Observation
from wslgpud.sources.identity import Identity, identity
from wslgpud.stress.lock import PLACES, GpuLock, ended, locks
from wslgpud.words import Fact, Message, say

log = logging.getLogger(__name__)

#: After the worker's end, NVML may show its memory in use for a while; see ``stress_run.py``.
GIVING_BACK_SECONDS = 7.0
#: A run writes its note right after it has taken the lock.
UNPROVEN_SECONDS = 3.0
#: Interval of reading /proc/locks while no note announces a test and no lock is held exclusively: each read waits for
#: all processors (``locks_start`` in Linux' fs/locks.c), which took 8 ms of each tick.
LOOK_SECONDS = 5.0
#: A process that takes a lock repeatedly must not fill the log.
SAY_AGAIN_SECONDS = 60.0


@dataclass(frozen=True)
class Holding:
    pid: int  # of the process that took it, which may have ended and passed it on
    run: Identity | None = None  # that process, if it exists
    trusted: bool = False  # runs of its user count
    claims_card: bool = False  # its own note says that it tests this card
    worker: Identity | None = None  # the worker named in the note, if it is its living child

    @property
    def ours(self) -> bool:
        return self.trusted and self.claims_card


@dataclass(frozen=True)
class LockHolder:
    """A lock that prevents runs but does not suppress warnings."""

    gpu: int
    path: str
    pid: int  # of the process that took it
    program: str  # empty where that process has ended and passed the lock on
    user: str
    note: Message  # the full text, with the remedy


def complaint(gpu: int, path: str, holding: Holding, user: str, limit_seconds: float) -> LockHolder:
    program = holding.run.name if holding.run else ""
    who = say("{program} (pid {pid}, user {user})", program=program, pid=holding.pid, user=user)
    lock: dict[str, Fact] = {"gpu": gpu, "path": path, "who": who if program else ended(holding.pid)}
    if holding.ours:
        note = say(
            "GPU {gpu}: its lock {path} is held by {who} for longer than a test may take ({limit_seconds}):"
            " VRAM warnings are active again",
            **lock,
            limit_seconds=limit_seconds,
        )
    elif holding.claims_card:
        note = say(
            "GPU {gpu}: its lock {path} is held by {who}, a test by a user whom this daemon does not trust:"
            " VRAM warnings continue; the service trusts root and the members of its group",
            **lock,
        )
    else:
        note = say(
            "GPU {gpu}: its lock {path} is held by {who}, which is no stress run: VRAM warnings continue;"
            " a training should hold it shared: {command}",
            **lock,
            command=f"flock -s {path}",
        )
    return LockHolder(gpu, path, holding.pid, program, user, note)


@dataclass
class _Seen:
    """The history of an exclusively held lock: holder (pid and start) and since when, and the same of its worker."""

    holder: tuple[int, int]
    since_mono: float
    worker: tuple[int, int] | None = None
    worker_since_mono: float = 0.0
    worker_last_mono: float = 0.0
    complaint: LockHolder | None = None


class CardsUnderTest:
    """Follows the locks of the cards, at every tick. Not thread-safe."""

    def __init__(self, host: Host, settings: Stress, notes: RunNotes) -> None:
        self._host, self._notes = host, notes
        self._limit_seconds = settings.deadline_seconds + settings.soak_seconds
        self._seen: dict[str, _Seen] = {}
        self._warned: dict[str, float] = {}
        self._looked_mono = float("-inf")
        self._locks: dict[int, tuple[GpuLock, ...]] = {}

    @property
    def held(self) -> list[LockHolder]:
        """Locks held exclusively by other programs than our tests, as of the last tick."""
        return [seen.complaint for seen in self._seen.values() if seen.complaint]

    def untested(self, observation: Observation, notes: Iterable[Noted]) -> Observation:
        """Return an observation without the cards under test; ``notes`` describe what is running."""
        if self._host.recorded or not observation.gpus:
            return observation
        expected = bool(self._seen) or any(note.document["kind"] == "stress" for note in notes)
        if not expected and self._host.clock.mono() - self._looked_mono < LOOK_SECONDS:
            return observation
        tested = self.look(card.index for card in observation.gpus)
        gpus = tuple(card for card in observation.gpus if card.index not in tested)
        return replace(observation, gpus=gpus) if tested else observation

    def look(self, gpus: Iterable[int]) -> set[int]:
        """Return which of these cards are under a proven test of ours within its time limit."""
        now, before, tested_gpus = self._host.clock.mono(), self._seen, set()
        self._looked_mono, self._seen = now, {}
        for gpu, path, holding in self._holdings(gpus):
            seen = self._seen[path] = self._followed(before.get(path), holding, now)
            proven = holding.ours and seen.worker is not None
            fresh = now - seen.worker_last_mono <= GIVING_BACK_SECONDS
            tested = proven and fresh and now - seen.worker_since_mono <= self._limit_seconds
            if tested:
                tested_gpus.add(gpu)
            if tested or (not proven and (holding.ours or now - seen.since_mono < UNPROVEN_SECONDS)):
                seen.complaint = None
            elif seen.complaint is None:
                seen.complaint = complaint(gpu, path, holding, self._user(holding), self._limit_seconds)
                if now - self._warned.get(path, -SAY_AGAIN_SECONDS) >= SAY_AGAIN_SECONDS:
                    self._warned[path] = now
                    log.warning("%s", seen.complaint.note)
        return tested_gpus

    def _followed(self, before: _Seen | None, holding: Holding, now: float) -> _Seen:
        holder = holding.pid, holding.run.start_ticks if holding.run else 0
        seen = before if before is not None and before.holder == holder else _Seen(holder, now)
        if holding.ours and holding.worker is not None:
            worker = holding.worker.pid, holding.worker.start_ticks
            if seen.worker != worker:
                seen.worker, seen.worker_since_mono = worker, now
            seen.worker_last_mono = now
        return seen

    def _holdings(self, gpus: Iterable[int]) -> Iterator[tuple[int, str, Holding]]:
        files = [(gpu, lock) for gpu in gpus for lock in self._locks_of(gpu)]
        text = locks(self._host) if any(lock.file() for _, lock in files) else ""
        for gpu, lock in files:
            for entry in lock.entries(text):
                if entry.alone and not entry.waits:
                    yield gpu, str(lock.path), self._holding(gpu, entry.pid)

    def _locks_of(self, gpu: int) -> tuple[GpuLock, ...]:
        if gpu not in self._locks:  # cached: building the paths takes longer than looking at them
            self._locks[gpu] = tuple(GpuLock(gpu, self._host.path(place)) for place in PLACES)
        return self._locks[gpu]

    def _holding(self, gpu: int, pid: int) -> Holding:
        run, note, worker = identity(self._host, pid), self._notes.of("stress", pid), None
        if note is not None and isinstance(number := note.document.get("worker_pid"), int):
            worker = identity(self._host, number)
        at_work = worker is not None and worker.alive and worker.parent == pid
        claims_card = note is not None and note.who == run and note.document.get("gpu") == gpu
        trusted = run is not None and self._notes.trust.covers(run)
        return Holding(pid, run, trusted, claims_card, worker if at_work else None)

    def _user(self, holding: Holding) -> str:
        """Return a process's user by name if it is a local one: a directory service may hang."""
        uids = {str(uid) for uid in holding.run.uids} if holding.run else set()
        try:
            rows = [line.split(":") for line in self._host.head("/etc/passwd", 1 << 20).splitlines()]
        except (NoData, SourceError):
            rows = []
        return ", ".join(sorted(row[0] for row in rows if len(row) > 2 and row[2] in uids)) or "/".join(sorted(uids))
