"""This machine with a daemon's socket and folders for locks of its own, so that tests do not see each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from wslgpud.active_runs import AnnouncedRuns, Note
from wslgpud.host import Clock, Host
from wslgpud.sampling.noted_runs import running
from wslgpud.serve.commands import run_route
from wslgpud.serve.server import LocalApi
from wslgpud.sources.procfs import Trust
from wslgpud.stress.conditions import LOCK_PLACES


class Elsewhere(Host):
    """Processes and locks are the kernel's own; only the files lie elsewhere."""

    def __init__(self, folder: Path, clock: Clock | None = None, trusted: Trust | None = None) -> None:
        """Make the folders, and listen to what runs."""
        super().__init__(clock=clock)
        self._elsewhere = str(folder)
        for place in LOCK_PLACES:
            made = Path(self.path(place))
            made.mkdir(parents=True, exist_ok=True)
            made.chmod(0o1777)
        self.state = folder / "state"
        self.state.mkdir(exist_ok=True)
        self.runs = AnnouncedRuns(self, trusted)
        self._local = LocalApi(self.state, [run_route(self.runs)])
        assert self._local.start()

    def path(self, path: str) -> str:
        """Return where ``path`` lies."""
        return self._elsewhere + path if path in LOCK_PLACES else super().path(path)

    def note(self, kind: Any, what: str, **more: Any) -> Note:
        """Return the announcement of a run to this daemon."""
        return Note(self, kind, what, state_folder=self.state, **more)


@contextmanager
def hearing(state: Path, trusted: Trust | None = None) -> Iterator[AnnouncedRuns]:
    """Listen to what runs, as the daemon of this state folder."""
    state.mkdir(parents=True, exist_ok=True)
    runs = AnnouncedRuns(Host(), trusted)
    local = LocalApi(state, [run_route(runs)])
    assert local.start()
    with closing(local):
        yield runs


def seen(host: Elsewhere) -> list[dict]:
    """Return the runs that its daemon would show."""
    return running(host.runs.read(), host.runs.trust, host.clock.mono())


def open_to_all(folder: Path) -> Path:
    """Let other users into a folder of pytest's; return it."""
    for one in (folder, *folder.parents[:3]):
        if "pytest" in str(one) and one.stat().st_uid == os.geteuid():
            one.chmod(0o755)
    return folder
