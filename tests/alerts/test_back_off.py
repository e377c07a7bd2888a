"""A channel that is down is tried again ever more rarely, and at once when it is back."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from wslgpud.alerts.channels import Channel, DeliveryError
from wslgpud.alerts.dispatcher import Dispatcher
from wslgpud.words import Message, to_json

WALL = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def wall(self) -> float:
        return WALL + self.now

    def mono(self) -> float:
        return self.now


class Waiting(NamedTuple):
    id: int
    payload: Mapping[str, Any]
    created_wall: float
    channel: str = "down"
    transition_id: int | None = None


class Outbox:
    """Messages that wait; counts how often it was looked into."""

    def __init__(self, *numbers: int) -> None:
        self.waiting = [Waiting(number, {"message": to_json(Message("x"))}, WALL) for number in numbers]
        self.looks = 0
        self.changed = threading.Condition()

    def unsent(self, channel: str | None = None) -> list[Waiting]:
        with self.changed:
            self.looks += 1
            self.changed.notify()
            return list(self.waiting)

    def tried(self, delivery_id: int, error: object, *, done: bool) -> None:
        if done:
            assert not error, error
            assert self.waiting.pop(0).id == delivery_id


class Down(Channel):
    """Records when it was tried; accepts what it is told to accept."""

    name = "down"
    human = False

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.tries: list[float] = []
        self.takes: set[int] = set()

    def send(self, message: Mapping[str, Any]) -> None:
        self.tries.append(self.clock.now)
        if len(self.tries) not in self.takes:
            raise DeliveryError("down")


class Line:
    """A dispatcher with one channel, and a clock that waits for it."""

    def __init__(self, *numbers: int) -> None:
        self.clock, self.outbox = Clock(), Outbox(*numbers)
        self.channel = Down(self.clock)
        self.dispatcher = Dispatcher([self.channel], self.outbox, self.clock)

    def pass_(self, seconds: float) -> None:
        """Let time pass by half seconds; in each, the channel's thread has done all that was due."""
        for _ in range(int(seconds * 2)):
            self.clock.now += 0.5
            self.settle()

    def settle(self) -> None:
        # Its second look from now on comes after a whole step.
        for _ in range(2):
            with self.outbox.changed:
                seen = self.outbox.looks
                self.dispatcher.wake()
                assert self.outbox.changed.wait_for(lambda seen=seen: self.outbox.looks > seen, timeout=180)


def test_it_is_tried_after_1_5_15_60_and_then_each_300_seconds() -> None:
    line = Line(1)
    line.dispatcher.start()
    line.settle()
    line.pass_(1000)
    line.dispatcher.close(60)

    assert [b - a for a, b in pairwise(line.channel.tries)] == [1, 5, 15, 60, 300, 300, 300]


def test_after_a_success_it_begins_anew() -> None:
    line = Line(1, 2)
    line.channel.takes = {4}
    line.dispatcher.start()
    line.settle()
    line.pass_(40)
    line.dispatcher.close(60)

    assert line.channel.tries == [0, 1, 6, 21, 21, 22, 27]
