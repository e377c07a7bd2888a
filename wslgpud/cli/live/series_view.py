"""History in the live view: a series from seconds to a year, drawn over the screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import Footer, Static

from wslgpud.cli.chart import drawn as plotted
from wslgpud.cli.live.past import Drawn, Past
from wslgpud.words import MessageError, current, say, t

DAY_SECONDS = 86400
#: name and length of the selectable time ranges
SPANS: Sequence[tuple[str, float]] = (
    *(("1 min", 60), ("5 min", 300), ("15 min", 900), ("1 h", 3600), ("6 h", 21600), ("24 h", DAY_SECONDS)),
    *(("7 d", 7 * DAY_SECONDS), ("30 d", 30 * DAY_SECONDS), ("90 d", 90 * DAY_SECONDS), ("1 y", 365 * DAY_SECONDS)),
)
#: shown first, if available
FIRST = "headroom"
#: refresh interval of ranges that end now
FRESH_SECONDS = 2.0
_LABELS = 12


@dataclass(frozen=True)
class SeriesWindow:
    """The visible window: a series' keyword, its length, and how many seconds before now it ends."""

    words: Sequence[str] = ()
    place: int = 0
    span: int = 2
    back_seconds: float = 0.0

    @property
    def word(self) -> str:
        """The selected keyword, empty without one."""
        return self.words[self.place] if self.words else ""

    @property
    def seconds(self) -> float:
        return SPANS[self.span][1]

    def other(self, way: int) -> SeriesWindow:
        """Return the window of the next keyword, or the previous one."""
        return replace(self, place=(self.place + way) % max(1, len(self.words)))

    def longer(self, way: int) -> SeriesWindow:
        """Return a longer window, or a shorter one."""
        return replace(self, span=max(0, min(self.span + way, len(SPANS) - 1)))

    def moved(self, way: int) -> SeriesWindow:
        """Return the window moved by half its length, earlier (-1) or later (1), never beyond now."""
        return replace(self, back_seconds=max(0.0, self.back_seconds - way * self.seconds / 2))

    def until_now(self) -> SeriesWindow:
        return replace(self, back_seconds=0.0)


def history(
    view: SeriesWindow, drawn: Drawn | None, source_and_error: tuple[str, str], size: tuple[int, int], now: float
) -> RenderableType:
    """Draw a window into a number of columns and lines.

    ``drawn`` is None while loading; an empty error means none.
    """
    (width, height), (where, trouble) = size, source_and_error
    end = now - view.back_seconds
    head = [_choice(view.words, view.place), _choice([name for name, _ in SPANS], view.span)]
    if trouble or drawn is None or not drawn.curves:
        nothing = t("looking ...") if drawn is None else t("nothing was recorded in this time")
        return Group(*head, Text(""), Text(f"  {trouble or nothing}", "yellow" if trouble else "bright_black"))
    highest = max(drawn.curves, key=lambda curve: max(p[3] for p in curve.points))
    shown = [curve for curve in drawn.curves if (curve.unit, curve.rate) == (highest.unit, highest.rate)]
    room, start, step = min(len(shown), max(1, (height - 10) // 3)), end - view.seconds, drawn.step_seconds
    if not view.back_seconds:  # a young history begins with its first sample
        start = max(start, min(end - step, *(curve.points[0][0] for curve in shown)))
    facts = {"since_wall": start, "until_wall": end, "step_seconds": step}
    note = t("{since_wall} to {until_wall}, a point every {step_seconds}", **facts)
    more = [t("and {number} more", number=len(shown) - room)] if len(shown) > room else []
    return Group(
        *head,
        plotted(shown, (start, end), step, (width, max(4, height - room - 6)), room),
        Text(current().listed([note, *more, where]), "bright_black", no_wrap=True, overflow="ellipsis"),
    )


def _choice(names: Sequence[str], chosen: int) -> Text:
    styles = ("bold reverse" if number == chosen else "bright_black" for number in range(len(names)))
    parts = ((f" {name} ", style) for name, style in zip(names, styles, strict=True))
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


class History(Screen[None]):
    """The history screen over the live view; keys choose series and range."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,h,q", "leave", t("back")),
        Binding("down,s", "show('other', 1)", t("next")),
        Binding("up", "show('other', -1)", t("previous")),
        Binding("plus,equals_sign", "show('longer', 1)", t("longer")),
        Binding("minus", "show('longer', -1)", t("shorter")),
        Binding("left", "show('moved', -1)", t("earlier")),
        Binding("right", "show('moved', 1)", t("later")),
        Binding("0", "show('until_now')", t("now")),
    ]
    CSS = "History #history { height: 1fr; }"

    def __init__(self, past: Past) -> None:
        super().__init__()
        self._past, self.view = past, SeriesWindow()
        self._drawn: Drawn | None = None
        self._trouble = ""

    def compose(self) -> ComposeResult:
        yield Vertical(Static(t("looking ..."), id="history", markup=False))
        yield Footer()

    def on_mount(self) -> None:
        self.load()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    @work(exclusive=True, group="history")
    async def load(self) -> None:
        """Load the selected window, again and again if it ends now; the next call supersedes this one."""
        while True:
            try:
                self._drawn, self._trouble = await self._read(), ""
            except MessageError as error:
                self._drawn, self._trouble = None, current().text(error.message)
            self._show()
            if self.view.back_seconds:
                return
            await asyncio.sleep(FRESH_SECONDS)

    async def _read(self) -> Drawn:
        """Return the curves of the window, at first that of the usual keyword. Raises MessageError: there are none."""
        if not self.view.words:
            words = await asyncio.to_thread(self._past.words)
            if not words:
                raise MessageError(say("no history yet"))
            self.view = replace(self.view, words=words, place=words.index(FIRST) if FIRST in words else 0)
        end, points = time.time() - self.view.back_seconds, max(40, 2 * (self.size.width - _LABELS))
        return await asyncio.to_thread(self._past.drawn, self.view.word, end - self.view.seconds, end, points)

    def _show(self) -> None:
        # There is none during shutdown.
        for picture in self.query("#history").results(Static):
            if picture.size.width:
                size, source_and_error = (picture.size.width, picture.size.height), (self._past.where, self._trouble)
                picture.update(history(self.view, self._drawn, source_and_error, size, time.time()))

    def action_leave(self) -> None:
        self.dismiss()

    def action_show(self, how: str, *way: int) -> None:
        """Change the window by the name of a method of ``SeriesWindow``."""
        view = getattr(self.view, how)(*way)
        if view != self.view:
            if view.word != self.view.word:
                self._drawn = None
            self.view = view
            self._show()
            self.load()
