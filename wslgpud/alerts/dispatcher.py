"""Hands what waits in the outbox to the channels: at least once, in order, never in the way of a tick."""

from __future__ import annotations

import heapq
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from wslgpud.alerts.channels import Channel, DeliveryError, Refreshed
from wslgpud.alerts.message import Message, digest, level_of, numbered, worded
from wslgpud.alerts.policy import Manners
from wslgpud.host import Clock
from wslgpud.model import Level
from wslgpud.words import ENGLISH, Said, Tongue, cause, say

log = logging.getLogger(__name__)

#: seconds before the next try after 1, 2, ... failures in a row
BACK_OFF_SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0)
#: a warning older than this is history, not a warning
EXPIRY_SECONDS = 24 * 3600.0
#: messages that wait for one channel; of more, those that matter least are given up, the oldest first
MOST_WAITING = 500
#: an open end of quiet hours is looked at this often: the wall clock may be set meanwhile
RECHECK_SECONDS = 60.0


class Delivery(Protocol):
    """A message that waits for its channel."""

    @property
    def id(self) -> int:
        """What marks it sent."""

    @property
    def channel(self) -> str:
        """Name of its channel."""

    @property
    def payload(self) -> Mapping[str, Any]:
        """The message."""

    @property
    def created_wall(self) -> float:
        """When it was put there, in seconds since the epoch."""

    @property
    def transition_id(self) -> int | None:
        """The row it tells of."""


class Outbox(Protocol):
    """Where messages wait, over restarts, until they are marked."""

    def unsent(self, channel: str | None = None) -> Sequence[Delivery]:
        """Return what one channel, or any, has not taken yet, oldest first."""

    def mark_sent(self, delivery_id: int) -> None:
        """Note that the channel took it."""

    def mark_failed(self, delivery_id: int, error: Said) -> None:
        """Note a failed try; it goes on waiting."""

    def abandon(self, delivery_id: int, error: Said) -> None:
        """Give it up, with the reason."""


class Dispatcher:
    """A thread a channel that sends what waits, also what an earlier run left; ``wake`` tells of more."""

    def __init__(  # noqa: PLR0913 - all that a line needs
        self,
        channels: Sequence[Channel],
        outbox: Outbox,
        clock: Clock,
        *,
        manners: Callable[[], Manners] = Manners,
        tongue: Tongue = ENGLISH,
        expiry_seconds: float = EXPIRY_SECONDS,
        levels: Mapping[str, Level] = MappingProxyType({}),
    ) -> None:
        """Prepare a line for each channel, so that one that hangs holds up no other.

        Args:
            channels: where messages go.
            outbox: where they wait.
            clock: time.
            manners: makes what a channel for people observes.
            tongue: the language of what is sent.
            expiry_seconds: after how long a message is given up.
            levels: by channel, the lowest level that it is reminded of.
        """
        self.counts: Counter[tuple[str, str]] = Counter()
        self.levels = levels
        self._open: Sequence[Message] = ()
        self._lines = [
            _Line(channel, outbox, clock, self, manners() if channel.human else None, tongue, expiry_seconds)
            for channel in channels
        ]

    def start(self) -> None:
        """Start sending."""
        for line in self._lines:
            line.thread.start()

    def wake(self) -> None:
        """Say that the outbox has more."""
        for line in self._lines:
            line.wake.set()

    def close(self, timeout_seconds: float) -> None:
        """Stop after what is being sent; the rest stays in the outbox for the next run."""
        for line in self._lines:
            line.stopping = True
            line.wake.set()
        for line in self._lines:
            if line.thread.is_alive():
                line.thread.join(timeout_seconds / len(self._lines))

    def now_open(self, messages: Sequence[Message]) -> None:
        """Say which incidents are open, for channels that must hear of them again and again."""
        self._open = tuple(messages)

    @property
    def open_messages(self) -> Sequence[Message]:
        """Messages of the incidents that are open."""
        return self._open

    def waiting(self) -> dict[str, int]:
        """Return how many messages wait for each channel."""
        return {line.channel.name: len(line.outbox.unsent(line.channel.name)) for line in self._lines}


