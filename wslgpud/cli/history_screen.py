"""History on a terminal: the list of series, and pictures with their legend."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from rich.table import Table
from rich.text import Text

from wslgpud.cli.chart import chart
from wslgpud.cli.console import Console
from wslgpud.cli.series import WORDS, amount
from wslgpud.curves import Curve
from wslgpud.palette import TERMINAL_LINES
from wslgpud.store import SeriesRef
from wslgpud.words import t

#: a value older than this shows its age
_FRESH_SECONDS = 90.0
#: what the labels of an axis take of the width
_MARGIN = 14


def dots_across() -> int:
    """Return how many values fit beside each other into a picture on this terminal."""
    return max(40, (Console().picture_width - _MARGIN) * 2)


def print_list(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print each metric once, with the last values of its series."""
    console = Console(soft_wrap=False)
    words = {metric: word for word, metrics in WORDS.items() for metric in metrics}
    several = len({row["host"] for row in rows}) > 1
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(t("series"), overflow="fold")
    table.add_column(t("unit"), no_wrap=True)
    table.add_column(t("last value"), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, style="dim")
    if several:
        table.add_column(t("host"), no_wrap=True)
    for row in rows:
        metric, brace, labels = short(row["ref"]).partition("{")
        name = Text(metric).append(brace + labels, "dim")
        if metric in words:
            name.append(f"  {words[metric]}", "green")
        cells: list[Any] = [
            name,
            t("{unit} total", unit=row["unit"]) if row["kind"] == "counter" else row["unit"],
            *_last(row),
        ]
        table.add_row(*cells, *([row["host"]] if several else []))
    console.print(table)
    console.print(
        Text(t("\n{count} series; the short names of some stand beside them in green.", count=len(rows)))
    )


def _last(row: Mapping[str, Any]) -> tuple[str, str]:
    if "value" not in row:
        return "", t("not lately")
    age = time.time() - datetime.fromisoformat(row["at"]).timestamp()
    return amount(row["value"], row["unit"]), t(
        "{age_seconds} ago", age_seconds=age
    ) if age > _FRESH_SECONDS else ""


def print_curves(curves: Sequence[Curve], start: float, end: float, step: float) -> None:
    """Print a picture for each unit, each with a table of its curves."""
    console = Console()
    kinds = sorted({(c.unit, c.rate) for c in curves}, key=lambda k: _place(curves, k))
    for (unit, rate), group in groupby(sorted(curves, key=lambda c: kinds.index((c.unit, c.rate))), _kind):
        of_kind = sorted(group, key=lambda c: -max(p[3] for p in c.points))
        drawn = of_kind[: len(TERMINAL_LINES)]

        def write(value: float, unit: str = unit, rate: bool = rate) -> str:
            return amount(value, unit, rate=rate)

        height = 12 if len(kinds) == 1 else 8
        for line in chart(drawn, start, end, step, write, width=console.picture_width, height=height):
            console.print(line)
        console.print(legend(of_kind, write))
        if len(of_kind) > len(drawn):
            told = t("drawn are the {count} highest; a pattern or --across narrows it", count=len(drawn))
            console.print(told, style="dim")
        console.print()


def _kind(curve: Curve) -> tuple[str, bool]:
    return curve.unit, curve.rate


def _place(curves: Sequence[Curve], kind: tuple[str, bool]) -> int:
    return next(i for i, c in enumerate(curves) if _kind(c) == kind)


def legend(curves: Sequence[Curve], write: Any) -> Table:
    """Return a table of curves with their figures, in the colours in which they are drawn."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column(t("series"), overflow="fold")
    for heading in (t("least"), t("mean"), t("most"), t("last")):
        table.add_column(heading, justify="right", no_wrap=True)
    hosts = len({c.ref.host for c in curves}) > 1
    for number, curve in enumerate(curves):
        means = [p[2] for p in curve.points]
        table.add_row(
            Text("━━", TERMINAL_LINES[number]) if number < len(TERMINAL_LINES) else "",
            f"{curve.ref.host}: " * hosts + short(curve.ref),
            write(min(p[1] for p in curve.points)),
            write(sum(means) / len(means)),
            write(max(p[3] for p in curve.points)),
            write(means[-1]),
        )
    return table


def short(ref: SeriesRef) -> str:
    """Write a series without the UUID: a card's index says as much."""
    return str(ref._replace(labels=tuple((k, v) for k, v in ref.labels if k != "uuid")))
