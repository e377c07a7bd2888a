"""The doctor's rounds: the daemon has the machine checked now and then, keeps the findings, and counts them."""

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

#: A check-up takes a second of a processor and asks the driver anew: often enough for what changes by hand.
FIRST_SECONDS, EVERY_SECONDS = 120.0, 6 * 3600.0
#: who asks gets findings no older than that; a failed check is not repeated at once
FRESH_SECONDS, RETRY_SECONDS = 300.0, 30.0
#: requests during a check wait for its result, but no longer than this
PATIENCE_SECONDS = 3.0
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

Findings = list[dict[str, MessageLike]]


class Checkups:
    """The doctor's latest findings, renewed now and then in a thread of its own, and on request once they are old."""

    def __init__(
        self,
        check: Callable[[], Findings],
        clock: Clock,
        first_seconds: float = FIRST_SECONDS,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        """Call ``check`` every so often for the findings, each with its ``state``; the first time after a while."""
        self._check, self._clock, self._first, self._every = check, clock, first_seconds, every_seconds
        self._end = threading.Event()
        self._lock = threading.Lock()
        #: when the machine was checked (wall), and what was found; None while that is not known
        self._known: tuple[float, Findings] | None = None
        #: when a request has it checked again
        self._due_mono = float("-inf")
        self.start = threading.Thread(target=self._run, name="doctor", daemon=True).start

    def close(self) -> None:
        """Go on no more rounds; one under way is not waited for."""
        self._end.set()

    def readings(self) -> Iterable[Reading]:
        """Return the number of findings of each state, once they are known."""
        if (known := self._known) is None:
            return []
        counts = Counter(str(finding["state"]) for finding in known[1])
        return [Reading(FINDINGS, counts[state], (state,)) for state in STATES]

    def last(self) -> tuple[float, Findings] | None:
        """Return when the machine was checked, some minutes ago at most, and what was found; None: it failed lately.

        Raises:
            TimeoutError: a check is under way: a driver that hangs must not hold up whoever asks.
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
        self._due_mono = now + RETRY_SECONDS  # first: one that fails must not run again at each request
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
