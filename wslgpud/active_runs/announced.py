"""The runs that programs announce over the control socket, for each tick of a daemon.

The kernel says whose connection it is; nothing else that a program says of itself is believed, and nothing it says of
others. A run lasts as long as its connection and its process: a fork may keep the connection open.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from wslgpud.active_runs.notes import Noted, checked
from wslgpud.host import Host
from wslgpud.sources.procfs import Peer, Trust, identity, trust

#: More than anybody runs at once; the daemon goes through them at every tick. Trusted users do not count in the total.
MAX_RUNS, MAX_RUNS_A_USER = 32, 16


class TooManyRuns(Exception):
    """A user, or all of them, announce more runs than are followed."""


class AnnouncedRuns:
    """``announce`` is called by the server's thread, ``read`` at every tick."""

    def __init__(self, host: Host, trusted: Trust | None = None) -> None:
        self._host = host
        self.trust = trusted or trust()
        self._runs: dict[Peer, Noted] = {}
        self._lock = threading.Lock()
        #: by pid, the level and the seconds left of a training that a warning is about
        self.warned: Mapping[int, tuple[str, float | None]] = {}

    def announce(self, peer: Peer, document: dict[str, Any]) -> dict[str, Any]:
        """Take what a process says of its run; return what it must know.

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
