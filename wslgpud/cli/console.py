"""Rich's console, and its segments without anything else that a terminal obeys than Rich's own colours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from rich import console as rich_console
from rich.segment import Segment

from wslgpud import output
from wslgpud.units import printable


def harmless(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Yield the segments with their text made printable; control segments are Rich's own (cursor, bars)."""
    for segment in segments:
        text, style, control = segment
        if control is None and not text.isprintable():
            yield Segment(printable(text, layout="\n\t"), style)
        else:
            yield segment


class Console(rich_console.Console):
    """The console of every command: strings are text, never markup, and foreign escapes are made harmless."""

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        """Write to standard output, to standard error, or to a ``file`` given among Rich's options."""
        options.setdefault("file", output.beneath(sys.stderr if stderr else sys.stdout))
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(
        self, renderable: rich_console.RenderableType, options: rich_console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as Rich does, made printable; every print, bar and table passes here."""
        return harmless(super().render(renderable, options))

    def on_broken_pipe(self) -> None:
        """End in silence once nobody reads any more; Rich would ask ``sys.stdout`` for its descriptor."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(1)
