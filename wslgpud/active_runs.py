"""Active stress runs, guarded commands and trainings, as they announce themselves over the control socket.

The kernel says whose connection it is; nothing else that a program says of itself is believed, and nothing it says of
others. A run lasts as long as its connection and its process: a fork may keep the connection open.

``peaks`` is the memory that a guarded command needed before and ``used`` what it holds now, in bytes by resource ("ram"
or a card's UUID), so that the daemon can warn before it takes the rest; ``pids`` are its processes, largest first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from wslgpud.config import SYSTEM_STATE, Stress
from wslgpud.host import Host
from wslgpud.model import Observation
from wslgpud.security import redaction, shapes
from wslgpud.sources.procfs import Identity, Peer, Trust, identity, trust
from wslgpud.words import TEMPLATES, Message, MessageLike, say, says

if TYPE_CHECKING:
    from typing_extensions import Self

Kind = Literal["stress", "guard", "training"]
MAX_BYTES, MAX_PEAKS, MAX_PIDS, MAX_WORD = 1 << 14, 16, 1024, 200
_WORDS = ("kind", "what", "who", "phase")
_BYTES = shapes.of(dict, lambda value: len(value) <= MAX_PEAKS and all(map(shapes.uint, value.values())))
_RUN = shapes.record(
    {
        **dict.fromkeys(_WORDS, shapes.text),
        "kind": shapes.of(str, get_args(Kind).__contains__),
        "began_mono": shapes.number,
    },
    {
        **dict.fromkeys(("gpu", "worker_pid", "verified_bytes", "peak_bytes", "waiting"), shapes.uint),
        **dict.fromkeys(("done_ratio", "ends_mono"), shapes.number),
        **dict.fromkeys(("peaks", "used"), _BYTES),
        "pids": shapes.of(list, lambda pids: len(pids) <= MAX_PIDS and all(map(shapes.uint, pids))),
    },
)
#: kinds of memory whose use after its steps a training reports, see ``wslgpud.training.companion``
MAX_MEMORIES = 5
_BLOCK = shapes.of(list, lambda block: len(block) == 4 and all(map(shapes.uint, block)))
_MEMORY = shapes.record(
    {"name": shapes.text, "used": shapes.uint, "peak": shapes.uint, "scales": shapes.rows(shapes.rows(_BLOCK))},
    dict.fromkeys(("reserved", "pieces", "retries", "failures"), shapes.uint),
)
_TRAINING = shapes.record(
    {
        "steps": shapes.uint,
        "memory": shapes.of(list, lambda value: len(value) <= MAX_MEMORIES and all(map(_MEMORY, value))),
    },
    dict.fromkeys(("step_seconds", "usual_step_seconds"), shapes.seconds)
    | dict.fromkeys(("pinned", "batch", "tokens", "length", "longest"), shapes.uint),
)
#: the phases that a note may name, see ``wslgpud.stress.worker``; a guarded command has none
PHASES: Mapping[str, str] = TEMPLATES["phase"]
#: minimum interval between two announcements, except when the phase changes
WRITE_SECONDS = 0.5


class Noted(NamedTuple):
    """A run: its process, as the kernel knows it, and its announcement."""

    who: Identity
    document: Mapping[str, Any]


def checked(note: dict[str, Any]) -> dict[str, Any]:
    """Return what is safe to compute with and show: any user may announce, even NaN and Infinity.

    Raises ValueError: it is not.
    """
    if not _RUN(note) or (note["kind"] == "training" and not _TRAINING(note)):
        raise ValueError("not a note")
    return {**note, **{word: redaction.named(note[word])[:MAX_WORD] for word in _WORDS}}


class Note:
    """The announcement of one run. ``with Note(...) as note: note.tell("filling", done_ratio=0.4)``.

    ``what`` is a card or a whole command line, ``who`` a short form of the command. It is for the daemon of a state
    folder, else for the service, and goes on without either.
    """

    def __init__(  # noqa: PLR0913 - the parts of the announcement
        self, host: Host, kind: Kind, what: str, *, state_folder: Path, who: str = "", gpu: int | None = None
    ) -> None:
        from wslgpud.training.companion import Announcement  # the daemon itself rarely runs anything

        self._host = host
        self._line = Announcement([str(state_folder), str(SYSTEM_STATE)])
        self._began = self._told = host.clock.mono()
        words = {"kind": kind, "what": what[:MAX_WORD], "who": who[:MAX_WORD]}
        self._facts: dict[str, Any] = {**words, "began_mono": self._began, "gpu": gpu}
        self._phase: str | None = None

    def __enter__(self) -> Self:
        self.tell("")
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()

    @property
    def seconds(self) -> float:
        """Run time so far."""
        return self._host.clock.mono() - self._began

    def worker(self, pid: int) -> None:
        """Announce the process that does the work."""
        self._facts["worker_pid"] = pid
        self._phase = None
        self.tell("")

    def tell(
        self,
        phase: str,
        *,
        done_ratio: float | None = None,
        left_seconds: float | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Announce the progress: the phase, the share done (0 to 1), and the longest remaining time."""
        now = self._host.clock.mono()
        if phase == self._phase and now - self._told < WRITE_SECONDS:
            return
        self._phase, self._told = phase, now
        ends_mono = None if left_seconds is None else now + left_seconds
        document = {**self._facts, "phase": phase, "done_ratio": done_ratio, "ends_mono": ends_mono, **(facts or {})}
        self._line.tell({name: value for name, value in document.items() if value is not None})


