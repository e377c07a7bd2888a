"""The two arrangements of the rows: all of them below each other, or as many as a terminal has lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from rich.console import ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

from wslgpud.cli import rows, rows_machine
from wslgpud.cli.console import ENDLESS, RichConsole
from wslgpud.cli.live.looks import Look
from wslgpud.cli.live.trail import Key, Trail
from wslgpud.cli.rows import Shown, View
from wslgpud.units import size
from wslgpud.words import t

#: wider is no rule, and no bar; and where lines have no end
_WIDEST, _USUAL = 200, 120
#: programs on a screen without end; and at least, before other rows are left out
_MOST_PROGRAMS, _LEAST_PROGRAMS = 8, 3
#: lines of the curve of a forecast
_CURVE_LINES = (7, 13)


class Screen:
    """A look as lines of text; ``height`` None is as many as it takes."""

    def __init__(
        self,
        look: Look,
        trail: Trail,
        shown: Shown | None = None,
        *,
        mono: float | None = None,
        height: int | None = None,
    ) -> None:
        """Take what was seen, how somebody wants to see it, and the monotonic time of now."""
        self._parts = look, trail, shown or Shown(), look.mono if mono is None else mono
        self._height = height

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        """Draw into the width that there is."""
        look, trail, shown, mono = self._parts
        width = min(options.max_width, _WIDEST) if options.max_width < ENDLESS else _USUAL
        view = View(look, trail, shown, width, mono)

        def lines(parts: Iterable[RenderableType]) -> list[list[Segment]]:
            free = options.update(height=None)
            return [line for part in parts for line in console.render_lines(part, free, pad=False)]

        drawn, rest = lines(_above(view)), lines(rows.below(view))
        room = self._height - len(drawn) if self._height else len(rest) + _MOST_PROGRAMS + 2
        rest = rest[: max(0, room - _LEAST_PROGRAMS - 2)]
        room -= len(rest) + 2
        if room > 0:
            found, order = rows_machine.processes(view)
            wanted = max(_LEAST_PROGRAMS, sum(map(rows_machine.worth_a_line, found)))
            least, most = _CURVE_LINES
            tall = min(most, max(room - wanted, room // 2)) if self._height and view.growing else 0
            tall -= (tall + 1) % 2  # an odd number has a line in its middle, which is half of the whole
            if tall >= least:
                drawn += lines(_forecast(view, tall))
                room -= tall
            elif not self._height:
                found = [row for row in found if rows_machine.worth_a_line(row)]
            if found:
                title = rows.rule(t("processes"), view.width, order)
                drawn += lines([title, rows_machine.process_table(view, found[:room])])
        for line in (drawn + rest)[: self._height]:
            yield from line
            yield Segment.line()


def once(look: Look) -> Screen:
    """Return all that one look has brought."""
    return Screen(look, Trail(), Shown(span_seconds=0.0))


def _above(view: View) -> Iterator[RenderableType]:
    yield from rows.verdict(view)
    yield from rows.running(view)
    yield from rows.incidents(view)
    yield rows.rule(t("memory"), view.width, rows.seen(view))
    yield rows.memory(view)
    if view.document["gpus"]:
        yield rows.rule(t("GPUs"), view.width)
        yield rows_machine.gpus(view)
    if machine := list(rows_machine.machine(view)):
        yield rows.rule(t("machine"), view.width)
        yield from machine


def _forecast(view: View, height: int) -> Iterator[RenderableType]:
    """Draw how a memory filled, and between what it is going to until it is full."""
    from wslgpud.cli.chart import chart  # noqa: PLC0415 - with the curves comes the database
    from wslgpud.curves import Curve  # noqa: PLC0415
    from wslgpud.store import SeriesRef  # noqa: PLC0415

    forecast = view.growing
    assert forecast is not None  # noqa: S101 - for mypy; asked only where something grows
    now = datetime.fromisoformat(view.document["at"]).timestamp()
    whole, eta = float(forecast["capacity_bytes"]), forecast["eta_seconds"]
    used = whole - forecast["headroom_bytes"]
    ends = sorted((eta.get("early", eta["middle"]), eta["middle"], eta.get("late", eta["middle"])))
    span = max(ends[-1], 1.0)
    seen = [
        (now + mono - view.look.mono, share * whole)
        for mono, share in view.trail.points(Key("used", forecast["resource"]))
        if mono >= view.look.mono - max(span, view.shown.span_seconds)
    ]
    start = min([now - span / 4, *(wall for wall, _ in seen)])
    # As long as between two looks at least: loose dots are no line.
    step = max((now + span - start) / (2 * view.width), (now - start) / (len(seen) or 1))
    past = [(wall, value, value, value) for wall, value in [*seen, (now, used)]]
    ahead: list[tuple[float, float, float, float]] = []
    for seconds in (step * n for n in range(1, int(span / step) + 1)):
        early, middle, late = (min(whole, used + (whole - used) * seconds / max(end, step)) for end in ends)
        ahead.append((now + seconds, late, middle, early))
    curves = [
        Curve(SeriesRef("used"), "bytes", rate=False, points=past),
        Curve(SeriesRef("ahead"), "bytes", rate=False, points=ahead),
    ]
    yield rows.rule(t("{resource} used, and its forecast", resource=forecast["resource"]), view.width)
    for line in chart(curves, start, now + span, step, _amount, width=view.width, height=height - 2):
        line.end = ""
        yield line


def _amount(used: float) -> str:
    return size(used) if used else "0"
