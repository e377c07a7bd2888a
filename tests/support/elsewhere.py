"""This machine with private shared folders, so that tests do not see each other."""

from __future__ import annotations

import os
from pathlib import Path

from wslgpud.active_runs.note_reader import RunNotes
from wslgpud.active_runs.notes import PLACES as NOTES
from wslgpud.host import Clock, Host
from wslgpud.sampling.noted_runs import running
from wslgpud.sources.identity import Trust
from wslgpud.stress.lock import PLACES as LOCKS

SHARED = sorted({*NOTES, *LOCKS})


class Elsewhere(Host):
    """Processes and locks are the kernel's own; only the files lie elsewhere."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        """Make the folders."""
        super().__init__(clock=clock)
        self._elsewhere = str(folder)
        for place in SHARED:
            made = Path(self.path(place))
            made.mkdir(parents=True, exist_ok=True)
            made.chmod(0o1777)

    def path(self, path: str) -> str:
        """Return where ``path`` lies."""
        return self._elsewhere + path if path in SHARED else super().path(path)


def seen(host: Host, trusted: Trust | None = None) -> list[dict]:
    """Return the runs that a daemon starting now would show."""
    notes = RunNotes(host, trusted)
    return running(notes.read(), notes.trust, host.clock.mono())


def open_to_all(folder: Path) -> Path:
    """Let other users into a folder of pytest's; return it."""
    for one in (folder, *folder.parents[:3]):
        if "pytest" in str(one) and one.stat().st_uid == os.geteuid():
            one.chmod(0o755)
    return folder
