"""The history over the live view, and the figures of ``wslgpud history``, character by character."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from tests.live.test_rows import looked, printed
from tests.support.documents import GIB, calm
from wslgpud.advise.live_sample import CurveKey
from wslgpud.cli.chart import drawn
from wslgpud.cli.history import _last
from wslgpud.cli.live.past import Drawn, Past, before
from wslgpud.cli.live.series_view import SPANS, SeriesWindow, history
from wslgpud.colors import TERMINAL_LINES
from wslgpud.series.curves import Curve
from wslgpud.series.export import coarser
from wslgpud.store import SeriesRef
from wslgpud.store.records import Oldest, Point

NOW = datetime(2026, 11, 20, 14, 0).timestamp()
HOUR, DAY = 3600.0, 86400.0


def curve(name: str, *points: float, unit: str = "bytes", host: str = "", **labels: str) -> Curve:
    """Return a curve of the last minute, whose extremes are an eighth below and above its values."""
    placed = [(NOW - 60 + 10 * n, value * 0.875, value, value * 1.125) for n, value in enumerate(points)]
    return Curve(SeriesRef(name, tuple(labels.items()), host), unit, rate=False, points=placed)


def screen(drawn: Drawn | None, trouble: str = "", height: int = 16, **view: Any) -> list[str]:
    window = SeriesWindow(("ram", "vram"), 1, 0, **view)
    shown = history(window, drawn, ("from here", trouble), (78, height), NOW)
    return [line.rstrip() for line in printed(shown, 78).splitlines()]


def test_the_range_is_drawn_with_its_curves_choices_and_source() -> None:
    curves = [curve("a", *[4 * GIB] * 6), curve("b", *[9 * GIB] * 6), curve("c", 1.0, unit="celsius")]

    assert screen(Drawn(curves, 10.0)) == [
        " ram  vram",
        " 1 min  5 min  15 min  1 h  6 h  24 h  7 d  30 d  90 d  1 y",
        "  15 GiB ┤",
        "         ┤",
        "         ┤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⡄",
        "         ┤⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⡇",
        " 6.4 GiB ┤",
        "         ┤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⣤⡄",
        "         ┤⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠁",
        "   0 KiB ┤",
        "          13:59:00          13:59:20               13:59:40           14:00:00",
        "    series      min     mean      max     last",
        "━━  b       7.9 GiB  9.0 GiB   10 GiB  9.0 GiB",
        "━━  a       3.5 GiB  4.0 GiB  4.5 GiB  4.0 GiB",
        "2026-11-20 13:59:00 to 2026-11-20 14:00:00, a point every 10 s, from here",
    ]


@pytest.mark.parametrize(
    ("count", "height", "listed", "more"), [(9, 12, 1, 8), (9, 15, 1, 8), (9, 16, 2, 7), (2, 16, 2, 0)]
)
def test_a_third_of_the_lines_below_the_choices_lists_curves(count: int, height: int, listed: int, more: int) -> None:
    lines = screen(Drawn([curve(f"m{n}", *[4 * GIB] * 6) for n in range(count)], 10.0), height=height)

    assert len([line for line in lines if "━━ " in line]) == listed
    assert (f"and {more} more" in lines[-1]) == bool(more)
    assert len(lines) == height - 1


def test_in_the_lowest_terminal_the_chart_still_has_four_lines() -> None:
    lines = {height: screen(Drawn([curve("a", *[4 * GIB] * 6)], 10.0), height=height) for height in (6, 11, 12)}

    assert lines[6] == lines[11]
    assert [len([line for line in lines[height] if "┤" in line]) for height in (11, 12)] == [4, 5]


def test_without_curves_it_is_said_why() -> None:
    assert screen(None)[-1] == "  looking ..."
    assert screen(Drawn([], 10.0))[-1] == "  nothing was recorded in this time"
    assert screen(Drawn([curve("a", 4.0 * GIB)], 10.0), "no answer")[-1] == "  no answer"


def test_each_range_is_as_long_as_it_is_called() -> None:
    assert dict(SPANS) == {
        "1 min": 60,
        "5 min": 300,
        "15 min": 900,
        "1 h": HOUR,
        "6 h": 6 * HOUR,
        "24 h": DAY,
        "7 d": 7 * DAY,
        "30 d": 30 * DAY,
        "90 d": 90 * DAY,
        "1 y": 365 * DAY,
    }


def test_a_window_moves_by_half_its_length_and_comes_back_to_now() -> None:
    view = SeriesWindow(("ram", "vram", "gpu"))

    assert (view.word, view.seconds, view.back_seconds, SeriesWindow().word) == ("ram", 900, 0.0, "")
    assert (view.other(1).word, view.other(-1).word, view.other(1).other(1).other(1).word) == ("vram", "gpu", "ram")
    assert SeriesWindow().other(1) == SeriesWindow()
    assert (view.longer(1).seconds, view.longer(-1).seconds) == (HOUR, 300)
    earlier = view.moved(-1).moved(-1)
    assert (earlier.back_seconds, earlier.moved(1).back_seconds, earlier.until_now()) == (900.0, 450.0, view)


def legend(*curves: Curve) -> list[str]:
    lines = printed(drawn(curves, (NOW - 60, NOW), 10.0, (90, 5)), 90).splitlines()
    return lines[next(number for number, line in enumerate(lines) if "series" in line) :]


def test_the_legend_shows_extremes_mean_last_value_and_machine() -> None:
    curves = [
        curve("a", 4.0, 16.0, 8.0, 12.0, unit="", host="pc", uuid="GPU-1", gpu="0"),
        curve("b", 1.0, unit="", host="nas"),
    ]
    lines = legend(*curves)
    alone = legend(curves[0])
    many = legend(*(curve(f"m{n}", 1.0) for n in range(len(TERMINAL_LINES) + 1)))

    assert [line.split() for line in lines] == [
        ["series", "min", "mean", "max", "last"],
        ["━━", "pc:", 'a{gpu="0"}', "3.5", "10", "18", "12"],
        ["━━", "nas:", "b", "0.875", "1", "1.12", "1"],
    ]
    assert "pc:" not in " ".join(alone)
    assert ["━━" in line for line in many[1:]] == [True] * len(TERMINAL_LINES) + [False]


def test_a_last_value_tells_its_age_after_90_s() -> None:
    def told(age: float) -> tuple[str, str]:
        return _last(Point(time.time() - age, 3 * GIB), "bytes")

    assert told(60) == ("3.0 GiB", "")
    assert told(120) == ("3.0 GiB", "2 min ago")
    assert _last(None, "bytes") == ("", "not recently")


def test_sparklines_begin_with_the_daemons_history() -> None:
    document = calm(at=datetime.fromtimestamp(NOW).astimezone().isoformat())
    look = replace(looked(document), mono=1000.0)
    curves = {
        "headroom": [curve("headroom_bytes", *[6 * GIB] * 8, resource="ram"), curve("x", 1.0, resource="swap")],
        "gpu": [curve("gpu_utilization_ratio", 0.5, gpu="0")],
        "cpu": [curve("cpu_seconds", 0.75, mode="idle"), curve("cpu_seconds", 0.25, mode="user")],
    }
    asked = []

    def drawn(word: str, start: float, end: float, points: int) -> Drawn:
        asked.append((word, start, end, points))
        return Drawn(curves[word], 10.0)

    past = Past("here", lambda: list(curves), drawn)
    assert before(past, look) == [
        (CurveKey("used", "ram"), [(940.0 + 10 * n, 0.75) for n in range(6)]),
        (CurveKey("busy", "0"), [(940.0, 0.5)]),
        (CurveKey("cpu"), [(940.0, 0.25)]),
    ]
    assert asked == [(word, NOW - 600, NOW, 300) for word in ("headroom", "gpu", "cpu")]
    assert before(Past("here", list, drawn), look) == [(CurveKey("cpu"), [])]
    assert before(None, look) == []


@pytest.mark.parametrize(
    ("ago", "step", "said"),
    [
        (DAY, 10.0, []),
        (DAY + 1, 10.0, ["samples"]),
        (DAY + 1, 60.0, []),
        (DAY + 1, 59.0, ["samples"]),
        (11 * DAY, 59.0, ["samples", "minutes"]),
        (11 * DAY, 3599.0, ["minutes"]),
        (11 * DAY, 3600.0, []),
    ],
)
def test_a_drawing_says_where_it_is_coarser_than_its_steps(ago: float, step: float, said: list[str]) -> None:
    kept = Oldest(NOW - DAY, NOW - 10 * DAY, NOW - 90 * DAY)

    assert [str(message).split()[0] for message in coarser(kept, NOW - ago, step)] == said
