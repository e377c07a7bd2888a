"""Which messages are kept, given up, held back or renewed at which second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.alerts.test_back_off import WALL, Clock
from tests.alerts.test_dispatcher import Flaky, Waiting
from wslgpud.alerts.channels import DeliveryError
from wslgpud.alerts.dispatcher import Dispatcher
from wslgpud.config import Alerts
from wslgpud.words import Message, to_json


def message(headline: str, level: str = "warning") -> dict[str, Any]:
    return {"message": to_json(Message(headline)), "level": level}


class Queue:
    """The outbox of one channel; records why a message was given up."""

    def __init__(self, *levels: str) -> None:
        self.waiting: list[Waiting] = []
        self.given_up: dict[int, str] = {}
        self._last = 0
        self.put(*levels)

    def put(self, *levels: str) -> None:
        for level in levels:
            self._last += 1
            self.waiting.append(Waiting(self._last, message(f"message {self._last}", level), WALL))

    def unsent(self, channel: str) -> list[Waiting]:
        return list(self.waiting)

    def tried(self, delivery_id: int, error: object, *, done: bool) -> None:
        if done:
            self.waiting = [one for one in self.waiting if one.id != delivery_id]
            if error:
                self.given_up[delivery_id] = str(error)


class Person(Flaky):
    name = "person"
    human = True


class Renewed(Flaky):
    """A channel that forgets what is not renewed each minute."""

    name = "renewed"
    refresh_seconds = 60.0

    def __init__(self, failures: int) -> None:
        super().__init__(failures)
        self.renewed: list[list[str]] = []

    def refresh(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self.renewed.append([one["headline"] for one in messages])
        if self.failures:
            raise DeliveryError("down")


def test_beyond_500_messages_the_least_important_are_dropped() -> None:
    queue = Queue("critical", *["warning"] * 499)
    dispatcher = Dispatcher([Flaky(1)], queue, Clock())
    dispatcher._workers[0]._step()
    assert queue.given_up == {}

    queue.put("warning", "info")
    dispatcher._workers[0]._step()
    assert queue.given_up == dict.fromkeys((502, 2), "more than 500 messages were waiting")
    assert [one.id for one in queue.waiting] == [1, *range(3, 502)]
    assert dispatcher.counts["flaky", "dropped"] == 2


@pytest.mark.parametrize(("hours", "given_up"), [(2.0, {}), (2.001, {1: "older than 2 h"})])
def test_a_message_older_than_expire_hours_is_dropped(hours: float, given_up: dict[int, str]) -> None:
    queue, clock = Queue("critical"), Clock()
    clock.now = hours * 3600
    (worker,) = Dispatcher([Flaky(0)], queue, clock, Alerts(expire_hours=2))._workers

    assert worker._step() == 0.0
    assert queue.given_up == given_up


def test_messages_over_the_hourly_limit_wait_and_come_as_one() -> None:
    queue, clock, person = Queue("warning"), Clock(), Person(0)
    (worker,) = Dispatcher([person], queue, clock, Alerts(messages_per_hour=1))._workers
    assert (worker._step(), worker._step()) == (0.0, None)

    queue.put("warning", "info")
    pauses = {}
    for clock.now in (0.0, 3539.0, 3599.5, 3600.0):
        pauses[clock.now] = worker._step()
    assert pauses == {0.0: 60.0, 3539.0: 60.0, 3599.5: 0.5, 3600.0: 0.0}, "the end of quiet hours may move meanwhile"
    assert person.took == ["message 1", "2 alerts: message 2"]


@pytest.mark.parametrize("failures", [0, 1])
def test_open_alerts_are_renewed_each_minute_while_nothing_waits(failures: int, caplog) -> None:
    queue, clock, channel = Queue(), Clock(), Renewed(failures)
    (worker,) = Dispatcher(
        [channel], queue, clock, reminders=lambda name: [message("RAM is short")] * (name == "renewed")
    )._workers
    pauses = {}
    for clock.now in (0.0, 59.5, 60.0, 61.0, 120.0):
        pauses[clock.now] = worker._step()

    assert pauses == {0.0: 60.0, 59.5: 0.5, 60.0: 60.0, 61.0: 59.0, 120.0: 60.0}
    assert channel.renewed == [["RAM is short"]] * 2
    assert caplog.messages == ["open alerts not renewed at renewed: down"] * 2 * failures


def test_without_open_alerts_nothing_is_renewed() -> None:
    channel, clock = Renewed(0), Clock()
    (worker,) = Dispatcher([channel], Queue(), clock)._workers
    clock.now = 60.0

    assert (worker._step(), channel.renewed) == (60.0, [])
