"""What runs now and has an end: a stress run, a guarded command. Known by notes that lie in files.

Whoever runs it keeps one small file while it lasts: a stress run below ``running/`` in the state folder, a
guard, whose user seldom is the daemon's, where everybody may write. The daemon, ``wslgpud monitor`` and the
page read them. A note of a process that is gone (killed, or of an earlier boot) does not count.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from wslgpud import documents
from wslgpud.host import Host, NoData, SourceError
from wslgpud.masking import named
from wslgpud.sources.announced import PLACES
from wslgpud.sources.processes import parse_stat

if TYPE_CHECKING:
    from typing_extensions import Self

FOLDER = "running"
#: how notes are named where other programs' files lie, too
PREFIX = "wslgpud-running-"
#: a note is written no more often than that, except when the phase changes
WRITE_SECONDS = 0.5
#: more are not read: nobody runs so many at once, and the daemon reads them at every tick
_MOST_NOTES, _MOST_BYTES = 16, 4096
_LONGEST_NAME = 200
_MOST_FIGURE = 1 << 62

log = logging.getLogger(__name__)


class Note:
    """The note of one run. ``with Note(...) as note: note.say("filling", done_ratio=0.4)``.

    With ``shared`` it lies where every user's daemon and monitor find it, if there is such a place.
    """

    def __init__(
        self, state_folder: Path, host: Host, kind: Literal["stress", "guard"], what: str,
        *, shared: bool = False,
    ) -> None:  # fmt: skip
        """Take what is run, as its user knows it; nothing is written yet."""
        self._host, self._pid = host, os.getpid()
        name = f"{kind}-{self._pid}.json"
        self._file = state_folder / FOLDER / name
        place = next((p for p in PLACES if os.access(p, os.W_OK)), None)
        if shared and place is not None:
            self._file = Path(place, PREFIX + name)
        self._began = self._written = host.clock.mono()
        self._facts: dict[str, Any] = {"kind": kind, "what": what[:_LONGEST_NAME], "began_mono": self._began}
        self._phase: str | None = None

    def __enter__(self) -> Self:
        """Write the first note, and sweep away those of processes that are gone."""
        prefix = PREFIX if self._file.name.startswith(PREFIX) else ""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            for file in self._file.parent.glob(f"{prefix}*.json"):
                if _read(file, self._host) is None:
                    file.unlink(missing_ok=True)
        except OSError as error:  # another user's, for one
            log.debug("notes of what runs cannot be swept: %s", error)
        self.say("")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the note away."""
        try:
            self._file.unlink(missing_ok=True)
        except OSError as trouble:
            log.debug("a note of what ran stays: %s", trouble)  # it will not count: its process is gone

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return self._host.clock.mono() - self._began

    def say(
        self,
        phase: str,
        *,
        done_ratio: float | None = None,
        left_seconds: float | None = None,
        facts: Mapping[str, int | float | None] | None = None,
    ) -> None:
        """Tell how far it is: a word for what it does, its share, how long it will still take at most."""
        now = self._host.clock.mono()
        if phase == self._phase and now - self._written < WRITE_SECONDS:
            return
        self._phase, self._written = phase, now
        document = {
            **self._facts, "pid": self._pid, "start_ticks": _start_ticks(self._host, self._pid),
            "phase": phase, "done_ratio": done_ratio,
            "ends_mono": None if left_seconds is None else now + left_seconds,
            **(facts or {}),
        }  # fmt: skip
        try:
            text = json.dumps({k: v for k, v in document.items() if v is not None})
            documents.put(self._file, text, mode=0o644)  # a monitor of another user reads it, too
        except OSError as error:
            # A full disk must not end a build or a test of the memory.
            log.debug("nobody can see how far it is: %s", error)


def running(state_folder: Path, host: Host) -> list[dict[str, Any]]:
    """Return what runs now, the one that began first at first, as ``status`` shows it."""
    now = host.clock.mono()
    notes = (_read(file, host) for file in _files(state_folder, host))
    found = sorted((note for note in notes if note is not None), key=lambda n: n["began_mono"])
    return [_shown(note, now) for note in found]


def _files(state_folder: Path, host: Host) -> Iterator[Path]:
    """Yield the files that may be notes; a recorded machine has no shared ones."""
    shared = () if host.recorded else tuple((Path(host.path(place)), PREFIX) for place in PLACES)
    for folder, prefix in ((state_folder / FOLDER, ""), *shared):
        with contextlib.suppress(OSError):  # there is none
            # Once a second, for as long as the machine runs: os.listdir makes no objects of paths.
            names = os.listdir(folder)  # noqa: PTH208
            mine = sorted(n for n in names if n.startswith(prefix) and n.endswith(".json"))
            yield from (folder / name for name in mine[:_MOST_NOTES])


def _shown(note: Mapping[str, Any], now: float) -> dict[str, Any]:
    hidden = ("began_mono", "ends_mono", "start_ticks")
    shown = {name: value for name, value in note.items() if name not in hidden}
    shown["elapsed_seconds"] = round(max(0.0, now - note["began_mono"]), 1)
    if "ends_mono" in note:
        shown["left_seconds"] = round(max(0.0, note["ends_mono"] - now), 1)
    return shown


def _read(file: Path, host: Host) -> dict[str, Any] | None:
    """Return a note whose process lives; None for any other, and for what is no note."""
    try:
        with documents.opened(file) as descriptor:
            note = documents.parsed(os.read(descriptor, _MOST_BYTES))
        figures = (value for name, value in note.items() if name not in ("kind", "what", "phase"))
        if note["kind"] not in ("stress", "guard") or not all(map(_is_figure, figures)):
            return None
        if "began_mono" not in note or _start_ticks(host, int(note["pid"])) != note["start_ticks"]:
            return None
        return {**note, "what": named(str(note["what"])), "phase": named(str(note["phase"]))}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_figure(value: object) -> bool:
    """Tell whether it can be reckoned with and shown: anybody may write here, also NaN and Infinity."""
    return isinstance(value, int | float) and abs(value) < _MOST_FIGURE


def _start_ticks(host: Host, pid: int) -> int | None:
    try:
        row = parse_stat(host.read(f"/proc/{pid}/stat"))
    except (NoData, SourceError):
        return None
    return None if row is None else row.start_ticks
