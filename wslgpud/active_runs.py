"""Active stress runs, guarded commands and trainings, known by notes in a world-writable folder.

Each runner keeps one small file there, as its user is seldom the daemon's; the daemon and ``monitor`` read them.
Anybody may write to that folder. A note counts only if the kernel confirms it: its process is alive, has the start
time it names and a single user, who owns the file; and nobody else can have written into it.

The cost of reading is bounded whatever the folder holds: it is listed only when it has changed, and limits hold for
entries and for notes per user. Nobody's note can be hidden, as its name has the pid: in a folder with too many files
the notes of living processes are opened by name.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from wslgpud.host import Host, NoData, SourceError
from wslgpud.model import Expected, ProcessSample
from wslgpud.security import redaction, safe_files, shapes
from wslgpud.security.safe_files import Folder
from wslgpud.sources.identity import Identity, Trust, identity, trust
from wslgpud.words import TEMPLATES, Message, MessageLike, cause, clauses, say, says, t

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

#: the daemon's own is read by ``wslgpud.training`` only: that it is there, and whom it warns of
Kind = Literal["stress", "guard", "training", "daemon"]
#: of those who run something, which the daemon reads
RUNS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "daemon")

#: The first that exists and can be written to is where a note lies; /tmp is another for each service.
PLACES = ("/run/lock", "/dev/shm")  # noqa: S108 - shared on purpose
_NAME = re.compile(r"wslgpud-running-(stress|guard|training|daemon)-([0-9]{1,10})\.json")
#: entries of a folder that are looked at; PyTorch's data loaders may have thousands of files in /dev/shm
MOST_ENTRIES = 1024
MOST_BYTES, MOST_PEAKS, MOST_PIDS, LONGEST_WORD = 1 << 14, 16, 1024, 200
#: beyond it sums would be nonsense
_MOST_FIGURE = 1 << 62
_WORDS, _OTHERS = ("kind", "what", "who", "phase"), ("peaks", "used", "pids", "memory", "warned", "plan")
#: Nobody runs so many at once, and the daemon reads them at every tick.
MOST_NOTES, MOST_NOTES_A_USER = 32, 16
#: a folder with too many files is looked through again only after so many seconds, however often it changes
_PATIENCE_SECONDS = 10.0
#: File systems stamp changes by a clock that stands still for some milliseconds.
_SETTLED_NS = 1_000_000_000
#: of a training, see ``wslgpud.training.companion``: what it has in use after its steps, of each kind of memory
MOST_MEMORIES = 5
_BLOCK = shapes.of(list, lambda block: len(block) == 4 and all(map(shapes.whole, block)))
_MEMORY = shapes.record(
    {"name": shapes.text, "used": shapes.whole, "peak": shapes.whole, "scales": shapes.rows(shapes.rows(_BLOCK))},
    dict.fromkeys(("reserved", "pieces", "retries", "failures"), shapes.whole),
)
_MEMORIES = shapes.of(list, lambda memories: len(memories) <= MOST_MEMORIES and all(map(_MEMORY, memories)))
_TRAINING = shapes.record(
    {"steps": shapes.whole, "memory": _MEMORIES},
    dict.fromkeys(("step_seconds", "usual_step_seconds"), shapes.seconds)
    | dict.fromkeys(("pinned", "batch", "tokens", "length", "longest"), shapes.whole)
    | {
        "plan": shapes.table(shapes.text, lambda value: shapes.text(value) or shapes.whole(value) or shapes.flag(value))
    },
)
#: what only metrics show of a training
_INSIDE = ("usual_step_seconds", "pinned", "tokens", "length", "longest")
#: more than any machine has
_MOST_MEMORY_BYTES = 1 << 50
#: a note is written no more often than that, except when the phase changes
WRITE_SECONDS = 0.5
#: what the words of a note stand for, see ``wslgpud.stress.worker``; a guarded command has no phases
PHASES: Mapping[str, str] = TEMPLATES["phase"]


def name_of(kind: Kind, pid: int) -> str:
    """Return the name of a process's note."""
    return f"wslgpud-running-{kind}-{pid}.json"


def named(names: Iterable[str]) -> list[str]:
    """Return those that are named like notes."""
    return [name for name in names if _NAME.fullmatch(name)]


class Noted(NamedTuple):
    """A confirmed note: its process and its content."""

    who: Identity
    document: Mapping[str, Any]


def read(folder: Folder, name: str, host: Host) -> Noted | None:
    """Return a note that counts; None for any other and for anything else."""
    match = _NAME.fullmatch(name)
    try:
        with folder.opened(name) as descriptor:
            facts, content = os.fstat(descriptor), os.read(descriptor, MOST_BYTES)
        document = _checked(safe_files.parsed(content))
        claimed = document["kind"], document["pid"], document["start_ticks"]
        who = identity(host, int(match[2])) if match else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    # Nobody but its owner can have written it, and its owner made it here: no link to another of their files.
    own = facts.st_nlink == 1 and not facts.st_mode & 0o022
    if match and who and who.alive and own and who.uids == {facts.st_uid}:
        return Noted(who, document) if claimed == (match[1], who.pid, who.start_ticks) else None
    return None