class _Line:
    """A channel, what waits for it, and how it fares."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of one line, made in one place
        self,
        channel: Channel,
        outbox: Outbox,
        clock: Clock,
        owner: Dispatcher,
        manners: Manners | None,
        tongue: Tongue,
        expiry_seconds: float,
    ) -> None:
        self.channel = channel
        self.outbox = outbox
        self.wake = threading.Event()
        self.stopping = False
        self.thread = threading.Thread(target=self._work, name=f"alerts-{channel.name}", daemon=True)
        self._clock = clock
        self._owner = owner
        self._manners = manners
        self._tongue = tongue
        self._expiry = expiry_seconds
        self._failures = 0
        self._overfull = False
        self._not_before = 0.0
        self._refreshed = clock.mono()

    def _work(self) -> None:
        while not self.stopping:
            self.wake.clear()
            try:
                pause = self._step()
            except Exception:
                # Else the thread would end, and with it the channel, without a word.
                log.exception("channel %s stumbled; please report this", self.channel.name)
                pause = RECHECK_SECONDS
            if pause is None or pause > 0:
                self.wake.wait(pause)

    def _step(self) -> float | None:
        """Do one thing; return the seconds until the next, None when nothing waits."""
        waiting = self._bounded(self.outbox.unsent(self.channel.name))
        if (pause := self._not_before - self._clock.mono()) > 0:
            return pause
        if not waiting:
            return self._refresh()
        wall = self._clock.wall()
        if wall - waiting[0].created_wall > self._expiry:
            self._done(
                waiting[:1], "expired", say("older than {expiry_seconds}", expiry_seconds=self._expiry)
            )
            return 0.0
        batch = waiting[:1]
        if self._manners is not None:
            # What has piled up is one message: nobody reads forty of them one by one.
            batch = waiting
            worst = max(level_of(d.payload) for d in waiting)
            if (pause := self._manners.wait(worst, wall, self._clock.mono())) > 0:
                return min(pause, RECHECK_SECONDS)
        return self._send(batch)

    def _bounded(self, waiting: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return what goes on waiting; more than anybody reads would fill the memory of a night."""
        excess = len(waiting) - MOST_WAITING
        if excess <= 0:
            self._overfull = self._overfull and len(waiting) > MOST_WAITING // 2
            return waiting
        least = heapq.nsmallest(excess, waiting, key=lambda d: (level_of(d.payload), d.id))
        if not self._overfull:  # once, and not for each message of a flood
            self._overfull = True
            log.warning(
                "%s: more than %d messages wait; those that matter least are given up", self.channel.name,
                MOST_WAITING,
            )  # fmt: skip
        self._done(least, "dropped", say("more than {count} messages were waiting", count=MOST_WAITING))
        gone = {delivery.id for delivery in least}
        return [delivery for delivery in waiting if delivery.id not in gone]

    def _send(self, batch: Sequence[Delivery]) -> float:
        try:
            messages = [worded(numbered(d.payload, d.transition_id), self._tongue) for d in batch]
            self.channel.send(digest(messages, self._tongue))
        except DeliveryError as error:
            log.warning("alert not sent by %s: %s", self.channel.name, error)
            return self._failed(batch, cause(error), permanent=error.permanent)
        except Exception as bug:
            # A bug in one channel must not end its line for good, nor repeat every second.
            log.exception("channel %s failed; please report this", self.channel.name)
            return self._failed(
                batch, say("internal error: {error}", error=type(bug).__name__), permanent=False
            )
        self._done(batch, "sent", "")
        self._failures = 0
        if self._manners is not None:
            self._manners.sent(self._clock.mono())
        return 0.0

    def _failed(self, batch: Sequence[Delivery], error: Said, *, permanent: bool) -> float:
        if permanent:
            self._done(batch, "refused", error)
            return 0.0
        self._owner.counts[self.channel.name, "failed"] += 1
        self.outbox.mark_failed(batch[0].id, error)
        self._failures += 1
        pause = BACK_OFF_SECONDS[min(self._failures, len(BACK_OFF_SECONDS)) - 1]
        self._not_before = self._clock.mono() + pause
        return pause

    def _done(self, batch: Sequence[Delivery], outcome: str, error: Said) -> None:
        for delivery in batch:
            if outcome == "sent":
                self.outbox.mark_sent(delivery.id)
            else:
                self.outbox.abandon(delivery.id, error)
            self._owner.counts[self.channel.name, outcome] += 1

    def _refresh(self) -> float | None:
        if not isinstance(self.channel, Refreshed):
            return None
        now = self._clock.mono()
        due = self._refreshed + self.channel.refresh_seconds - now
        if due > 0:
            return due
        self._refreshed = now
        least = self._owner.levels.get(self.channel.name, Level.OK)
        messages = [m for m in self._owner.open_messages if Level[str(m["level"]).upper()] >= least]
        if messages:
            try:
                self.channel.refresh([worded(message, self._tongue) for message in messages])
            except DeliveryError as error:
                log.warning("open alerts not renewed at %s: %s", self.channel.name, error)
        return self.channel.refresh_seconds
