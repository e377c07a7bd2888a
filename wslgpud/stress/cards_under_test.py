"""Which cards a run of ours is testing: it fills them to the brim, and nothing is wrong.

Nobody else can have a daemon look away from a card. A run is proven by what only the kernel says: who holds
the card's lock alone (device and inode of the very file), whose process that is, and that the worker named by
its note is its child and lives. Who is trusted says ``wslgpud.sources.identity.Trust``; how long a test may
take, this daemon's own configuration, on its own clock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from wslgpud.active_runs import RunNotes
from wslgpud.config import Stress
from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import Observation
from wslgpud.sources.identity import Identity, identity
from wslgpud.stress.lock import PLACES, GpuLock, ended, locks
from wslgpud.words import Fact, Message, say

log = logging.getLogger(__name__)

#: Once the worker has ended, its memory may take a while to come back in NVML's view; see ``run.py``.
GIVING_BACK_SECONDS = 7.0
#: A run leaves its note right after it has taken the lock.
UNPROVEN_SECONDS = 3.0
#: Whoever takes a lock again and again does not fill the log.
SAY_AGAIN_SECONDS = 60.0

_Key = tuple[int, int]


@dataclass(frozen=True)
class Holding:
    """A lock that is held alone."""

    pid: int  # of who took it; that process may have ended and left it to another
    run: Identity | None = None  # that process, where it is there
    trusted: bool = False  # runs of its user count
    noted: bool = False  # a note of its own says that it tests this card
    worker: Identity | None = None  # the process that the note names as its worker, where that is there

    @property
    def ours(self) -> bool:
        """Whether a run of ours holds it."""
        return self.run is not None and self.trusted and self.noted

    @property
    def working(self) -> bool:
        """Whether its worker is at work."""
        worker, run = self.worker, self.run
        return worker is not None and run is not None and worker.alive and worker.parent == run.pid


@dataclass(frozen=True)
class Seen:
    """The history of a lock that is held alone: by whom and since when, and the same of its worker."""

    holder: _Key
    since_mono: float
    worker: _Key | None = None
    worker_since_mono: float = 0.0
    worker_last_mono: float = 0.0


def followed(before: Seen | None, holding: Holding, now: float) -> Seen:
    """Return the history after another look."""
    seen = Seen((holding.pid, holding.run.start_ticks if holding.run else 0), now)
    if before is not None and before.holder == seen.holder:
        seen = before
    if holding.ours and holding.working and holding.worker is not None:
        key = holding.worker.pid, holding.worker.start_ticks
        since = seen.worker_since_mono if seen.worker == key else now
        seen = replace(seen, worker=key, worker_since_mono=since, worker_last_mono=now)
    return seen


def tested(seen: Seen, holding: Holding, now: float, limit_seconds: float) -> bool:
    """Tell whether the card is under a proven test of ours, which has not gone on for longer than one may."""
    fresh = now - seen.worker_last_mono <= GIVING_BACK_SECONDS and now - seen.worker_since_mono <= limit_seconds
    return holding.ours and seen.worker is not None and fresh


@dataclass(frozen=True)
class LockHolder:
    """A lock that keeps runs away, and no warnings."""

    gpu: int
    path: str
    pid: int  # of who took it
    program: str  # empty where that process has ended and left the lock to another
    user: str
    note: Message  # all of it, and what to do


def complaint(gpu: int, path: str, holding: Holding, user: str, limit_seconds: float) -> LockHolder:
    """Say that a lock is held by no test that counts."""
    program = holding.run.name if holding.run else ""
    who = say("{program} (pid {pid}, user {user})", program=program, pid=holding.pid, user=user)
    lock: dict[str, Fact] = {"gpu": gpu, "path": path, "who": who if program else ended(holding.pid)}
    if holding.ours:
        note = say(
            "GPU {gpu}: its lock {path} is held by {who} for longer than a test may take ({limit_seconds}):"
            " VRAM warnings are on again",
            **lock,
            limit_seconds=limit_seconds,
        )
    elif holding.noted:
        note = say(
            "GPU {gpu}: its lock {path} is held by {who}, a test by a user whom this daemon does not trust:"
            " VRAM warnings go on; the service trusts root and the members of its group",
            **lock,
        )
    else:
        note = say(
            "GPU {gpu}: its lock {path} is held by {who}, which is no stress run: VRAM warnings go on;"
            " a training should hold it shared: {command}",
            **lock,
            command=f"flock -s {path}",
        )
    return LockHolder(gpu, path, holding.pid, program, user, note)


class CardsUnderTest:
    """Follows the locks of the cards, at every tick. Not for two threads."""

    def __init__(self, host: Host, settings: Stress, notes: RunNotes) -> None:
        self._host, self._notes = host, notes
        self._limit_seconds = settings.deadline_seconds + settings.soak_seconds
        self._seen: dict[str, Seen] = {}
        self._held: dict[str, tuple[_Key, LockHolder]] = {}
        self._said: dict[str, float] = {}

    @property
    def held(self) -> list[LockHolder]:
        """Locks that are held alone by others than our tests, as of the last look."""
        return [held for _, held in self._held.values()]

    def untested(self, observation: Observation) -> Observation:
        """Leave out the cards that are tested now."""
        if self._host.recorded or not observation.gpus:
            return observation
        tested = self.look(card.index for card in observation.gpus)
        gpus = tuple(card for card in observation.gpus if card.index not in tested)
        return replace(observation, gpus=gpus) if tested else observation

    def look(self, gpus: Iterable[int]) -> set[int]:
        """Return which of these cards are tested now."""
        now, found = self._host.clock.mono(), set()
        seen: dict[str, Seen] = {}
        held: dict[str, tuple[_Key, LockHolder]] = {}
        for gpu, path, holding in self._holdings(gpus):
            one = seen[path] = followed(self._seen.get(path), holding, now)
            if tested(one, holding, now, self._limit_seconds):
                found.add(gpu)
            elif one.worker is not None if holding.ours else now - one.since_mono >= UNPROVEN_SECONDS:
                known = self._held.get(path)
                if known is None or known[0] != one.holder:
                    known = (one.holder, complaint(gpu, path, holding, self._user(holding), self._limit_seconds))
                    if now - self._said.get(path, -SAY_AGAIN_SECONDS) >= SAY_AGAIN_SECONDS:
                        self._said[path] = now
                        log.warning("%s", known[1].note)
                held[path] = known
        self._seen, self._held = seen, held
        return found

    def _holdings(self, gpus: Iterable[int]) -> Iterator[tuple[int, str, Holding]]:
        """Yield the locks of these cards that somebody holds alone."""
        files = [(gpu, GpuLock(gpu, self._host.path(place))) for gpu in gpus for place in PLACES]
        text = locks(self._host) if any(lock.file() for _, lock in files) else ""
        for gpu, lock in files:
            for claim in lock.claims(text):
                if claim.alone and not claim.waits:
                    yield gpu, str(lock.path), self._holding(gpu, claim.pid)

    def _holding(self, gpu: int, pid: int) -> Holding:
        run, note = identity(self._host, pid), self._notes.of("stress", pid)
        worker = None if note is None else note.document.get("worker_pid")
        return Holding(
            pid,
            run,
            run is not None and self._notes.trust.covers(run),
            note is not None and note.who == run and note.document.get("gpu") == gpu,
            identity(self._host, worker) if isinstance(worker, int) else None,
        )

    def _user(self, holding: Holding) -> str:
        """Return a process's user by name where the machine itself knows it: a directory service may hang."""
        uids = {str(uid) for uid in holding.run.uids} if holding.run else set()
        try:
            rows = [line.split(":") for line in self._host.head("/etc/passwd", 1 << 20).splitlines()]
        except (NoData, SourceError):
            rows = []
        return ", ".join(sorted(row[0] for row in rows if len(row) > 2 and row[2] in uids)) or "/".join(sorted(uids))
