"""The screens of stress runs, character by character, with every figure that they can show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.stress.support import MIB, night
from wslgpud.cli import stress as stress_screen
from wslgpud.cli.common import Fault
from wslgpud.cli.console import bar
from wslgpud.cli.stress import _show_line
from wslgpud.model import StressResult
from wslgpud.stress.comparison import by_key, differences
from wslgpud.words import say

GIB = 1 << 30
NOON = datetime(2026, 11, 20, 12, 0).timestamp()
DAY_SECONDS = 86400.0
Shown = Callable[..., list[str]]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    def show(draw: Callable[..., None], *arguments: object, **options: object) -> list[str]:
        monkeypatch.setenv("COLUMNS", "110")
        draw(*arguments, **options)
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    return show


def drawn_before(name: str) -> list[str]:
    return (Path(__file__).parent / "screens" / f"{name}.txt").read_text().splitlines()


def nights() -> list[StressResult]:
    """Return a week of runs: two drivers, one card more, one that was left, one without figures."""
    found = [night(n, write_median=(800 + n) * 1e9, usable_bytes=(14000 + 16 * n) * MIB) for n in range(3)]
    found += [night(n, driver="581.15", uuid=f"GPU-{n - 2}") for n in (3, 4)]
    found += [night(5, verdict="skipped", reason=say("the GPU does not answer"))]
    found += [replace(night(6), values={"free_bytes": 0.0, "verified_bytes": 0.0, "read_median": 1e9})]
    return [replace(run, wall=NOON + DAY_SECONDS * n) for n, run in enumerate(found)]


def everything() -> StressResult:
    """Return a run of which everything is known."""
    key = {"mode": "full", "wsl": "no", "reserve_bytes": str(GIB), "engine": "3", "torch": "2.13.0", "driver": ""}
    values = {
        "spec_bytes": 16.0 * GIB,
        "usable_bytes": 14.0 * GIB,
        "peak_bandwidth": 1000e9,
        **{
            f"{kind}_{which}": n * 100e9 for n, kind in enumerate(("write", "change"), 7) for which in ("median", "min")
        },
        "read_median": 700e9,
        "temperature_max_celsius": 70.4,
        "power_max_watts": 300.4,
        "memory_clock_hertz": 14.0e9,
        "slowed_ratio": 0.1,
        "ecc_corrected": 1,
        "ecc_uncorrected": 2,
    }
    rung = {"target": 2 * GIB, "outcome": "ok", "actual": 2e9}
    bad = {"pattern": "walking", "class": "dedicated", "bits": {"7": 2}}
    sample = {"word": 5, "expected": "0", "got": "1"}
    slow = {"bytes": 3e9, "write": 0.1, "change": 0.1, "read": 0.2}
    detail = {
        "ladder": [
            {**rung, "allocate_seconds": 0.0123, "write_seconds": 0.01},
            {**rung, "allocate_seconds": None, "write_seconds": 0.0, "outcome": "refused"},
        ],
        "patterns": [{"name": "walking", "seconds": 1.234, "verified": 9 * GIB, "bad_words": 3}],
        "errors": [
            {**bad, "chunk": 1, "words": 1234, "samples": [sample]},
            {**bad, "chunk": 1, "words": 5, "samples": []},
            {**bad, "chunk": 2, "words": 0, "samples": [], "bits": {str(n): 1 for n in range(4)}},
            {**bad, "chunk": 2, "words": 7, "samples": [sample], "bits": {str(n): 1 for n in range(5)}},
            {"chunk": 3, "samples": [sample]},
        ],
        "chunks": [{"index": 4, "class": "dedicated", **slow}, {"index": 5, "class": "spilled", **slow}],
        "phases": {"filling": 1.5, "soak": 2.25},
    }
    return replace(night(0), values={**night(0).values, **values}, key=key, detail=detail)


def test_a_run_is_shown_with_all_its_rows(shown: Shown) -> None:
    assert shown(stress_screen.print_run, everything(), rows=True) == drawn_before("run")


def test_a_run_is_shown_without_rows_and_unknown_values(shown: Shown) -> None:
    bare = replace(night(0), values={"usable_bytes": 14.0 * GIB, "read_median": 700e9})

    assert shown(stress_screen.print_run, bare) == drawn_before("bare")


def test_the_history_has_a_line_for_each_run(shown: Shown) -> None:
    assert shown(stress_screen.print_history, list(enumerate(nights(), 8))) == drawn_before("history")


def test_runs_of_two_drivers_are_compared(shown: Shown) -> None:
    columns = by_key(nights()[:5])

    assert shown(stress_screen.print_differences, list(columns), differences(columns)) == drawn_before("differences")


def test_runs_of_one_driver_are_not_compared(shown: Shown) -> None:
    columns = by_key(nights()[:3])
    first = shown(stress_screen.print_differences, list(columns), differences(columns))[0]

    assert first == "nothing to compare: all runs are of one driver and torch"


def test_a_cards_complete_runs_are_drawn(shown: Shown) -> None:
    complete = [run for run in nights() if run.complete]

    assert shown(stress_screen._draw, complete, None) == drawn_before("curves")


def test_the_worker_shows_its_phase_and_what_is_checked() -> None:
    shown: list[str] = []
    for more in ({}, {"verified": 3 * GIB}):
        _show_line(lambda *of: shown.append(of[2]), {"event": "beat", "phase": "soak", **more})

    assert shown == ["soaking", "soaking · 3.0 GiB checked"]


def test_wrong_words_are_shown_at_once_and_other_lines_not(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("", silent=True) as shown:
        _show_line(shown, {"event": "bad", "chunk": 3, "pattern": "walking"})
        _show_line(shown, {"event": "filled", "planned": 9})

    assert capsys.readouterr().err.splitlines() == ["wrong words in chunk 3 (walking)"]


def names(runs: Sequence[StressResult], monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Return what is drawn of runs, by its unit."""
    drawn: dict[str, list[str]] = {}
    for curve in pictures(runs, monkeypatch)[0]:
        drawn.setdefault(curve[1], []).append(curve[0])
    return drawn


