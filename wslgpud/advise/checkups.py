"""The doctor's rounds: the daemon has the machine checked now and then, and counts the findings."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading

log = logging.getLogger(__name__)

#: A check-up takes a second of a processor and asks the driver anew: often enough for what changes by hand.
FIRST_SECONDS, EVERY_SECONDS = 120.0, 6 * 3600.0
STATES = ("problem", "note", "good", "could not tell", "not applicable")

FINDINGS = MetricSpec(
    "doctor_findings",
    "gauge",
    "",
    "Findings of the doctor's last round by state; 'wslgpud doctor' tells them. Absent before the first.",
    ("state",),
    stored=False,  # what is wrong is told in words, and a series of it says no more than the last value
)
METRICS = (FINDINGS,)


class Checkups:
    """Checks in a thread of its own: a driver that hangs holds up nobody."""

    def __init__(
        self,
        check: Callable[[], Iterable[Mapping[str, Any]]],
        first_seconds: float = FIRST_SECONDS,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        """Call ``check`` every so often for the findings, each with its ``state``; the first time after a while."""
        self._check, self._first, self._every = check, first_seconds, every_seconds
        self._end = threading.Event()
        self._counts: Mapping[str, int] = {}
        self.start = threading.Thread(target=self._run, name="doctor", daemon=True).start

    def close(self) -> None:
        """Go on no more rounds; one under way is not waited for."""
        self._end.set()

    def readings(self) -> Iterable[Reading]:
        """Return the number of findings of each state, once they are known."""
        counts = self._counts
        return [Reading(FINDINGS, counts.get(state, 0), (state,)) for state in STATES] if counts else []

    def _run(self) -> None:
        delay = self._first
        while not self._end.wait(delay):
            delay = self._every
            try:
                self._counts = Counter(str(finding["state"]) for finding in self._check())
            except Exception:
                self._counts = {}
                log.exception("the doctor failed; please report this")
