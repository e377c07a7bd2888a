"""Drawings on a terminal, dot by dot: what stands where, and how the axes are labelled."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest

from wslgpud.alerts.report import HeadroomCurve
from wslgpud.cli.chart import chart, level_strip, used_of
from wslgpud.colors import TERMINAL_LINES
from wslgpud.model import Level
from wslgpud.series.curves import Curve
from wslgpud.store import SeriesRef
from wslgpud.words.units import size

START = datetime(2026, 11, 20, 14, 0).timestamp()
DAY_SECONDS = 86400
MIB = 1 << 20


def curve(*values: float, unit: str = "", every: float = 10.0) -> Curve:
    points = [(START + n * every, value, value, value) for n, value in enumerate(values)]
    return Curve(SeriesRef("x"), unit, rate=False, points=points)


def drawn(*curves: Curve, seconds: float = 100.0, width: int = 29, height: int = 5) -> list[str]:
    def write(value: float) -> str:
        return size(value) if curves[0].unit == "bytes" else f"{value:g}"

    return chart(curves, START, START + seconds, 10.0, write, width=width, height=height).plain.splitlines()


def test_each_step_of_a_curve_is_as_wide_as_it_lasts() -> None:
    assert drawn(curve(*range(10))) == [
        " 10 ┤                     ⢠⠤⠄",
        "    ┤                ⢠⠤⠤⠏⠉⠉",
        "  5 ┤         ⢀⣀⣀⡤⠤⠏⠉⠉",
        "    ┤    ⢀⣀⣀⡖⠒⠚",
        "  0 ┤⣀⣀⡖⠒⠚",
        "     14:00:00        14:01:40",
    ]


def test_a_step_shows_its_extremes_and_a_gap_stays_empty() -> None:
    points = [(0.0, 0.0, 2.0, 4.0), (10.0, 3.0, 3.0, 3.0), (25.0, 1.0, 1.0, 1.0), (60.0, 4.0, 4.0, 4.0)]
    extremes = Curve(
        SeriesRef("x"), "", rate=False, points=[(START + at, low, mean, high) for at, low, mean, high in points]
    )

    assert drawn(extremes) == [
        " 4 ┤⣿⣿⡇            ⠉⠉⠁",
        "   ┤⣿⣿⣷⠒⠒",
        " 2 ┤⣿⣿⡿",
        "   ┤⣿⣿⡇   ⠤⠤⠄",
        " 0 ┤⣿⣿⡇",
        "    14:00:00         14:01:40",
    ]


def test_curves_lie_over_each_other_each_in_its_colour() -> None:
    curves = [curve(0, 0, 0), curve(1, 1, 0)]
    *rows, _ = chart(curves, START, START + 30, 10.0, "{:g}".format, width=28, height=5).split("\n")
    first, second = TERMINAL_LINES[:2]
    inks = [{span.start: str(span.style) for span in row.spans if span.start >= 6} for row in rows]

    assert [row.plain for row in rows] == [
        "   1 ┤⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⢹",
        "     ┤              ⢸",
        " 0.5 ┤              ⢸",
        "     ┤              ⢸",
        "   0 ┤⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣸⣀⣀⣀⣀⣀⣀⡀",
    ]
    across = dict.fromkeys(range(6, 21), second)
    below = {**dict.fromkeys(range(6, 20), first), **dict.fromkeys(range(20, 28), second)}
    assert inks == [across, {20: second}, {20: second}, {20: second}, below]


def test_a_short_step_is_a_dot() -> None:
    assert drawn(curve(1), seconds=10_000, height=3)[0] == "   1 ┤⠁"


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((0, 0), ["1", "0", "-1"]),
        ((5, 5), ["5", "2.5", "0"]),
        ((-3, -3), ["-2", "-3", "-4"]),
        ((6.9, 10), ["10", "5", "0"]),
        ((7, 10), ["10", "8.5", "7"]),
        ((0.5, 0.9), ["1", "0.5", "0"]),
        ((-1, 2), ["2", "0.5", "-1"]),
        ((-40, -3), ["0", "-20", "-40"]),
        ((100, 101), ["101", "100.5", "100"]),
        ((1000, 1013), ["1015", "1007.5", "1000"]),
        ((19.9, 20.15), ["20.175", "20.025", "19.875"]),
        ((70, 79.95), ["80", "75", "70"]),
        ((-0.1, 9.8), ["14.75", "7.25", "-0.25"]),
        ((0, 4.7), ["5", "2.5", "0"]),
        ((0, 201), ["250", "125", "0"]),
    ],
)
def test_axis_labels_are_round_and_start_at_0_where_possible(values: tuple[float, ...], labels: list[str]) -> None:
    told = [line.partition("┤")[0].strip() for line in drawn(curve(*values))]

    assert [told[0], told[2], told[4]] == labels


@pytest.mark.parametrize(
    ("most", "labels"),
    [
        (700 << 10, ["800 KiB", "400 KiB", "0 KiB"]),
        (1000 * MIB, ["1000 MiB", "500 MiB", "0 KiB"]),
        (16 << 30, ["20 GiB", "10 GiB", "0 KiB"]),
    ],
)
def test_bytes_are_round_in_their_binary_unit(most: int, labels: list[str]) -> None:
    told = [line.partition("┤")[0].strip() for line in drawn(curve(0, most, unit="bytes"))]

    assert [told[0], told[2], told[4]] == labels


@pytest.mark.parametrize(
    ("seconds", "width", "times"),
    [
        (1199, 29, "14:00:00 14:19:59"),
        (1200, 29, "14:00 14:20"),
        (2 * DAY_SECONDS, 29, "14:00 14:00"),
        (2 * DAY_SECONDS + 1, 29, "11-20 11-22"),
        (300 * DAY_SECONDS, 29, "11-20 09-16"),
        (300 * DAY_SECONDS + 1, 29, "2026-11 2027-09"),
        (1200, 53, "14:00 14:20"),
        (1200, 54, "14:00 14:10 14:20"),
        (1200, 1000, "14:00 14:04 14:08 14:12 14:16 14:20"),
    ],
)
def test_the_time_axis_is_as_detailed_as_span_and_room_allow(seconds: float, width: int, times: str) -> None:
    assert " ".join(drawn(curve(0, 1), seconds=seconds, width=width)[-1].split()) == times


def test_times_stand_below_their_moments() -> None:
    assert (
        drawn(curve(0, 1), seconds=1200, width=69)[-1]
        == "      14:00                        14:10                        14:20"
    )


def headroom_lines(*points: tuple[float, float, Level], width: int = 60, **more: Any) -> list[str]:
    curve = HeadroomCurve("ram", 100.0 * MIB, [(START + at, left * MIB, level) for at, left, level in points])
    return used_of(curve, START, START + points[-1][0], width=width, **more)


def test_headroom_is_drawn_with_levels_marks_and_forecast() -> None:
    falling = [(float(n), (60 - n) * 1.5, Level(min(4, n // 12))) for n in range(61)]
    told = headroom_lines(
        *falling, marks=[(START + 20, "warned"), (START + 55, "killed")], forecast=[(START + 30, 90.0 * MIB)]
    )
    level, times, key, other, warned, killed = told[12], told[11], told[13], told[14], told[15], told[16]

    assert told[0] == "RAM: used of 100 MiB"
    assert told[1].startswith(" 100 MiB ┤")
    assert times.split() == ["14:00:00", "14:00:30", "14:01:00"]
    assert re.fullmatch(r" +-+░+▓+█+", level)
    assert key.strip() == "- info  ░ warning  ▓ critical  █ emergency"
    assert other.strip() == "the other line: forecast at the time of the warning"
    margin = told[1].index("┤") + 1
    assert (warned.strip(), killed.strip()) == ("^ warned", "killed ^")
    assert (warned.index("^") - margin) / (killed.index("^") - margin) == pytest.approx(20 / 55, abs=0.03)


def test_a_headroom_of_one_moment_is_a_second_wide() -> None:
    (axis,) = [line for line in headroom_lines((0.0, 100.0, Level.OK)) if "14:00" in line]

    assert axis.split()[0] == "14:00:00"
    assert axis.split()[-1] == "14:00:01"


def test_a_time_without_samples_stays_empty_and_has_no_level() -> None:
    samples = [(float(n), 80.0, Level.WARNING) for n in range(60) if not 20 < n < 40]
    told = headroom_lines(*samples)
    (level,) = [line for line in told if "░" in line and "warning" not in line]

    assert re.fullmatch(r" +░+ {8,}░+", level)


def test_a_column_shows_its_worst_level() -> None:
    levels = [(0.0, Level.OK), (0.2, Level.WARNING), (0.4, Level.INFO), (29.0, Level.OK)]

    assert level_strip(levels, 0.0, 30.0, 0.1, 30) == "░"


def test_a_nearly_flat_curve_shows_its_minimum_and_offsets_above() -> None:
    almost = [1000 * MIB, 1000 * MIB + 400]
    told = [line.partition("┤")[0].strip() for line in drawn(curve(*almost, unit="bytes"))]

    assert told[:5] == ["+0 KiB", "", "+0 KiB", "", "1000 MiB"]
