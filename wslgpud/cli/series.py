"""Series on a terminal: their values as text, and their curves with a legend."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.console import Group
from rich.text import Text

from wslgpud.app.catalogue import catalogue
from wslgpud.cli.chart import chart
from wslgpud.cli.console import table_of
from wslgpud.colors import TERMINAL_LINES
from wslgpud.series.curves import Curve
from wslgpud.store import SeriesRef
from wslgpud.words import t
from wslgpud.words.units import amount


def unit_of(metric: str) -> str:
    """Return the unit of a metric, empty without one or for an unknown metric."""
    spec = catalogue().find(metric)
    return "" if spec is None else spec.unit


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
