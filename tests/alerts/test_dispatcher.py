"""A warning reaches each channel at least once, in order, and nothing waits for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from wslgpud.alerts.channels import Channel, DeliveryError
from wslgpud.alerts.channels.programs import CommandChannel
from wslgpud.alerts.dispatcher import Dispatcher, rendered
from wslgpud.alerts.messages import Text, payload
from wslgpud.host import SystemClock
from wslgpud.model import Forecast, Level, Transition
from wslgpud.words import ENGLISH, Message, to_json


def warning(headline: str, old: Level = Level.OK, new: Level = Level.WARNING, wall: float | None = None) -> Transition:
    forecast = Forecast("ram", new, 10, 100, eta_seconds=60.0, probabilities={300: 0.9}, who="python (pid 7)")
    return Transition(
        wall or SystemClock().wall(), 1.0, "ram", "memory_exhaustion", old, new, Message(headline), forecast
    )


class Waiting(NamedTuple):
    id: int
    payload: Mapping[str, Any]
    created_wall: float
    transition_id: int | None = None


class Outbox:
    """The part of the store that the dispatcher uses."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.sent: list[int] = []
        self.given_up: list[tuple[int, str]] = []
        self.changed = threading.Condition()

    def put(self, number: int, headline: str, wall: float | None = None) -> None:
        self.waiting.append(Waiting(number, {"message": to_json(Message(headline))}, wall or SystemClock().wall()))

    def unsent(self, channel: str) -> list[Waiting]:
        return list(self.waiting)

    def tried(self, delivery_id: int, error: str, *, done: bool) -> None:
        with self.changed:
            assert self.waiting[0].id == delivery_id
            if not done:
                return
            del self.waiting[0]
            if error:
                self.given_up.append((delivery_id, error))
            else:
                self.sent.append(delivery_id)
            self.changed.notify()

    def wait_until_empty(self) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: not self.waiting, timeout=180)


class Flaky(Channel):
    """A channel that is down for the first few tries."""

    name = "flaky"
    human = False

    def __init__(self, failures: int, *, permanent: bool = False) -> None:
        self.failures = failures
        self.permanent = permanent
        self.took: list[str] = []

    def send(self, message: Mapping[str, Any]) -> None:
        if self.failures:
            self.failures -= 1
            raise DeliveryError("down", permanent=self.permanent)
        self.took.append(message["headline"])


def test_what_an_earlier_run_left_is_sent_and_then_what_comes() -> None:
    outbox, channel = Outbox(), Flaky(0)
    outbox.put(1, "old")
    dispatcher = Dispatcher([channel], outbox, SystemClock())
    dispatcher.start()
    outbox.wait_until_empty()
    outbox.put(2, "new")
    dispatcher.wake()
    outbox.wait_until_empty()
    dispatcher.close(5)

    assert channel.took == ["old", "new"]


def test_a_channel_that_was_down_gets_every_message_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wslgpud.alerts.dispatcher.BACK_OFF_SECONDS", (0.01,))
    outbox, channel = Outbox(), Flaky(3)
    for number in range(5):
        outbox.put(number, str(number))
    dispatcher = Dispatcher([channel], outbox, SystemClock())
    dispatcher.start()
    outbox.wait_until_empty()
    dispatcher.close(5)

    assert channel.took == ["0", "1", "2", "3", "4"]
    assert outbox.sent == [0, 1, 2, 3, 4]


class HandClock(SystemClock):
    """Time that moves when the test says so."""

    now = 0.0

    def mono(self) -> float:
        return self.now


def test_retries_back_off_to_five_minutes_and_reset_on_success() -> None:
    outbox, channel, clock = Outbox(), Flaky(7), HandClock()
    outbox.put(1, "RAM full")
    (worker,) = Dispatcher([channel], outbox, clock)._workers
    pauses = []
    while channel.failures:
        pauses.append(worker._step())
        clock.now += pauses[-1] - 0.5
        assert worker._step() == 0.5, "nothing is tried before its time"
        clock.now += 0.5
    assert pauses == [1.0, 5.0, 15.0, 60.0, 300.0, 300.0, 300.0]

    assert (worker._step(), channel.took) == (0.0, ["RAM full"])
    outbox.put(2, "RAM full again")
    channel.failures = 1
    assert worker._step() == 1.0


def test_a_day_old_or_refused_message_is_given_up_with_a_reason() -> None:
    outbox, channel = Outbox(), Flaky(1, permanent=True)
    outbox.put(1, "yesterday", wall=1.0)
    outbox.put(2, "refused")
    outbox.put(3, "taken")
    dispatcher = Dispatcher([channel], outbox, SystemClock())
    dispatcher.start()
    outbox.wait_until_empty()
    dispatcher.close(5)

    assert [(n, str(why)) for n, why in outbox.given_up] == [(1, "older than 24 h"), (2, "down")]
    assert channel.took == ["taken"]


def test_a_message_that_lacks_memory_to_be_rendered_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_: object) -> None:
        raise MemoryError

    outbox, channel = Outbox(), Flaky(0)
    outbox.put(1, "taken")
    (worker,) = Dispatcher([channel], outbox, HandClock())._workers
    with monkeypatch.context() as short:
        short.setattr("wslgpud.alerts.dispatcher.rendered", lacks)
        with pytest.raises(MemoryError):
            worker._step()
    worker._step()

    assert channel.took == ["taken"]


def test_a_message_that_cannot_be_rendered_holds_up_no_other() -> None:
    outbox, channel = Outbox(), Flaky(0)
    outbox.waiting = [Waiting(1, {"message": ["of another version"]}, SystemClock().wall())]
    outbox.put(2, "taken")
    (worker,) = Dispatcher([channel], outbox, HandClock())._workers
    assert (worker._step(), worker._step()) == (0.0, 0.0)

    assert [(number, str(why)) for number, why in outbox.given_up] == [(1, "internal error: ValueError")]
    assert channel.took == ["taken"]


def test_the_command_gets_the_warning_as_json(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    row = warning('it\'s "full"; $(rm -rf /)')
    told = rendered(payload(row, Text(row.message)), ENGLISH)
    CommandChannel(["sh", "-c", f"cat > {out}"], 180).send(told)

    message = json.loads(out.read_text())
    assert message["headline"] == 'it\'s "full"; $(rm -rf /)'
    assert (message["resource"], message["level"], message["previous_level"]) == ("ram", "warning", "ok")
    assert message["eta_seconds"] == {"middle": 60.0}


@pytest.mark.parametrize(
    ("command", "seconds", "complaint"),
    [
        (["sh", "-c", "echo no route >&2; exit 3"], 180, "sh failed (3): no route"),
        (["sh", "-c", "sleep 600 & wait"], 0.2, "sh did not end within 1 s and was stopped"),
        (["/no/such/program"], 180, "cannot start /no/such/program: No such file or directory"),
    ],
)
def test_a_command_that_does_not_do_is_named_and_tried_again(
    command: list[str], seconds: float, complaint: str
) -> None:
    with pytest.raises(DeliveryError) as caught:
        CommandChannel(command, seconds).send({})

    assert str(caught.value) == complaint
    assert not caught.value.permanent
