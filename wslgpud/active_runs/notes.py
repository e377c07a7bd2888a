"""The note of an active run: a small file in a world-writable folder, as the daemon is usually another user.

Any user can write to that folder. A note counts only if the kernel confirms it: its process is alive, has the stated
start time and a single uid, which owns the file, and no one else can have written it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from wslgpud.host import Host
from wslgpud.security import redaction, safe_files, shapes
from wslgpud.security.safe_files import Folder
from wslgpud.sources.identity import Identity, identity
from wslgpud.words import MessageLike, cause, clauses, say, t

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

#: the daemon's own, read only by ``wslgpud.training``: that it runs, and which processes it warns
Kind = Literal["stress", "guard", "training", "daemon"]
#: notes of active runs, which the daemon reads
RUNS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "daemon")

#: Notes go to the first of these that exists and is writable; /tmp may be private to a service.
PLACES = ("/run/lock", "/dev/shm")  # noqa: S108 - shared on purpose
_NAME = re.compile(r"wslgpud-running-(stress|guard|training|daemon)-([0-9]{1,10})\.json")
#: inspected entries of a folder; PyTorch's data loaders may have thousands of files in /dev/shm
MAX_ENTRIES = 1024
MAX_BYTES, MAX_PEAKS, MAX_PIDS, MAX_WORD = 1 << 14, 16, 1024, 200
_WORDS = ("kind", "what", "who", "phase")
_BYTES = shapes.of(dict, lambda value: len(value) <= MAX_PEAKS and all(map(shapes.uint, value.values())))
_RUN = shapes.record(
    {**dict.fromkeys(_WORDS, shapes.text), "pid": shapes.uint, "start_ticks": shapes.uint, "began_mono": shapes.number},
    {
        **dict.fromkeys(("gpu", "worker_pid", "verified_bytes", "peak_bytes", "waiting"), shapes.uint),
        **dict.fromkeys(("done_ratio", "ends_mono"), shapes.number),
        **dict.fromkeys(("peaks", "used"), _BYTES),
        "pids": shapes.of(list, lambda pids: len(pids) <= MAX_PIDS and all(map(shapes.uint, pids))),
    },
)
#: of a training, see ``wslgpud.training.companion``: memory in use after its steps, of each kind
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
#: minimum interval between writes of a note, except when the phase changes
WRITE_SECONDS = 0.5


def name_of(kind: Kind, pid: int) -> str:
    """Return the name of a process's note."""
    return f"wslgpud-running-{kind}-{pid}.json"


def named(names: Iterable[str], kinds: Sequence[str] = get_args(Kind)) -> list[str]:
    """Return the names that belong to notes of these kinds."""
    return [name for name in names if (match := _NAME.fullmatch(name)) and match[1] in kinds]


class Noted(NamedTuple):
    """A confirmed note: its process and its content."""

    who: Identity
    document: Mapping[str, Any]


def read(folder: Folder, name: str, host: Host) -> Noted | None:
    """Return a confirmed note; None for any other file."""
    match = _NAME.fullmatch(name)
    try:
        with folder.opened(name) as descriptor:
            facts, content = os.fstat(descriptor), os.read(descriptor, MAX_BYTES)
        document = checked(safe_files.parsed(content))
        who = identity(host, int(match[2])) if match else None
    except (OSError, ValueError):
        return None
    claimed = document["kind"], document["pid"], document["start_ticks"]
    # Only its owner can have written it, and made it here: not a link to another of their files.
    own = facts.st_nlink == 1 and not facts.st_mode & 0o022
    if match and who and who.alive and own and who.uids == {facts.st_uid}:
        return Noted(who, document) if claimed == (match[1], who.pid, who.start_ticks) else None
    return None


