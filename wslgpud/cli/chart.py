"""Drawings on a terminal: lines over time, headroom before a moment, strips and bars."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.text import Text

from wslgpud.cli.help import flush
from wslgpud.colors import TERMINAL_LINES
from wslgpud.model import Level
from wslgpud.words import t
from wslgpud.words.units import size

if TYPE_CHECKING:
    from wslgpud.alerts.report import HeadroomCurve as Left
    from wslgpud.series.curves import Curve

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_ROUND = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15)
DAY_SECONDS = 86400
EIGHTHS = " ▁▂▃▄▅▆▇█"
#: width of the labels left of a headroom plot, and its minimum width in a narrow terminal
_ROWS, _COLUMNS, _MARGIN, _MIN_COLUMNS = 10, 72, 11, 30
LEVEL_MARKS = dict(zip(Level, " -\N{LIGHT SHADE}\N{DARK SHADE}\N{FULL BLOCK}", strict=True))
#: samples more than this many usual steps apart have a gap between them
_GAP_STEPS = 3.0


def chart(
    curves: Sequence[Curve],
    start: float,
    end: float,
    step: float,
    write: Callable[[float], str],
    *,
    width: int,
    height: int,
) -> Iterator[Text]:
    """Draw curves of one unit, with two by four dots per character; each step is as wide as it lasts.

    It spans its minimum to its maximum; gaps stay visible.
    """
    extremes = [value for c in curves for _, lowest, _, highest in c.points for value in (lowest, highest)]
    low, high = _range(extremes, 1024 if curves[0].unit.startswith("bytes") else 10)
    labels = _labels(low, high, height, write)
    margin = max(map(len, labels.values())) + 1
    columns = max(20, width - margin - 2)
    dots: list[list[int]] = [[0] * columns for _ in range(height)]
    colours: list[list[str]] = [[""] * columns for _ in range(height)]

    def across(wall: float) -> int:
        return column(wall, start, end, 2 * columns)

    def down(value: float) -> int:
        return round((high - value) / (high - low) * (4 * height - 1))

    for curve, colour in zip(curves, TERMINAL_LINES, strict=False):
        before: tuple[float, float] | None = None
        for wall, lowest, mean, highest in curve.points:
            first = across(wall)
            for x in range(first, max(first + 1, across(min(wall + step, end)))):
                reach = [lowest, highest]
                if x == first and before is not None and wall - before[0] < 1.5 * step:
                    reach.append(before[1])  # a line, not loose dots
                for y in range(down(max(reach)), down(min(reach)) + 1):
                    dots[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
                    colours[y // 4][x // 2] = colour
            before = wall, mean
    for row in range(height):
        line = Text(f"{labels.get(row, ''):>{margin}}", "dim", no_wrap=True, end="").append(" ┤", "dim")
        for bits, colour in zip(dots[row], colours[row], strict=True):
            line.append(chr(0x2800 + bits) if bits else " ", colour)
        line.rstrip()
        yield line
    yield _axis(start, end, margin, columns)


def _labels(low: float, high: float, height: int, write: Callable[[float], str]) -> dict[int, str]:
    """Return the labels of the first row, the middle and the last."""
    marks = {row: low + (high - low) * (1 - row / (height - 1)) for row in (0, height // 2, height - 1)}
    labels = {row: write(value) for row, value in marks.items()}
    if len(set(labels.values())) == len(labels):
        return labels
    # for a nearly constant curve all labels would be the same
    return {**{row: f"+{write(value - low)}" for row, value in marks.items()}, height - 1: write(low)}


def _range(values: Sequence[float], base: int) -> tuple[float, float]:
    """Return the range of the axis, in round numbers; from 0 unless that hides everything."""
    lowest, highest = min(values), max(values)
    if 0 <= lowest < 0.7 * highest:
        lowest = 0.0
    if lowest == highest:
        return (0.0, highest) if highest > 0 else (lowest - 1.0, lowest + 1.0)
    thousands = float(base) ** math.floor(math.log(highest - lowest, base))
    grain = thousands * 10.0 ** math.floor(math.log10((highest - lowest) / thousands))
    low = math.floor(lowest / grain * 4) * grain / 4
    return low, low + next(r * grain for r in _ROUND if r * grain >= (highest - low) * 0.999)


def _axis(start: float, end: float, margin: int, columns: int) -> Text:
    span = end - start
    form = "%H:%M:%S" if span < 1200 else "%H:%M" if span <= 2 * DAY_SECONDS else "%m-%d"
    form = "%Y-%m" if span > 300 * DAY_SECONDS else form
    count, line = max(2, min(6, columns // 16)), [" "] * columns
    for i in range(count):
        at = round((columns - 1) * i / (count - 1))
        text = datetime.fromtimestamp(start + span * i / (count - 1)).astimezone().strftime(form)
        place = max(0, min(columns - len(text), at - len(text) // 2))
        line[place : place + len(text)] = text
    return Text(" " * (margin + 2) + "".join(line).rstrip(), "dim", no_wrap=True)


def headroom(
    curve: Left,
    start: float,
    end: float,
    marks: Sequence[tuple[float, str]] = (),
    forecast: Sequence[tuple[float, float]] = (),
    width: int = _MARGIN + _COLUMNS,
) -> list[str]:
    """Draw the headroom from ``start`` to ``end``, in seconds since the epoch, with block characters.

    ``marks`` are moments marked below, with their names; ``forecast`` holds the predicted (moment, bytes left), drawn
    with dots where it exceeds the outcome.
    """
    columns, top = max(_MIN_COLUMNS, min(_COLUMNS, width - _MARGIN)), max(curve.capacity_bytes, 1.0)
    walls, end = [wall for wall, _, _ in curve.points], max(end, start + 1.0)
    parts: list[list[tuple[float, Level]]] = [[] for _ in range(columns)]
    for wall, left, level in curve.points:
        parts[column(wall, start, end, columns)].append((left, level))
    # The minimum of each cell, to show dips. A cell between two samples repeats the previous one; a real gap, while no
    # daemon ran, stays empty.
    step = statistics.median(b - a for a, b in pairwise(walls)) if len(walls) > 1 else 0.0
    gaps = [(-math.inf, walls[0]), *((a, b) for a, b in pairwise(walls) if b - a > _GAP_STEPS * step)]
    gaps.append((walls[-1] + step, math.inf))
    cells: list[tuple[float, Level]] = []
    for number, part in enumerate(parts):
        at = start + (number + 0.5) / columns * (end - start)
        if part:
            lowest, worst = min(left for left, _ in part), max(level for _, level in part)
            cells.append((8 * _ROWS * lowest / top, worst))
        else:
            cells.append(cells[-1] if cells and not any(a < at < b for a, b in gaps) else (0.0, Level.OK))
    levels = [level for _, level in cells]
    foretold = {(column(wall, start, end, columns), int(_ROWS * max(0.0, left) / top)) for wall, left in forecast}
    lines = [t("{resource}: left of {capacity_bytes}", resource=curve.resource, capacity_bytes=top)]
    for row in reversed(range(_ROWS)):
        label = size(top * (row + 1) / _ROWS) if row in (_ROWS - 1, _ROWS // 2 - 1) else ""
        bars = [EIGHTHS[round(max(0.0, min(8.0, height - 8 * row)))] for height, _ in cells]
        drawn = ("\N{MIDDLE DOT}" if bar == " " and (n, row) in foretold else bar for n, bar in enumerate(bars))
        lines.append(f"{label:>9} |{''.join(drawn)}".rstrip())
    lines.append(flush(t("level"), 9) + " |" + "".join(LEVEL_MARKS[level] for level in levels).rstrip())
    lines.append(f"{'':{_MARGIN}}{_clock(start)}{_clock(end):>{columns - 8}}")
    of_dots = t("\N{MIDDLE DOT} above the bars: forecast at the time of the warning") if foretold else ""
    lines += [" " * _MARGIN + line for line in ("  ".join(key_of(levels)), of_dots) if line]
    for wall, name in marks:
        place = column(wall, start, end, columns)
        named = f"{' ' * place}^ {name}" if place < columns // 2 else flush(f"{name} ^", place + 1)
        lines.append(" " * _MARGIN + named)
    return lines


def key_of(levels: Iterable[Level]) -> list[str]:
    """Return the legend of the level marks in use."""
    return [f"{LEVEL_MARKS[level]} {t(level.label)}" for level in sorted({*levels} - {Level.OK})]


def column(wall: float, start: float, end: float, columns: int) -> int:
    """Return the column of a moment in a plot from ``start`` to ``end``."""
    return max(0, min(columns - 1, int((wall - start) / max(end - start, 1e-9) * columns)))


def strip(shares: Sequence[float]) -> str:
    """Draw shares from 0 to 1 in one line, one character each."""
    return "".join(EIGHTHS[round(8 * min(1.0, max(0.0, share)))] for share in shares)


def _clock(wall: float) -> str:
    return datetime.fromtimestamp(wall).astimezone().strftime("%H:%M:%S")