def _checked(note: dict[str, Any]) -> dict[str, Any]:
    """Return a note with which one can reckon: anybody may write here, also NaN and Infinity. Else raise."""
    figures = [note["began_mono"], *(value for name, value in note.items() if name not in (*_WORDS, *_OTHERS))]
    peaks, used, pids = note.get("peaks", {}), note.get("used", {}), note.get("pids", [])
    counts = all(type(value) is int for value in (*peaks.values(), *used.values(), *pids))
    finite = all(isinstance(value, int | float) and abs(value) < _MOST_FIGURE for value in figures)
    if len(peaks) > MOST_PEAKS or len(pids) > MOST_PIDS or not counts or not finite:
        raise ValueError("not a note")
    if note["kind"] == "training" and not _TRAINING(note):
        raise ValueError("not a training's note")
    return {**note, **{word: redaction.named(str(note[word]))[:LONGEST_WORD] for word in _WORDS}}


@dataclass(frozen=True)
class Claim:
    """What a command took before and holds now, so that the daemon can warn before it takes the rest.

    ``peaks`` and ``used`` are bytes by resource ("ram" or a card's UUID), ``pids`` its processes, largest first.
    """

    peaks: Mapping[str, int]
    used: Mapping[str, int] = field(default_factory=dict)
    pids: Sequence[int] = ()


class Note:
    """The note of one run. ``with Note(...) as note: note.tell("filling", done_ratio=0.4)``.

    ``what`` is run (a card, or a whole command line), ``who`` is the command in a few words.
    """

    def __init__(self, host: Host, kind: Kind, what: str, *, who: str = "", gpu: int | None = None) -> None:
        self._host, self._pid = host, os.getpid()
        self._name = name_of(kind, self._pid)
        self._folder: Folder | None = None
        self._began = self._written = host.clock.mono()
        words = {"kind": kind, "what": what[:LONGEST_WORD], "who": who[:LONGEST_WORD]}
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
        log.warning(t("nobody can see that this runs, the daemon included: no note can be left ({why})", why=why))
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            try:
                self._folder.remove(self._name)
            except OSError as trouble:
                log.debug("a note of what ran stays: %s", trouble)  # it will not count: its process is gone
            self._close()

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return self._host.clock.mono() - self._began

    def worker(self, pid: int) -> None:
        """Name the process that does the work."""
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
        """Tell how far it is: a word for what it does, its share (0 to 1), how long it will still take at most."""
        now = self._host.clock.mono()
        if phase == self._phase and now - self._written < WRITE_SECONDS:
            return
        ends_mono = None if left_seconds is None else now + left_seconds
        claimed = {**vars(claim), "pids": claim.pids[:MOST_PIDS]} if claim else {}
        try:
            self._write(phase, {"done_ratio": done_ratio, "ends_mono": ends_mono, **(facts or {}), **claimed})
        except OSError as error:
            # A full disk must not end a build or a test of the memory.
            log.debug("nobody can see how far it is: %s", error)

    def _write(self, phase: str, said: Mapping[str, Any] | None = None) -> None:
        self._phase, self._written = phase, self._host.clock.mono()
        if self._folder is not None:
            document = {**self._facts, "phase": phase, **(said or {})}
            text = json.dumps({k: v for k, v in document.items() if v is not None}, separators=(",", ":"))
            self._folder.put(self._name, text, mode=0o644)  # a daemon of another user reads it

    def _close(self) -> None:
        if self._folder is not None:
            self._folder.close()
        self._folder = None

    def _sweep(self, folder: Folder) -> None:
        """Remove notes of our user's that no longer count."""
        with contextlib.suppress(OSError):
            for name in named(folder.names(MOST_ENTRIES)):
                with contextlib.suppress(OSError):  # gone meanwhile
                    if folder.stat(name).st_uid == os.geteuid() and read(folder, name, self._host) is None:
                        folder.remove(name)


@dataclass
class _Listing:
    """What is known of a folder: its notes when it was last listed."""

    changed_ns: int | None = None
    listed_mono: float = float("-inf")
    crowded: bool = False
    names: list[str] = field(default_factory=list)
    complained: bool = False


