"""The two arrangements of the rows: all of them, or as many as a terminal has lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from rich.console import ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

from wslgpud.advise.live_sample import CurveKey, LiveSample, RecentSeries
from wslgpud.cli.console import ENDLESS, RichConsole
from wslgpud.cli.live import rows, rows_machine
from wslgpud.cli.live.rows import RowContext, Shown
from wslgpud.words import t, template
from wslgpud.words.units import size

#: widest rule and bar, also where lines have no limit
_WIDEST, _USUAL = 200, 120
#: programs on an unlimited screen; and the fewest before other rows are omitted
_MAX_PROGRAMS, _MIN_PROGRAMS = 8, 3
#: lines of the curve of a forecast
_CURVE_LINES = (7, 13)
#: samples from which on a curve says more than its last point
_MIN_POINTS = 5


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
        min_lines, max_lines = _CURVE_LINES
        processes, order = rows_machine.processes(view)
        wanted = max(_MIN_PROGRAMS, sum(map(rows_machine.worth_a_line, processes)))
        # A small terminal shows the curve of what runs out rather than what was announced before.
        fits = bool(self.height and view.growing) and room - 2 - wanted >= min_lines
        rest = rest[: max(0, room - 2 - (wanted + min_lines if fits else _MIN_PROGRAMS))]
        room -= len(rest) + 2
        if room > 0:
            spare = room - wanted
            tall = min(max_lines, max(spare, room // 2) if view.growing else spare) if self.height else 0
            tall -= (tall + 1) % 2  # an odd number has a middle line, at half the scale
            if tall >= min_lines and (curve := list(_curve(view, tall))):
                drawn += lines(curve)
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
    yield from filter(None, (rows_machine.processor(view),))
    if view.document["gpus"] or rows_machine.lost(view):
        yield rows.rule(t("GPUs"), view.width)
        yield rows_machine.gpus(view)
    if machine := list(rows_machine.machine(view)):
        yield rows.rule(t("machine"), view.width)
        yield from machine


def _curve(view: RowContext, height: int) -> Iterator[RenderableType]:
    """Draw how a memory filled: what runs out with its forecast until it is full, else what the verdict is about."""
    from wslgpud.cli.chart import chart
    from wslgpud.series.curves import of_use  # imports the database

    shown = view.growing or view.subject
    if shown is None:
        return
    now, mono = datetime.fromisoformat(view.document["at"]).timestamp(), view.look.mono
    points = view.trail.points(CurveKey("used", shown["resource"]))
    seen = [(now + at - mono, share) for at, share in points]
    if not view.growing and len(seen) < _MIN_POINTS:
        return
    span, ahead = view.shown.span_seconds, view.growing is not None
    curves, start, end, step = of_use(shown, seen, now, span, view.width, ahead=ahead)
    title = template("{resource} used, and its forecast") if view.growing else template("{resource} used")
    yield rows.rule(t(title, resource=shown["resource"]), view.width)
    total = float(shown["capacity_bytes"])
    yield chart(curves, start, end, step, size, width=view.width, height=height - 2, top=total)
