"""Reads the notes of active runs, at every tick of a daemon.

The cost is bounded whatever the folder contains: it is listed only when it has changed, with limits on entries and on
notes per user. No user can hide another's note, as its name includes the pid: in a folder with too many files, notes of
living processes are opened by name.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from wslgpud.active_runs.notes import MAX_ENTRIES, PLACES, RUNS, Kind, Noted, name_of, named, read
from wslgpud.host import Host, NoData, SourceError
from wslgpud.security.safe_files import Folder
from wslgpud.sources.identity import Trust, trust

log = logging.getLogger(__name__)

#: More than anybody runs at once; the daemon reads them at every tick.
MAX_NOTES, MAX_NOTES_A_USER = 32, 16
#: a folder with too many files is listed again only after this time, however often it changes
_PATIENCE_SECONDS = 10.0
#: File systems timestamp changes with a resolution of some milliseconds.
_SETTLED_NS = 1_000_000_000


@dataclass
class _Listing:
    """A folder's notes when it was last listed."""

    changed_ns: int | None = None
    listed_mono: float = float("-inf")
    crowded: bool = False
    names: list[str] = field(default_factory=list)
    complained: bool = False


class RunNotes:
    """Reads the notes, at every tick of a daemon. Not thread-safe."""

    def __init__(self, host: Host, trusted: Trust | None = None) -> None:
        self._host = host
        self.trust = trusted or trust()
        # A recorded machine has no notes.
        self._listings = {} if host.recorded else {host.path(place): _Listing() for place in PLACES}

    def read(self) -> list[Noted]:
        """Return the active runs, oldest first."""
        runs = chain.from_iterable(self._of(place, known) for place, known in self._listings.items())
        return sorted(islice(runs, MAX_NOTES), key=lambda note: float(note.document["began_mono"]))

    def of(self, kind: Kind, pid: int) -> Noted | None:
        """Return the note of one process, however many others there are."""
        for place in self._listings:
            with contextlib.suppress(OSError), Folder(place) as folder:
                if (note := read(folder, name_of(kind, pid), self._host)) is not None:
                    return note
        return None

    def _of(self, place: str, known: _Listing) -> Iterator[Noted]:
        with contextlib.suppress(OSError, NoData, SourceError), Folder(place) as folder:  # no note otherwise
            self._look_for_new(folder, known)
            notes = ((name, read(folder, name, self._host)) for name in known.names)
            live = {name: note for name, note in notes if note is not None}
            # Notes are replaced, never rewritten: an invalid one stays invalid until its file changes.
            known.names = list(live)
            yield from live.values()

    def _look_for_new(self, folder: Folder, known: _Listing) -> None:
        changed, now = folder.changed_ns(), self._host.clock.mono()
        too_soon = known.crowded and now - known.listed_mono < _PATIENCE_SECONDS
        if changed == known.changed_ns or too_soon:
            return
        settled = 1e9 * self._host.clock.wall() - changed > _SETTLED_NS
        known.changed_ns, known.listed_mono = changed if settled else None, now
        entries = folder.names(MAX_ENTRIES + 1)
        known.crowded = len(entries) > MAX_ENTRIES
        if known.crowded:
            pids = [int(name) for name in self._host.names("/proc") if name.isdecimal()]
            entries = [name_of(kind, pid) for pid in pids for kind in RUNS]
        # Known ones come first: newer ones cannot displace them.
        names = dict.fromkeys([*known.names, *named(entries, RUNS)])
        known.names, left_out = self._chosen(folder, names)
        if (known.crowded or left_out) and not known.complained:
            known.complained = True
            log.warning("%s is full of other users' files: notes of runs may be read late", folder.path)

    def _chosen(self, folder: Folder, names: Iterable[str]) -> tuple[list[str], int]:
        """Return the notes to open, up to a limit per user, trusted users first, and the number omitted."""
        owned: list[tuple[int, str]] = []
        counted: Counter[int] = Counter()
        for name in names:
            with contextlib.suppress(OSError):  # gone meanwhile
                uid = folder.stat(name).st_uid
                counted[uid] += 1
                if counted[uid] <= MAX_NOTES_A_USER:
                    owned.append((uid, name))
        owned.sort(key=lambda one: one[0] not in self.trust.users)
        chosen = [name for _, name in owned[:MAX_NOTES]]
        return chosen, counted.total() - len(chosen)
