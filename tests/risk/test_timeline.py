"""The timeline of a replay on a terminal, character by character."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime

import pytest

from tests.alerts.ticks import transition
from wslgpud.cli.replay import _print_timeline, change_row
from wslgpud.model import Forecast, Level, Transition
from wslgpud.risk import forecast_messages
from wslgpud.risk.trace import Replay

GIB = 1 << 30
ADVICE = (
    "Save your work, then stop or restart what grows. Loading a model or a data set grows as well, and stops by itself."
)
NOON = datetime(2026, 11, 20, 12, 0).timestamp()


def forecast(second: int) -> Forecast:
    """Return one of a RAM that fills in a minute, the faster the fuller."""
    left = (60 - second) * GIB
    return Forecast("ram", Level(min(4, second // 12)), left, 64 * GIB, 1e9, 20.0, 40.04, 70.0)


def change(second: int, old: Level, new: Level) -> Transition:
    return replace(transition(second, old, new), forecast=forecast(second))


def told(second: int) -> str:
    return str(forecast_messages.headline(forecast(second)))


def replayed(**more: float) -> Replay:
    steps = [(12, Level.OK, Level.INFO), (24, Level.INFO, Level.WARNING), (36, Level.WARNING, Level.CRITICAL)]
    changes = [change(*step) for step in (*steps, (40, Level.CRITICAL, Level.WARNING), (50, Level.WARNING, Level.OK))]
    seen = {"ram": [(float(n), forecast(n)) for n in range(61)]}
    return Replay("trace", changes, seen, samples=61, seconds=60.0, **more)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_recording_is_shown_with_its_changes(capsys: pytest.CaptureFixture[str]) -> None:
    _print_timeline(replayed())
    caption, used, levels, *changes = shown(capsys)

    assert caption == "trace: 61 samples, 60 s"
    assert re.fullmatch(r"  RAM  used    ▂[▂▃▄▅▆▇█ ]+█", used)
    assert re.fullmatch(r"       level    {12,}-+░+▓+█+", levels)
    assert changes == [
        "    12.0 s  info",
        f"    24.0 s  warning   {told(24)}",
        f"                      {ADVICE}",
        f"    36.0 s  critical  {told(36)}",
        f"                      {ADVICE}",
        f"    40.0 s  warning   {told(40)}",
        "    50.0 s  ok",
        "  - info  ░ warning  ▓ critical",
        "",
    ]


def test_the_history_is_shown_with_its_times(capsys: pytest.CaptureFixture[str]) -> None:
    _print_timeline(replayed(start_wall=NOON))
    lines = shown(capsys)

    assert lines[:2] == ["history: 61 samples, 60 s", "  2026-11-20 12:00:00 to 2026-11-20 12:01:00"]
    assert lines[4:7] == [
        "    2026-11-20 12:00:12  info",
        f"    2026-11-20 12:00:24  warning   {told(24)}",
        f"                                   {ADVICE}",
    ]


def test_a_change_for_programs_has_null_for_what_is_unknown() -> None:
    def row_of(found: Forecast) -> dict[str, object]:
        return change_row("trace", replace(change(24, Level.OK, Level.WARNING), forecast=found))

    row = row_of(replace(forecast(24), probabilities={60: 0.1, 3600: 0.98765}))
    bare = row_of(replace(forecast(24), eta_seconds=None, probabilities={60: 0.1}))

    assert (row["t"], row["level"], row["eta_s"], row["probability"], row["who"]) == (24, "warning", 40.0, 0.988, None)
    assert (bare["eta_s"], bare["probability"]) == (None, None)