def phase(word: str) -> MessageLike:
    """Return the name of a phase; an unknown one unchanged."""
    return Message(PHASES[word]) if word in PHASES else word


def headline(document: Mapping[str, Any]) -> Message:
    """Return the line about an active run in ``status``."""
    stress = document["kind"] == "stress"
    facts = {"what": document["what"], "details": tuple(_details(document, stress=stress))}
    if document["kind"] == "training":
        return say("training: {what}: {details}", **facts)
    return say("stress run of {what}: {details}", **facts) if stress else say("guarded: {what}: {details}", **facts)


def _details(document: Mapping[str, Any], *, stress: bool) -> Iterator[MessageLike]:
    if "steps" in document:
        yield from _of_training(document)
    elif stress or not document["phase"]:
        yield phase(document["phase"])
    if (share := document.get("done_ratio")) is not None:
        yield say("{done_ratio} done", done_ratio=share)
    yield say("for {elapsed_seconds}", elapsed_seconds=document["elapsed_seconds"])
    if (left := document.get("left_seconds")) is not None:
        about = say("about {left_seconds} left", left_seconds=left) if stress else None
        yield about or say("time limit in {left_seconds}", left_seconds=left)
    if peak := document.get("peak_bytes"):
        yield say("peak {peak_bytes}", peak_bytes=peak)
    if compilers := document.get("waiting"):
        yield waiting(int(compilers))


def _of_training(document: Mapping[str, Any]) -> Iterator[MessageLike]:
    yield says("{count} step", "{count} steps", count=int(document["steps"]))
    if (seconds := document.get("step_seconds")) is not None and seconds < 1:
        yield say("{number} steps per second", number=f"{1 / seconds:.1f}")
    elif seconds is not None:
        yield say("{step_seconds} each", step_seconds=seconds)
    if (kept := document.get("kept_bytes")) is not None:
        yield say("keeps {kept_bytes}", kept_bytes=kept)
    if (growth := document.get("step_growth_bytes")) is not None:
        yield say("{step_bytes} more with each step", step_bytes=growth)
    if (batch := document.get("batch")) is not None and document.get("largest_batch") == batch:
        yield say("batch {batch}, a larger one will not fit", batch=int(batch))


def waiting(compilers: int) -> Message:
    """Return the message about compilers that wait for memory."""
    return says("{count} compiler waits", "{count} compilers wait", count=compilers)


#: More than anybody runs at once; the daemon goes through them at every tick. Trusted users do not count in the total.
MAX_RUNS, MAX_RUNS_A_USER = 32, 16


class TooManyRuns(Exception):
    """A user, or all of them, announce more runs than are followed."""