def pictures(runs: Sequence[StressResult], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[tuple[float, str]]]:
    """Return the curves and the moments of a picture."""
    drawn: list[Any] = []
    monkeypatch.setattr(stress_screen, "plot_curves", lambda *all_of_it: drawn.append(all_of_it))
    stress_screen._draw(runs, Path("nights.png"))
    return drawn[0][0], drawn[0][3]


def test_each_card_has_curves_of_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [replace(night(n, uuid=f"GPU-{n % 2}"), gpu=n % 2, wall=NOON + n) for n in range(4)]

    assert names(runs, monkeypatch) == {
        "GiB": [f"gpu{gpu} {runs[0].name} usable VRAM" for gpu in (0, 1)],
        "GB/s": [f"gpu{gpu} {runs[0].name} {what}" for gpu in (0, 1) for what in ("write", "change", "read")],
    }
    assert names([replace(runs[0], values={"read_median": 1e9, "errors": 0})], monkeypatch) == {"GB/s": ["gpu0 read"]}
    wrong, _ = pictures([replace(runs[0], values={"errors": count}) for count in (0, 2)], monkeypatch)
    assert [(name, unit, [point[2] for point in points]) for name, unit, points in wrong] == [
        ("gpu0 wrong words", "wrong words", [0, 2])
    ]


def test_a_card_without_usable_memory_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    worn = [replace(night(0), values={"usable_bytes": 0.0, "errors": 0})]

    assert [(name, points[0][2]) for name, _, points in pictures(worn, monkeypatch)[0]] == [("gpu0 usable VRAM", 0.0)]


def test_runs_without_figures_leave_nothing_to_draw() -> None:
    for runs in ([], [replace(night(0), values={"errors": 0})]):
        with pytest.raises(Fault, match="nothing to draw"):
            stress_screen._draw(runs, Path("nights.png"))


def test_a_new_driver_of_a_card_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = ("570", "570", "580", "580")
    runs = [replace(night(n), key={"driver": driver}, wall=NOON + n) for n, driver in enumerate(drivers)]
    other = replace(runs[0], uuid="GPU-other", gpu=1, key={"driver": "1"})

    assert pictures([*runs, other], monkeypatch)[1] == [(NOON + 2, "570 → 580")]


@pytest.mark.parametrize("seconds", [0.0, 0.4])
def test_runs_within_a_second_are_drawn_a_second_wide(seconds: float, shown: Shown) -> None:
    runs = [replace(night(n), wall=NOON + n * seconds) for n in range(2)]
    axis = shown(stress_screen._draw, runs, None)[8].split()

    assert (axis[0], axis[-1]) == ("12:00:00", "12:00:01")


def test_on_a_terminal_the_verdict_alone_has_its_colour(monkeypatch: pytest.MonkeyPatch, shown: Shown) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    (line,) = (one for one in shown(stress_screen.print_history, [(8, night(0))]) if "passed" in one)

    assert line.count("\x1b[") == 2
    assert "\x1b[32mpassed " in line
