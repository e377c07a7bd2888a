"""What a run announces of itself to the daemon, what of that is fit to be used, and what is said of it.

``peaks`` is the memory that a guarded command needed before and ``used`` what it holds now, in bytes by resource ("ram"
or a card's UUID), so that the daemon can warn before it takes the rest; ``pids`` are its processes, largest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from wslgpud.config import SYSTEM_STATE
from wslgpud.host import Host
from wslgpud.security import redaction, shapes
from wslgpud.sources.procfs import Identity
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
    """A run: its process, as the kernel knows it, and what it says of itself."""

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

    def __init__(  # noqa: PLR0913 - what it announces
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
