"""Rich's console, and its segments without anything else that a terminal obeys than Rich's own colours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from rich import console as rich_console
from rich.panel import Panel
from rich.segment import Segment

from wslgpud import output
from wslgpud.units import printable

#: as Rich passes it to what draws itself
RichConsole = rich_console.Console
#: columns of a pipe or a file, where nothing may be wrapped; and of a chart there
ENDLESS, _PICTURE = 1 << 14, 100


def harmless(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Yield the segments with their text made printable; control segments are Rich's own (cursor, bars)."""
    for segment in segments:
        text, style, control = segment
        if control is None and not text.isprintable():
            yield Segment(printable(text, layout="\n\t"), style)
        else:
            yield segment


class Console(RichConsole):
    """The console of every command: strings are text, never markup, and foreign escapes are made harmless."""

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        """Write to standard output, to standard error, or to a ``file`` given among Rich's options."""
        file = options.setdefault("file", output.beneath(sys.stderr if stderr else sys.stdout))
        self._endless = not (file.isatty() or "width" in options or os.environ.get("COLUMNS"))
        if self._endless:
            options["width"] = ENDLESS
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    @property
    def picture_width(self) -> int:
        """How wide a chart is: that of the terminal, or a usual one where lines have no end."""
        return _PICTURE if self._endless else self.width

    def render(
        self, renderable: rich_console.RenderableType, options: rich_console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as Rich does, made printable; every print, bar and table passes here."""
        if self._endless and isinstance(renderable, Panel):
            renderable.expand = False
        return harmless(super().render(renderable, options))

    def on_broken_pipe(self) -> None:
        """End in silence once nobody reads any more; Rich would ask ``sys.stdout`` for its descriptor."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(1)