class RunNotes:
    """Reads the notes, at every tick of a daemon. Not for two threads."""

    def __init__(self, host: Host, trusted: Trust | None = None) -> None:
        self._host = host
        self.trust = trusted or trust()
        # A recorded machine has no notes.
        self._listings = {} if host.recorded else {host.path(place): _Listing() for place in PLACES}

    def read(self) -> list[Noted]:
        """Return what runs now, the one that began first at first."""
        found = chain.from_iterable(self._of(place, known) for place, known in self._listings.items())
        runs = (note for note in found if note.document["kind"] in RUNS)
        return sorted(islice(runs, MOST_NOTES), key=lambda note: float(note.document["began_mono"]))

    def of(self, kind: Kind, pid: int) -> Noted | None:
        """Return the note of one process, however many others lie beside it."""
        for place in self._listings:
            with contextlib.suppress(OSError), Folder(place) as folder:
                if (note := read(folder, name_of(kind, pid), self._host)) is not None:
                    return note
        return None

    def _of(self, place: str, known: _Listing) -> Iterator[Noted]:
        with contextlib.suppress(OSError, NoData, SourceError), Folder(place) as folder:  # else there is none
            self._look_for_new(folder, known)
            found = ((name, read(folder, name, self._host)) for name in known.names)
            live = {name: note for name, note in found if note is not None}
            # A note is replaced, never written to: what is none now becomes none as long as nothing changes.
            known.names = list(live)
            yield from live.values()

    def _look_for_new(self, folder: Folder, known: _Listing) -> None:
        changed, now = folder.changed_ns(), self._host.clock.mono()
        too_soon = known.crowded and now - known.listed_mono < _PATIENCE_SECONDS
        if changed == known.changed_ns or too_soon:
            return
        settled = 1e9 * self._host.clock.wall() - changed > _SETTLED_NS
        known.changed_ns, known.listed_mono = changed if settled else None, now
        entries = folder.names(MOST_ENTRIES + 1)
        known.crowded = len(entries) > MOST_ENTRIES
        if known.crowded:
            pids = [int(name) for name in self._host.names("/proc") if name.isdecimal()]
            entries = [name_of(kind, pid) for pid in pids for kind in RUNS]
        # Those that are known come first: no later ones displace them.
        names = dict.fromkeys([*known.names, *named(entries)])
        known.names, left_out = self._chosen(folder, names)
        if (known.crowded or left_out) and not known.complained:
            known.complained = True
            log.warning("%s is full of files of others: notes of what runs may be read late", folder.path)

    def _chosen(self, folder: Folder, names: Iterable[str]) -> tuple[list[str], int]:
        """Return which to open, so many of each user, trusted ones first; how many are left out."""
        owned: list[tuple[int, str]] = []
        counted: Counter[int] = Counter()
        for name in names:
            with contextlib.suppress(OSError):  # gone meanwhile
                uid = folder.stat(name).st_uid
                counted[uid] += 1
                if counted[uid] <= MOST_NOTES_A_USER:
                    owned.append((uid, name))
        owned.sort(key=lambda one: one[0] not in self.trust.users)
        kept = [name for _, name in owned[:MOST_NOTES]]
        return kept, counted.total() - len(kept)


def running(
    notes: Iterable[Noted], trusted: Trust, now_mono: float, trainings: Mapping[int, Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return what runs now, as ``status`` shows it; stress runs are those of trusted users.

    ``trainings`` is what is known besides of each, by its pid.
    """
    counted = (note for note in notes if note.document["kind"] != "stress" or trusted.covers(note.who))
    found = [_shown(note.document, now_mono) for note in counted]
    known = trainings or {}
    return [{**one, **known.get(one.get("pid", 0), {})} if one["kind"] == "training" else one for one in found]


def _shown(document: Mapping[str, Any], now: float) -> dict[str, Any]:
    hidden = ("who", "began_mono", "ends_mono", "start_ticks", "gpu", "worker_pid", "read_mono", *_INSIDE, *_OTHERS)
    shown = {name: value for name, value in document.items() if name not in hidden}
    shown["elapsed_seconds"] = round(max(0.0, now - document["began_mono"]), 1)
    if "ends_mono" in document:
        shown["left_seconds"] = round(max(0.0, document["ends_mono"] - now), 1)
    return shown


def expected(notes: Iterable[Noted], processes: Iterable[ProcessSample]) -> tuple[Expected, ...]:
    """Return the peaks that guarded commands are expected to reach.

    A claim covers processes of its own user only (root may run others' for them) and replaces the daemon's own
    experience with them. So nobody can hide another user's growth; an excessive claim costs a false warning that
    names the claimant.
    """
    owners = {process.pid: process.uid for process in processes}
    found = []
    for note in notes:
        (user,) = note.who.uids
        pids = tuple(
            pid for pid in note.document.get("pids", ()) if pid in owners and (not user or owners[pid] == user)
        )
        used = note.document.get("used", {})
        who = f"{note.document['who']} (guard {note.who.pid})"
        found += [
            Expected(str(name), who, peak, used.get(name, 0), pids)
            for name, peak in note.document.get("peaks", {}).items()
            if 0 < peak < _MOST_MEMORY_BYTES and 0 <= used.get(name, 0) < _MOST_MEMORY_BYTES
        ]
    return tuple(found)


def phase(word: str) -> MessageLike:
    """Return what a phase is called; one that is not known as it calls itself."""
    return Message(PHASES[word]) if word in PHASES else word


def headline(document: Mapping[str, Any]) -> Message:
    """Return in one line what one of ``running`` says, see ``running``."""
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
        yield about or say("time is up in {left_seconds}", left_seconds=left)
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
    """Say how many compilers wait for memory."""
    return says("{count} compiler waits", "{count} compilers wait", count=compilers)
