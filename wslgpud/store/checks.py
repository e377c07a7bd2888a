"""The nightly look through the whole file, in a thread of its own, so that nothing waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from wslgpud.store.errors import StoreError
from wslgpud.store.reader import Reader

log = logging.getLogger(__name__)

#: the first look comes this long after the start, for machines that never run at night
FIRST_SECONDS = 900.0
#: local hour of the others
NIGHT_HOUR = 4

Damaged = Callable[[str, tuple[int, int] | None], None]


def next_check(last_wall: float) -> float:
    """Return when the night after a moment comes to the hour of the check."""
    last = datetime.fromtimestamp(last_wall).astimezone()
    due = last.replace(hour=NIGHT_HOUR, minute=0, second=0, microsecond=0)
    return (due if due > last else due + timedelta(days=1)).timestamp()


class NightlyCheck:
    """Looks through the file when its time has come; ``report`` is told of damage and of which file."""

    def __init__(self, target: str, wall: Callable[[], float], report: Damaged) -> None:
        self._target, self._wall, self._report = target, wall, report
        self._due_wall = wall() + FIRST_SECONDS
        self._thread: threading.Thread | None = None
        #: what the last look found; None before the first
        self.findings: tuple[str, ...] | None = None
        self.last_wall: float | None = None

    def __call__(self) -> None:
        """Begin a look if it is time and none is under way."""
        now = self._wall()
        # a clock that was years ahead and went back must not put the next look off for years
        self._due_wall = min(self._due_wall, next_check(now))
        if now < self._due_wall or (self._thread is not None and self._thread.is_alive()):
            return
        self._due_wall = next_check(now)
        self._thread = threading.Thread(target=self._look, name="wslgpud-check", daemon=True)
        self._thread.start()

    def soon(self) -> None:
        """Let it be time for a look: there is a reason for doubt."""
        self._due_wall = self._wall()

    def join(self) -> None:
        """Wait for a look that is under way."""
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        try:
            with Reader(self._target) as reader:
                found, identity = reader.check(), reader.identity
        except StoreError as error:
            log.warning("the history could not be checked: %s", error)
            return
        self.findings, self.last_wall = tuple(found), self._wall()
        if found:
            log.error("%s: %s", self._target, found[0])
            self._report(found[0], identity)
