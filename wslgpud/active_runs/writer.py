"""Leaves the note of a run, and keeps it up to date."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wslgpud.active_runs.note import LONGEST_WORD, MOST_ENTRIES, MOST_PIDS, PLACES, Kind, name_of, named, read
from wslgpud.host import Host
from wslgpud.security.safe_files import Folder
from wslgpud.sources.identity import identity
from wslgpud.words import Said, clauses, failure, say, t

if TYPE_CHECKING:
    from typing_extensions import Self

#: a note is written no more often than that, except when the phase changes
WRITE_SECONDS = 0.5

log = logging.getLogger(__name__)


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
        trouble: list[Said] = []
        for place in PLACES:
            try:
                self._folder = Folder(self._host.path(place))
                self._write("")
            except OSError as error:
                trouble.append(say("{path}: {why}", path=place, why=failure(error)))
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
        facts: Mapping[str, int | float | None] | None = None,
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
