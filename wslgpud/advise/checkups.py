"""Periodic check-ups: the daemon runs the doctor now and then, keeps the findings, and counts them."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable

from wslgpud.host import Clock
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading
from wslgpud.words import MessageLike

log = logging.getLogger(__name__)

#: A check-up takes a second of CPU time and queries the driver: often enough for manual changes.
FIRST_SECONDS, EVERY_SECONDS = 120.0, 6 * 3600.0
#: oldest findings for a request; a failed check is not repeated at once
FRESH_SECONDS, RETRY_SECONDS = 300.0, 30.0
#: requests during a check wait for its result, but no longer than this
PATIENCE_SECONDS = 3.0
STATES = ("problem", "note", "good", "could not tell", "not applicable")

FINDINGS = MetricSpec(
    "doctor_findings",
    "gauge",
    "",
    "Findings of the last doctor run by state; 'wslgpud doctor' lists them. Absent before the first.",
    ("state",),
    stored=False,  # a history of it would be no more useful than the last value
)
METRICS = (FINDINGS,)

Findings = list[dict[str, MessageLike]]


class Checkups:
    """The doctor's latest findings, renewed now and then in a separate thread, and on request once they are old."""

    def __init__(
        self,
        check: Callable[[], Findings],
        clock: Clock,
        first_seconds: float = FIRST_SECONDS,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        """Call ``check`` periodically for the findings, each with its ``state``; the first time after a delay."""
        self._check, self._clock, self._first, self._every = check, clock, first_seconds, every_seconds
        self._end = threading.Event()
        self._lock = threading.Lock()
        #: time of the last check (wall), and its findings; None while unknown
        self._known: tuple[float, Findings] | None = None
        #: when a request triggers a new check
        self._due_mono = float("-inf")
        self.start = threading.Thread(target=self._run, name="doctor", daemon=True).start

    def close(self) -> None:
        """Stop checking; a running check is not waited for."""
        self._end.set()

    def readings(self) -> Iterable[Reading]:
        """Return the number of findings by state, once known."""
        if (known := self._known) is None:
            return []
        counts = Counter(str(finding["state"]) for finding in known[1])
        return [Reading(FINDINGS, counts[state], (state,)) for state in STATES]

    def last(self) -> tuple[float, Findings] | None:
        """Return the time of the last check, at most some minutes ago, and its findings; None: it failed recently.

        Raises:
            TimeoutError: a check is still running: a hung driver must not block requests.
        """
        if not self._lock.acquire(timeout=PATIENCE_SECONDS):
            raise TimeoutError
        try:
            if self._clock.mono() >= self._due_mono:
                self._renew()
            return self._known
        finally:
            self._lock.release()

    def _renew(self) -> None:
        now = self._clock.mono()
        self._due_mono = now + RETRY_SECONDS  # set first: a failing check must not run again at each request
        try:
            self._known = round(self._clock.wall(), 3), self._check()
        except Exception:
            self._known = None
            raise
        self._due_mono = now + FRESH_SECONDS

    def _run(self) -> None:
        delay = self._first
        while not self._end.wait(delay):
            delay = self._every
            try:
                with self._lock:
                    self._renew()
            except Exception:
                log.exception("the doctor failed; please report this")
