"""How often and how soon a warning is repeated, which changes count as recent, and how each is recorded and logged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.alerts.test_manager import Life
from wslgpud.model import Forecast, Level, ProcessSample, Transition

OK, INFO, WARNING = Level.OK, Level.INFO, Level.WARNING


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    one = Life(tmp_path)
    yield one
    one.end()


def kinds(life: Life) -> list[str]:
    return [message["kind"] for message in life.waiting()]


@pytest.mark.parametrize(
    ("t", "eta", "repeated"), [(601, 200.0, True), (600.9, 200.0, False), (601, 200.1, False), (601, None, False)]
)
def test_a_warning_is_repeated_at_half_of_the_time_left(
    life: Life, t: float, eta: float | None, repeated: bool
) -> None:
    life.memory(1, OK, WARNING, eta=400.0)
    life.memory(t, WARNING, WARNING, eta=eta)

    assert kinds(life) == ["opened", *["repeated"] * repeated]


def test_a_note_is_not_repeated(life: Life) -> None:
    life.memory(1, OK, INFO, eta=400.0)
    life.memory(660, INFO, INFO, eta=100.0)

    assert "repeated" not in kinds(life)


def test_the_changes_of_the_last_seconds_are_known_up_to_twenty(life: Life) -> None:
    for t in range(1, 13):
        life.memory(2 * t, OK, WARNING)
        life.memory(2 * t + 1, WARNING, OK)

    assert len(life.manager.lately(5.0)) == 6
    assert len(life.manager.lately(60.0)) == 20


@pytest.mark.parametrize(
    ("resource", "listed"), [("cgroup:/job", range(100, 140)), ("cgroup:/none", None), ("ram", None)]
)
def test_the_row_of_a_cgroup_lists_forty_of_its_processes(life: Life, resource: str, listed: range | None) -> None:
    inside = [ProcessSample(pid, 1, "python", 0, 0, cgroup="/job") for pid in range(100, 145)]
    beside = ProcessSample(7, 1, "python", 0, 0, cgroup="/jobs")
    forecast = Forecast(resource, WARNING, 50, 100)
    row = Transition(
        life.clock.wall(), life.clock.mono(), resource, "memory_exhaustion", OK, WARNING, forecast=forecast
    )
    life.manager.tick(life.tick(processes=(beside, *inside)), [forecast], [row])

    ((_, recorded),) = life.rows()
    assert recorded.facts.get("pids") == (None if listed is None else " ".join(map(str, listed)))


def test_an_alert_is_logged_at_its_level(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "wslgpud.alerts.manager")
    levels = [*Level, OK]
    for t, (old, new) in enumerate(pairwise(levels), 1):
        life.memory(t, old, new)

    assert [r.levelname for r in caplog.records] == ["INFO", "WARNING", "ERROR", "CRITICAL", "INFO"]
