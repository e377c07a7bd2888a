"""Plans and memory peaks that trainings under guard report, for ``wslgpud fit``."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

from wslgpud.active_runs.note_reader import RunNotes
from wslgpud.active_runs.notes import Noted
from wslgpud.host import Host

LOOK_SECONDS = 5.0
#: The optimizer's states are allocated in the first step; the second is the first to coexist with them.
MIN_STEPS = 3


class TrainingPeaks:
    """Reads the notes of our own user's programs every few seconds while the command runs."""

    def __init__(self, host: Host) -> None:
        self._notes = RunNotes(host)
        self._looked = float("-inf")
        self._seen: dict[str, dict[str, Any]] = {}

    @property
    def seen(self) -> Collection[dict[str, Any]]:
        """Plans and the peak bytes of each."""
        return self._seen.values()

    def look(self, pids: Collection[int], seconds: float) -> None:
        """Read the notes of these processes, ``seconds`` after the start."""
        if seconds - self._looked >= LOOK_SECONDS:
            self._looked = seconds
            self.note(one for one in self._notes.read() if one.who.pid in pids)

    def note(self, notes: Iterable[Noted]) -> None:
        for note in notes:
            plan = note.document.get("plan")
            if not plan or note.document["steps"] < MIN_STEPS or note.who.uids != {os.geteuid()}:
                continue
            for memory in note.document["memory"]:
                if memory.get("reserved") and not memory.get("failures") and not memory.get("retries"):
                    key = repr(sorted(plan.items()))
                    before = self._seen.get(key, {"bytes": 0})
                    self._seen[key] = {"plan": dict(plan), "bytes": max(memory["reserved"], before["bytes"])}