def checked(note: dict[str, Any]) -> dict[str, Any]:
    """Return a note that is safe to compute with and show: any user may write here, even NaN and Infinity.

    Raise otherwise.
    """
    if not _RUN(note) or (note["kind"] == "training" and not _TRAINING(note)):
        raise ValueError("not a note")
    return {**note, **{word: redaction.named(note[word])[:MAX_WORD] for word in _WORDS}}


@dataclass(frozen=True)
class Claim:
    """The memory a command needed before and holds now, so that the daemon can warn before it takes the rest.

    ``peaks`` and ``used`` are bytes by resource ("ram" or a card's UUID), ``pids`` its processes, largest first.
    """

    peaks: Mapping[str, int]
    used: Mapping[str, int] = field(default_factory=dict)
    pids: Sequence[int] = ()


class Note:
    """The note of one run. ``with Note(...) as note: note.tell("filling", done_ratio=0.4)``.

    ``what`` is a card or a whole command line, ``who`` a short form of the command.
    """

    def __init__(self, host: Host, kind: Kind, what: str, *, who: str = "", gpu: int | None = None) -> None:
        self._host, self._pid = host, os.getpid()
        self._name = name_of(kind, self._pid)
        self._folder: Folder | None = None
        self._began = self._written = host.clock.mono()
        words = {"kind": kind, "what": what[:MAX_WORD], "who": who[:MAX_WORD]}
        self._facts: dict[str, Any] = {**words, "began_mono": self._began, "gpu": gpu}
        self._phase: str | None = None

    def __enter__(self) -> Self:
        own = identity(self._host, self._pid)
        self._facts |= {"pid": self._pid, "start_ticks": own and own.start_ticks}
        trouble: list[MessageLike] = []
        for place in PLACES:
            try:
                self._folder = Folder(self._host.path(place))
                self._write("")
            except OSError as error:
                trouble.append(say("{path}: {why}", path=place, why=cause(error)))
                self._close()
                continue
            self._sweep(self._folder)
            return self
        why = clauses(trouble)
        log.warning(t("this run is invisible to the daemon and to others: its note cannot be written ({why})", why=why))
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            try:
                self._folder.remove(self._name)
            except OSError as trouble:
                log.debug("the note of a finished run stays: %s", trouble)  # it no longer counts: its process is gone
            self._close()

    @property
    def seconds(self) -> float:
        """Run time so far."""
        return self._host.clock.mono() - self._began

    def worker(self, pid: int) -> None:
        """Record the process that does the work."""
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
        claim: Claim | None = None,
    ) -> None:
        """Record the progress: the phase, the share done (0 to 1), and the longest remaining time."""
        now = self._host.clock.mono()
        if phase == self._phase and now - self._written < WRITE_SECONDS:
            return
        ends_mono = None if left_seconds is None else now + left_seconds
        claimed = {**vars(claim), "pids": claim.pids[:MAX_PIDS]} if claim else {}
        try:
            self._write(phase, {"done_ratio": done_ratio, "ends_mono": ends_mono, **(facts or {}), **claimed})
        except OSError as error:
            # A full disk must not end a build or a memory test.
            log.debug("progress cannot be shown: %s", error)

    def _write(self, phase: str, details: Mapping[str, Any] | None = None) -> None:
        self._phase, self._written = phase, self._host.clock.mono()
        if self._folder is not None:
            document = {**self._facts, "phase": phase, **(details or {})}
            text = json.dumps({k: v for k, v in document.items() if v is not None}, separators=(",", ":"))
            self._folder.put(self._name, text, mode=0o644)  # a daemon of another user reads it

    def _close(self) -> None:
        if self._folder is not None:
            self._folder.close()
        self._folder = None

    def _sweep(self, folder: Folder) -> None:
        """Remove notes of our user's that no longer count."""
        with contextlib.suppress(OSError):
            for name in named(folder.names(MAX_ENTRIES)):
                with contextlib.suppress(OSError):  # gone meanwhile
                    if folder.stat(name).st_uid == os.geteuid() and read(folder, name, self._host) is None:
                        folder.remove(name)