class AnnouncedRuns:
    """The runs of a daemon. ``announce`` is called by the server's thread, ``read`` at every tick."""

    def __init__(self, host: Host, trusted: Trust | None = None) -> None:
        self._host = host
        self.trust = trusted or trust()
        self._runs: dict[Peer, Noted] = {}
        self._lock = threading.Lock()
        #: by pid, the level and the seconds left of a training that a warning is about
        self.warned: Mapping[int, tuple[str, float | None]] = {}

    def announce(self, peer: Peer, document: dict[str, Any]) -> dict[str, Any]:
        """Take a process's announcement of its run; return the answer.

        Raises ValueError: malformed, or of no process that lives and has one user; TooManyRuns.
        """
        run = checked(document)
        with self._lock:
            self._runs = {one: known for one, known in self._runs.items() if not one.gone}
            before = self._runs.get(peer)
            who = before.who if before else identity(self._host, peer.pid)
            if who is None or who.uids != {peer.uid}:
                raise ValueError("not a process that lives and has one user")
            if before is None and self._is_full(peer.uid, trusted=self.trust.covers(who)):
                raise TooManyRuns
            self._runs[peer] = Noted(who, {**run, "pid": who.pid})
        return {"warned": self.warned.get(peer.pid)}

    def _is_full(self, uid: int, *, trusted: bool) -> bool:
        own = sum(peer.uid == uid for peer in self._runs)
        strange = sum(not self.trust.covers(run.who) for run in self._runs.values())
        return own >= MAX_RUNS_A_USER or (not trusted and strange >= MAX_RUNS)

    def read(self) -> list[Noted]:
        """Return the active runs, oldest first."""
        with self._lock:
            runs = list(self._runs.items())
        live = (run for peer, run in runs if not peer.gone and self._lives(run))
        return sorted(live, key=lambda run: float(run.document["began_mono"]))

    def _lives(self, run: Noted) -> bool:
        now = identity(self._host, run.who.pid)
        return now is not None and now.alive and (now.start_ticks, now.uids) == (run.who.start_ticks, run.who.uids)


#: After the worker's end, NVML may show its memory in use for a while; see ``stress_run.py``.
GIVING_BACK_SECONDS = 7.0


@dataclass
class _Test:
    """The worker of a run, by pid and start, and when it was first and last seen."""

    worker: tuple[int, int]
    since_mono: float
    last_mono: float


class CardsUnderTest:
    """Cards under test by one of our runs, which fills them completely, so that warnings are suppressed.

    No one else can suppress a daemon's warnings. The kernel says whose run it is, and that the worker which it names is
    its living child; this daemon's own configuration and clock limit the time of a test. Not thread-safe.
    """

    def __init__(self, host: Host, settings: Stress, trusted: Trust) -> None:
        self._host, self._trust = host, trusted
        self._limit_seconds = settings.deadline_seconds + settings.soak_seconds
        #: keyed by run (pid and start) and card
        self._tests: dict[tuple[int, int, int], _Test] = {}

    def untested(self, observation: Observation, runs: Iterable[Noted]) -> Observation:
        """Return an observation without the cards under test."""
        tested = self.look(runs)
        gpus = tuple(card for card in observation.gpus if card.index not in tested)
        return replace(observation, gpus=gpus) if tested else observation

    def look(self, runs: Iterable[Noted]) -> set[int]:
        """Return the cards under a trusted user's test within its time limit."""
        now, before, tested = self._host.clock.mono(), self._tests, set[int]()
        self._tests = {}
        for run in runs:
            card = run.document.get("gpu")
            if run.document["kind"] != "stress" or card is None or not self._trust.covers(run.who):
                continue
            key = (run.who.pid, run.who.start_ticks, card)
            if (test := self._followed(before.get(key), run, now)) is None:
                continue
            self._tests[key] = test
            fresh = now - test.last_mono <= GIVING_BACK_SECONDS
            if fresh and now - test.since_mono <= self._limit_seconds:
                tested.add(card)
        return tested

    def _followed(self, before: _Test | None, run: Noted, now: float) -> _Test | None:
        worker = identity(self._host, run.document.get("worker_pid", 0))
        if worker is None or not worker.alive or worker.parent != run.who.pid:
            return before
        key = worker.pid, worker.start_ticks
        since = before.since_mono if before is not None and before.worker == key else now
        return _Test(key, since, now)
