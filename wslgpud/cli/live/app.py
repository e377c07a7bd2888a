"""The live view: takes a sample once per second, in a thread, and shows it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sys
import termios
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from rich.segment import Segment
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.containers import Vertical
from textual.filter import LineFilter
from textual.widgets import Footer, Input, Static

from wslgpud.advise.live_sample import LiveSample, RecentSeries
from wslgpud.cli.console import harmless
from wslgpud.cli.live.feed import Feed
from wslgpud.cli.live.past import before
from wslgpud.cli.live.rows import Shown
from wslgpud.cli.live.screen import Screen as View
from wslgpud.cli.live.series_view import History
from wslgpud.client import Unanswered
from wslgpud.words import MessageError, current, t


def terminal_gone() -> bool:
    """Return whether the terminal was closed; where its signal is ignored (nohup), Textual would keep drawing."""
    with contextlib.suppress(OSError, ValueError):  # not a terminal
        try:
            termios.tcgetattr(sys.__stdin__ or 0)
        except termios.error as error:
            return bool(error.args[0] == errno.EIO)
    return False


class _Printable(LineFilter):
    """Cleans every line before it is drawn: Textual bypasses ``wslgpud.security.redaction``."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        del background
        return list(harmless(segments))


class LiveApp(App[None]):
    """The live view."""

    CSS = """
    Screen { background: transparent; }
    #filter { display: none; height: 1; border: none; padding: 0 1; }
    #filter.asked { display: block; }
    #view { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", t("quit")),
        Binding("s", "show('cycled')", t("sort")),
        Binding("slash", "filter", t("filter")),
        Binding("p", "show('toggled')", t("pause")),
        Binding("plus,equals_sign", "show('longer', 1)", t("longer")),
        Binding("minus", "show('longer', -1)", t("shorter")),
        Binding("h", "history", t("history")),
        Binding("escape", "all", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = ""

    def __init__(self, feed: Feed, interval_seconds: float = 1.0) -> None:
        super().__init__(ansi_color=True)
        self._printable, self._trail = _Printable(), RecentSeries()
        self._feed, self._interval = feed, interval_seconds
        self._look: LiveSample | None = None
        self.shown = Shown()

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), self._printable]

    def compose(self) -> ComposeResult:
        yield Vertical(Static(t("looking ..."), id="view", markup=False))
        yield Input(placeholder=t("only programs with"), id="filter")
        yield Footer()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys of this view while another screen is on top."""
        del parameters
        return len(self.screen_stack) == 1 or not hasattr(LiveApp, f"action_{action}")

    def on_mount(self) -> None:
        self.watch_machine()
        self.set_interval(1.0, self._second)

    @work
    async def watch_machine(self) -> None:
        """Sample until the end; report a daemon that does not answer, and retry."""
        seeded = False
        while True:
            began = time.monotonic()
            try:
                look, trouble = await asyncio.to_thread(self._feed.look), ""
            except Unanswered as error:
                look, trouble = None, current().text(error.message)
            self._take(look, trouble)
            if look is not None and not seeded:
                seeded = True
                await self._remember(look)
            await asyncio.sleep(max(0.05, self._interval - (time.monotonic() - began)))

    async def _remember(self, look: LiveSample) -> None:
        """Fill sparklines with the daemon's history before the first sample."""
        # Else they start with this sample; the history screen shows the error.
        with contextlib.suppress(MessageError):
            for key, points in await asyncio.to_thread(lambda: before(self._feed.past(), look)):
                self._trail.seed(key, points)
            self._draw()

    def _take(self, look: LiveSample | None, trouble: str) -> None:
        if look is not None:
            self._trail.add(look)
            self._look = self._look if self.shown.paused else look
        self._change(replace(self.shown, trouble=trouble))

    def _second(self) -> None:
        if terminal_gone():
            self.exit()
        self._draw()

    def _draw(self) -> None:
        # There is none during shutdown, when a timer may still fire.
        for view in self.query("#view").results(Static):
            if self._look is None:
                view.update(self.shown.trouble or t("looking ..."))
            elif view.size.width:
                mono, height = time.monotonic(), view.size.height
                view.update(View(self._look, self._trail, self.shown, mono=mono, height=height))

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def action_show(self, how: str, *way: int) -> None:
        """Change the display by the name of a method of ``Shown``."""
        self._change(getattr(self.shown, how)(*way))

    def action_history(self) -> None:
        if past := self._feed.past():
            self.push_screen(History(past))
        else:
            self.notify(t("no daemon keeps a history here; 'wslgpud history' shows what one has recorded"))

    def action_filter(self) -> None:
        asked = self.query_one("#filter", Input)
        asked.add_class("asked")
        asked.focus()

    def action_all(self) -> None:
        self.query_one("#filter", Input).value = ""
        self.on_input_submitted()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._change(replace(self.shown, filter=event.value))

    def on_input_submitted(self) -> None:
        self.query_one("#filter", Input).remove_class("asked")
        self.set_focus(None)

    def _change(self, shown: Shown) -> None:
        self.shown = shown
        self._draw()
