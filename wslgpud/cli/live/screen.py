"""The two arrangements of the rows: all of them, or as many as a terminal has lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

from wslgpud.advise.live_sample import CurveKey, LiveSample, RecentSeries
from wslgpud.cli.console import ENDLESS, RichConsole
from wslgpud.cli.live import rows, rows_machine
from wslgpud.cli.live.rows import RowContext, Shown
from wslgpud.words import t
from wslgpud.words.units import size

#: widest rule and bar, also where lines have no limit
_WIDEST, _USUAL = 200, 120
#: programs on an unlimited screen; and the fewest before other rows are omitted
_MAX_PROGRAMS, _MIN_PROGRAMS = 8, 3
#: lines of the curve of a forecast
_CURVE_LINES = (7, 13)


@dataclass(frozen=True)
class Screen:
    """The sample at ``mono`` as lines of text, with display options; ``height`` None means unlimited."""

    look: LiveSample
    trail: RecentSeries
    shown: Shown | None = None
    mono: float | None = None
    height: int | None = None

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, _WIDEST) if options.max_width < ENDLESS else _USUAL
        mono = self.look.mono if self.mono is None else self.mono
        view = RowContext(self.look, self.trail, self.shown or Shown(), width, mono)

        def lines(parts: Iterable[RenderableType]) -> list[list[Segment]]:
            free = options.update(height=None)
            return [line for part in parts for line in console.render_lines(part, free, pad=False)]

        drawn, rest = lines(_above(view)), lines(rows.below(view))
        room = self.height - len(drawn) if self.height else len(rest) + _MAX_PROGRAMS + 2
        rest = rest[: max(0, room - _MIN_PROGRAMS - 2)]
        room -= len(rest) + 2
        if room > 0:
            processes, order = rows_machine.processes(view)
            wanted = max(_MIN_PROGRAMS, sum(map(rows_machine.worth_a_line, processes)))
            min_lines, max_lines = _CURVE_LINES
            tall = min(max_lines, max(room - wanted, room // 2)) if self.height else 0
            tall -= (tall + 1) % 2  # an odd number has a middle line, at half the scale
            if tall >= min_lines and view.growing:
                drawn += lines(_forecast(view, view.growing, tall))
                room -= tall
            elif not self.height:
                processes = [row for row in processes if rows_machine.worth_a_line(row)]
            if processes:
                title = rows.rule(t("processes"), view.width, order)
                drawn += lines([title, rows_machine.process_table(view, processes[:room])])
        for line in (drawn + rest)[: self.height]:
            yield from line
            yield Segment.line()


def once(look: LiveSample) -> Screen:
    """Return all rows of one sample."""
    return Screen(look, RecentSeries(), Shown(span_seconds=0.0))


def _above(view: RowContext) -> Iterator[RenderableType]:
    yield from rows.verdict(view)
    yield from rows.running(view)
    yield from rows.incidents(view)
    yield rows.rule(t("memory"), view.width, rows.seen(view))
    yield rows.memory(view)
    if view.document["gpus"] or rows_machine.lost(view):
        yield rows.rule(t("GPUs"), view.width)
        yield rows_machine.gpus(view)
    if machine := list(rows_machine.machine(view)):
        yield rows.rule(t("machine"), view.width)
        yield from machine


def _forecast(view: RowContext, forecast: Mapping[str, Any], height: int) -> Iterator[RenderableType]:
    """Draw how a memory filled, and the range of its forecast until it is full."""
    from wslgpud.cli.chart import chart
    from wslgpud.series.curves import with_forecast  # imports the database

    now, mono = datetime.fromisoformat(view.document["at"]).timestamp(), view.look.mono
    points = view.trail.points(CurveKey("used", forecast["resource"]))
    seen = [(now + at - mono, share) for at, share in points]
    curves, start, end, step = with_forecast(forecast, seen, now, view.shown.span_seconds, view.width)
    yield rows.rule(t("{resource} used, and its forecast", resource=forecast["resource"]), view.width)
    yield chart(curves, start, end, step, size, width=view.width, height=height - 2)
