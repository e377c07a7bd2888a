"""Drawings on a terminal: series over time, what was used before a moment, sparklines and bars."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from wslgpud.cli.console import Console, table_of
from wslgpud.colors import TERMINAL_LINES
from wslgpud.model import Level
from wslgpud.words import t
from wslgpud.words.units import amount, size

if TYPE_CHECKING:
    from wslgpud.alerts.report import HeadroomCurve as Left
    from wslgpud.series.curves import Curve
    from wslgpud.store import SeriesRef

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_ROUND = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15)
DAY_SECONDS = 86400
SPARKS = "▁▂▃▄▅▆▇█"
#: height of an incident's plot, and its width in a narrow terminal and in a wide one
_ROWS, _MIN_COLUMNS, _MAX_COLUMNS = 10, 40, 84
LEVEL_MARKS = dict(zip(Level, " -\N{LIGHT SHADE}\N{DARK SHADE}\N{FULL BLOCK}", strict=True))


def chart(
    curves: Sequence[Curve],
    start: float,
    end: float,
    step: float,
    write: Callable[[float], str],
    *,
    width: int,
    height: int,
    top: float | None = None,
) -> Text:
    """Draw curves of one unit, with two by four dots per character; each step is as wide as it lasts.

    It spans its minimum to its maximum, or 0 to ``top``; gaps stay visible.
    """
    extremes = [value for c in curves for _, lowest, _, highest in c.points for value in (lowest, highest)]
    low, high = (0.0, top) if top else _range(extremes, 1024 if curves[0].unit.startswith("bytes") else 10)
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
    lines = []
    for row in range(height):
        line = Text(f"{labels.get(row, ''):>{margin}}", "dim").append(" ┤", "dim")
        for bits, colour in zip(dots[row], colours[row], strict=True):
            line.append(chr(0x2800 + bits) if bits else " ", colour)
        line.rstrip()
        lines.append(line)
    return Text("\n", no_wrap=True).join([*lines, _axis(start, end, margin, columns)])


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
    return Text(" " * (margin + 2) + "".join(line).rstrip(), "dim")


def short(ref: SeriesRef) -> str:
    """Return a series' name without the UUID: a card's index is enough."""
    return str(ref._replace(labels=tuple((k, v) for k, v in ref.labels if k != "uuid")))


def drawn(
    curves: Sequence[Curve], span: tuple[float, float], step: float, size: tuple[int, int], most: int | None = None
) -> Group:
    """Draw curves of one unit, the highest first, in a number of columns and lines, above their figures.

    As many are drawn as there are colours; ``most`` limits how many are listed.
    """
    ordered = sorted(curves, key=lambda curve: -max(p[3] for p in curve.points))
    write, (width, height) = partial(amount, unit=curves[0].unit, rate=curves[0].rate), size
    picture = chart(ordered[: len(TERMINAL_LINES)], *span, step, write, width=width, height=height)
    table = table_of("<", "~" + t("series"), *(">" + one for one in (t("min"), t("mean"), t("max"), t("last"))))
    hosts = len({curve.ref.host for curve in curves}) > 1
    for number, curve in enumerate(ordered[:most]):
        means = [p[2] for p in curve.points]
        lowest, highest = min(p[1] for p in curve.points), max(p[3] for p in curve.points)
        line = Text("━━", TERMINAL_LINES[number]) if number < len(TERMINAL_LINES) else ""
        figures = map(write, (lowest, sum(means) / len(means), highest, means[-1]))
        table.add_row(line, f"{curve.ref.host}: " * hosts + short(curve.ref), *figures)
    return Group(picture, table)


def print_curves(curves: Sequence[Curve], span: tuple[float, float], step: float) -> None:
    """Print a plot for each unit, each with a table of its curves."""
    console, count = Console(), len(TERMINAL_LINES)
    kinds = list(dict.fromkeys((c.unit, c.rate) for c in curves))
    for kind in kinds:
        of_kind = [c for c in curves if (c.unit, c.rate) == kind]
        console.print(drawn(of_kind, span, step, (console.picture_width, 12 if len(kinds) == 1 else 8)))
        if len(of_kind) > count:
            remark = t("only the {count} highest are drawn; narrow it by a pattern or --across", count=count)
            console.print(remark, style="dim")
        console.print()


def used_of(
    curve: Left,
    start: float,
    end: float,
    marks: Sequence[tuple[float, str]] = (),
    forecast: Sequence[tuple[float, float]] = (),
    width: int = _MAX_COLUMNS,
) -> list[str]:
    """Draw what is used from ``start`` to ``end``, in seconds since the epoch, and the levels below it.

    ``marks`` are moments marked below, with their names; ``forecast`` holds the predicted (moment, bytes left).
    """
    from wslgpud.series.curves import Curve  # imports the store
    from wslgpud.store import SeriesRef

    end, width = max(end, start + 1.0), max(_MIN_COLUMNS, min(_MAX_COLUMNS, width))
    step = statistics.median([b[0] - a[0] for a, b in pairwise(curve.points)] or [1.0])
    capacity = max(curve.capacity_bytes, 1.0)
    known = [(wall, left) for wall, left, _ in curve.points], forecast
    points = [[(wall, *3 * (max(0.0, capacity - left),)) for wall, left in line] for line in known if line]
    curves = [Curve(SeriesRef("used"), "bytes", rate=False, points=line) for line in points]
    drawn = chart(curves, start, end, step, size, width=width, height=_ROWS, top=capacity).plain.splitlines()
    margin = drawn[0].index("┤") + 1
    names = level_strip([(wall, level) for wall, _, level in curve.points], start, end, step, width - margin)
    notes = ["  ".join(key_of(level for _, _, level in curve.points))]
    notes += [t("the other line: forecast at the time of the warning")] * bool(forecast)
    return [
        t("{resource}: used of {capacity_bytes}", resource=curve.resource, capacity_bytes=capacity),
        *drawn,
        *[" " * margin + names] * bool(names),
        *(" " * margin + note for note in notes if note),
        *(pointer(margin + column(wall, start, end, width - margin), name, width) for wall, name in marks),
    ]


def pointer(place: int, name: str, width: int) -> str:
    """Name a column of the picture, right of its mark or left of it, where there is more room."""
    left = f"{name} ^"
    return " " * place + f"^ {name}" if place < width // 2 else " " * (place + 1 - cell_len(left)) + left


def level_strip(points: Iterable[tuple[float, Level]], start: float, end: float, step: float, columns: int) -> str:
    """Draw the worst level of each column in one line; each lasts for a step."""
    worst = [Level.OK] * columns
    for wall, level in points:
        for place in range(column(wall, start, end, columns), column(wall + step, start, end, columns) + 1):
            worst[place] = max(worst[place], level)
    return "".join(LEVEL_MARKS[level] for level in worst).rstrip()


def key_of(levels: Iterable[Level]) -> list[str]:
    """Return the legend of the level marks in use."""
    return [f"{LEVEL_MARKS[level]} {t(level.label)}" for level in sorted({*levels} - {Level.OK})]


def column(wall: float, start: float, end: float, columns: int) -> int:
    """Return the column of a moment in a plot from ``start`` to ``end``."""
    return max(0, min(columns - 1, int((wall - start) / max(end - start, 1e-9) * columns)))


def spark(points: Sequence[tuple[float, float]], end: float, span: float, width: int, top: float = 1.0) -> str:
    """Draw a curve's last ``span`` seconds; each character shows the maximum of its time, a gap is blank."""
    cells: list[float] = [-1.0] * width
    for mono, value in points:
        place = width - 1 - int((end - mono) / span * width)
        if 0 <= place < width:
            cells[place] = max(value, cells[place], 0.0)
    return "".join(" " if c < 0 else SPARKS[round(min(1.0, c / top) * (len(SPARKS) - 1))] for c in cells)


def bar(used: float, width: int, colour: str, ahead: float = 0.0) -> Text:
    """Draw a share from 0 to 1, followed by a broken line up to its forecast."""
    full, soon = (round(min(1.0, max(0.0, share)) * width) for share in (used, max(used, ahead)))
    rest = ("─" * (width - soon), "bright_black")
    return Text.assemble(("━" * full, colour), ("╍" * (soon - full), f"dim {colour}"), rest)
