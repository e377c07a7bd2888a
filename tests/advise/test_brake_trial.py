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
from wslgpud.sources import memory
from wslgpud.store import Reader
from wslgpud.store.records import SeriesRef


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


def test_no_pause_is_told_while_the_brake_would_wait_for_zram(leak: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, columns = leak.series(), Reader.columns
    (available,) = (ref for ref in recorded if ref.metric == "memory_available_bytes")
    plain = (memory.ZRAM_FREE, memory.ZRAM_TOTAL)
    added = [available._replace(metric=spec.name) for spec in plain]
    added += [available._replace(metric=memory.STALLED_SECONDS.name, labels=(("resource", "memory"),))]

    def with_zram(
        reader: Reader, series: SeriesRef, start_wall: float, end_wall: float
    ) -> tuple[list[float], list[Any]]:
        walls, values = columns(reader, available if series in added else series, start_wall, end_wall)
        return walls, [0] * len(walls) if series == added[2] else [1] * len(walls) if series in added else values

    monkeypatch.setattr(Reader, "columns", with_zram)
    assert len(tried(leak)) == 1, "there is no zram"
    monkeypatch.setattr(Reader, "series", lambda _: [*recorded, *added])
    assert tried(leak) == []


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
