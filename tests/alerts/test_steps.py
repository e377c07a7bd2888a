"""A leak costs about one message for each step of its level, replayed through engine, manager and channel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.test_manager import Life, Recorder
from tests.page.stage import TRACES, snapshot_of
from wslgpud.model import Level
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.trace import read_trace

OK, WARNING, CRITICAL, EMERGENCY = Level.OK, Level.WARNING, Level.CRITICAL, Level.EMERGENCY
LEAKS = (
    "h200/h200-slow_leak-1",
    "h200/h200-validation_leak-1",
    "h200/h200-saw_with_leak-1",
    "h200/h200-fast_burst-1",
    "h200/h200-longer_conversations-1",
    "gpu-leak_outputs-1",
    "real-late_leak_oom",
    "real-tmpfs_oom",
)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    one = Life(tmp_path)
    yield one
    one.end()


def replayed(life: Life, name: str) -> list[Mapping[str, Any]]:
    """Play a recording through engine and manager; return the messages queued for people."""
    engine = RiskEngine()
    for number, seen in enumerate(read_trace(TRACES / f"{name}.jsonl.gz")):
        life.clock.t = seen.t
        found = engine.observe(seen, life.clock.wall())
        snapshot = snapshot_of(seen, found.forecasts, life.clock.wall() - seen.t, life.clock.mono() - seen.t, number)
        life.manager.tick(snapshot, found.forecasts, [replace(change, mono=snapshot.mono) for change in found.changes])
    return life.waiting()


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_sends_at_most_one_message_a_step(name: str, life: Life) -> None:
    sent = replayed(life, name)

    assert sent
    assert max(Counter((m["resource"], m["level"]) for m in sent).values()) == 1
    assert not [m["headline"] for m in sent if m["headline"].startswith("Again")]


def test_a_step_up_replaces_a_lower_one_that_waits(life: Life) -> None:
    people = life.channels[0]
    people.down = True
    life.memory(1, OK, WARNING, eta=40)
    life.memory(1.3, WARNING, CRITICAL, eta=20)
    life.memory(1.6, CRITICAL, EMERGENCY, eta=5)
    people.down = False
    life.manager.dispatcher.start()
    (message,) = people.wait_for(1)

    assert (message["level"], "count" in message) == ("emergency", False)
    assert life.manager.dispatcher.counts == {("people", "replaced"): 2, ("people", "sent"): 1}


def test_programs_get_each_step(tmp_path: Path) -> None:
    system = Recorder("system", human=False)
    life = Life(tmp_path, system)
    life.memory(1, OK, WARNING, eta=40)
    life.memory(1.3, WARNING, EMERGENCY, eta=5)
    life.manager.dispatcher.start()
    got = system.wait_for(2)
    life.end()

    assert [message["level"] for message in got] == ["warning", "emergency"]


@pytest.mark.parametrize(("left", "again"), [(1799, True), (1801, False)])
def test_again_is_said_after_a_recovery_that_was_short(left: int, again: bool, life: Life) -> None:
    life.memory(1, OK, WARNING, eta=40)
    life.memory(2, WARNING, CRITICAL, eta=20)
    life.memory(3, CRITICAL, WARNING)
    life.memory(4, WARNING, CRITICAL, eta=10)
    life.memory(5, CRITICAL, OK)
    life.memory(5 + left, OK, WARNING, eta=40)
    life.memory(6 + left, WARNING, CRITICAL, eta=20)

    assert [m["headline"].startswith("Again") for m in life.waiting()] == [*[False] * 5, again, False]


def test_a_note_before_a_warning_is_no_recovery(life: Life) -> None:
    life.memory(1, OK, Level.INFO)
    life.memory(2, Level.INFO, OK)
    life.memory(3, OK, WARNING)

    assert life.waiting()[-1]["headline"].startswith("RAM")
