"""What the brake would have done is told of recorded incidents: when, whom, and how it ended without it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_json import trace
from tests.page.stage import Stage
from wslgpud.advise.brake_trial import pauses
from wslgpud.config import BrakeSettings
from wslgpud.store import Reader


def history(folder: Path, name: str, ticks: int) -> Iterator[Reader]:
    stage = Stage(folder, database=folder / "wslgpud.db", name="here")
    stage.play(trace(name), ticks)
    stage.close()
    with Reader(str(folder / "wslgpud.db")) as reader:
        yield reader


@pytest.fixture(scope="module")
def leak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    yield from history(tmp_path_factory.mktemp("ram"), "ram-leak_linear-1", 400)


@pytest.fixture(scope="module")
def full_card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    yield from history(tmp_path_factory.mktemp("gpu"), "h200/h200-slow_leak-1", 400)


def tried(reader: Reader, walls: tuple[float, float] = (0.0, 4e9), **settings: Any) -> list[dict[str, Any]]:
    return list(pauses(reader, walls, BrakeSettings(**settings)))


def test_a_leak_would_have_been_paused_before_it_was_over(leak: Reader) -> None:
    rows = [row for _, row in leak.changes(0.0)]
    (found,) = tried(leak)
    at = datetime.fromisoformat(found["at"]).timestamp()

    assert rows[0].wall < at < rows[-1].wall
    assert (found["resource"], found["who"].partition(" (")[0]) == ("ram", "python3")
    assert found["left_bytes"] <= 0.15 * found["capacity_bytes"]
    assert str(found["outcome"]).startswith("over after")


def test_only_critical_incidents_in_the_asked_scope_are_tried(leak: Reader) -> None:
    opened = next(row.wall for _, row in leak.changes(0.0))
    paused = datetime.fromisoformat(tried(leak)[0]["at"]).timestamp()

    assert tried(leak, resources=("gpu", "cgroup")) == []
    assert len(tried(leak, resources=("ram",))) == 1
    assert len(tried(leak, (opened, 4e9))) == 1
    assert tried(leak, (opened + 0.001, 4e9)) == [], "not under the number of a later row either"
    assert tried(leak, (0.0, opened - 0.001)) == []
    assert len(tried(leak, (0.0, paused + 1.0))) == 1


def test_of_a_card_no_culprit_is_named_without_one(full_card: Reader) -> None:
    (found,) = tried(full_card)

    assert (found["resource"], found["who"], str(found["outcome"])) == ("gpu0", "", "still open")
