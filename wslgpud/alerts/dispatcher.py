"""Hands transition rows to the channels: at least once, in order, never in the way of a tick."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from wslgpud.alerts.channels import Channel, DeliveryError
from wslgpud.host import Clock
from wslgpud.model import Level, Transition

log = logging.getLogger(__name__)

#: seconds before the next try after 1, 2, ... failures in a row
BACK_OFF_SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0)
#: a warning older than this is history, not a warning
EXPIRY_SECONDS = 24 * 3600.0


class Ledger(Protocol):
    """Where transition rows lie and what has been sent is marked."""

    def unsent(self, channel: str) -> Iterable[tuple[int, Transition]]:
        """Return the rows that the channel has not taken yet, oldest first."""

    def mark_sent(self, transition_id: int, channel: str) -> None:
        """Note that the channel took the row."""


class Dispatcher:
    """A thread that sends what is due; ``submit`` only queues."""

    def __init__(self, channels: Sequence[Channel], ledger: Ledger, minimum: Level, clock: Clock) -> None:
        """Take up what an earlier run left unsent."""
        self._ledger = ledger
        self._minimum = minimum
        self._clock = clock
        self._lines = [_Line(channel, deque(ledger.unsent(channel.name))) for channel in channels]
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def submit(self, transition_id: int, transition: Transition) -> None:
        """Queue a row for every channel."""
        for line in self._lines:
            line.waiting.append((transition_id, transition))
        self._wake.set()

    def close(self, timeout_seconds: float) -> None:
        """Stop after what is being sent; what is left stays unsent in the ledger for the next run."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _work(self) -> None:
        while not self._stopping:
            self._wake.clear()
            pauses = [pause for line in self._lines if (pause := self._step(line)) is not None]
            if 0.0 not in pauses:
                self._wake.wait(min(pauses, default=None))

    def _step(self, line: _Line) -> float | None:
        """Send one row of a channel; return the seconds until it wants the next step, None when idle."""
        now = self._clock.mono()
        if not line.waiting:
            return None
        if line.not_before > now:
            return line.not_before - now
        transition_id, transition = line.waiting[0]
        if self._is_wanted(transition):
            try:
                line.channel.send(transition)
            except DeliveryError as error:
                log.warning("alert not sent by %s: %s", line.channel.name, error)
                if not error.permanent:
                    line.failures += 1
                    pause = BACK_OFF_SECONDS[min(line.failures, len(BACK_OFF_SECONDS)) - 1]
                    line.not_before = self._clock.mono() + pause
                    return pause
            else:
                line.failures = 0
        self._ledger.mark_sent(transition_id, line.channel.name)
        line.waiting.popleft()
        return 0.0

    def _is_wanted(self, transition: Transition) -> bool:
        """Send what reaches the minimum level, and the end of what had reached it, while it is news."""
        if self._clock.wall() - transition.wall > EXPIRY_SECONDS:
            return False
        return max(transition.old, transition.new) >= self._minimum


class _Line:
    """A channel and the rows that wait for it."""

    def __init__(self, channel: Channel, waiting: deque[tuple[int, Transition]]) -> None:
        self.channel = channel
        self.waiting = waiting
        self.failures = 0
        self.not_before = 0.0
