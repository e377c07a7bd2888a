"""Hands what waits in the outbox to the channels: at least once, in order, never in the way of a tick."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from wslgpud.alerts.channels import Channel, DeliveryError
from wslgpud.host import Clock

log = logging.getLogger(__name__)

#: seconds before the next try after 1, 2, ... failures in a row
BACK_OFF_SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0)
#: a warning older than this is history, not a warning
EXPIRY_SECONDS = 24 * 3600.0


class Delivery(Protocol):
    """A message that waits for its channel."""

    @property
    def id(self) -> int:
        """What marks it sent."""

    @property
    def payload(self) -> Mapping[str, Any]:
        """The message."""

    @property
    def created_wall(self) -> float:
        """When it was put there, in seconds since the epoch."""


class Outbox(Protocol):
    """Where messages wait, over restarts, until they are marked."""

    def unsent(self, channel: str) -> Sequence[Delivery]:
        """Return what the channel has not taken yet, oldest first."""

    def mark_sent(self, delivery_id: int) -> None:
        """Note that the channel took it."""

    def mark_failed(self, delivery_id: int, error: str) -> None:
        """Note a failed try; it goes on waiting."""

    def abandon(self, delivery_id: int, error: str) -> None:
        """Give it up, with the reason."""


class Dispatcher:
    """A thread that sends what waits, also what an earlier run left; ``wake`` tells it of more."""

    def __init__(self, channels: Sequence[Channel], outbox: Outbox, clock: Clock) -> None:
        """Prepare a line for each channel, so that one that is down does not hold up the others."""
        self._outbox = outbox
        self._clock = clock
        self._lines = [_Line(channel) for channel in channels]
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def wake(self) -> None:
        """Say that the outbox has more."""
        self._wake.set()

    def close(self, timeout_seconds: float) -> None:
        """Stop after what is being sent; the rest stays in the outbox for the next run."""
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
        """Send one message of a channel; return the seconds until its next step, None when nothing waits."""
        waiting = self._outbox.unsent(line.channel.name)
        if not waiting:
            return None
        if (pause := line.not_before - self._clock.mono()) > 0:
            return pause
        delivery = waiting[0]
        if self._clock.wall() - delivery.created_wall > EXPIRY_SECONDS:
            self._outbox.abandon(delivery.id, "older than a day")
            return 0.0
        try:
            line.channel.send(delivery.payload)
        except DeliveryError as error:
            log.warning("alert not sent by %s: %s", line.channel.name, error)
            if error.permanent:
                self._outbox.abandon(delivery.id, str(error))
                return 0.0
            self._outbox.mark_failed(delivery.id, str(error))
            line.failures += 1
            pause = BACK_OFF_SECONDS[min(line.failures, len(BACK_OFF_SECONDS)) - 1]
            line.not_before = self._clock.mono() + pause
            return pause
        self._outbox.mark_sent(delivery.id)
        line.failures = 0
        return 0.0


class _Line:
    """A channel and how it fares."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.failures = 0
        self.not_before = 0.0
