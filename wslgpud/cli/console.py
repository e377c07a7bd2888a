"""Rich's console, with control characters removed from its segments except Rich's own colours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from rich import console as rich_console
from rich import progress
from rich.console import RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table

from wslgpud.security import redaction
from wslgpud.words.units import printable

#: as Rich passes it to renderables
RichConsole = rich_console.Console
#: columns of a pipe or a file, where lines must not wrap; and of a chart there
ENDLESS, _PICTURE = 1 << 14, 100


def harmless(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Yield the segments with their text made printable; control segments are Rich's own (cursor, bars)."""
    for segment in segments:
        text, style, control = segment
        if control is None and not text.isprintable():
            yield Segment(printable(text, layout="\n\t"), style)
        else:
            yield segment


def table_of(
    *columns: str, rows: Iterable[Iterable[RenderableType]] = (), gap: int = 2, style: str = "dim", first: int = 0
) -> Table:
    """Return a table without lines, with columns like ``>seconds``: the alignment, and the heading if any.

    ``<`` and ``>`` are never folded, ``~`` is folded between words. ``first`` is the indentation.
    """
    headed = any(column[1:] for column in columns)
    table = Table(box=None, show_header=headed, header_style=style, padding=(0, gap, 0, first), pad_edge=bool(first))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column[0] == ">" else "left"
        overflow: Literal["fold", "ellipsis"] = "fold" if headed else "ellipsis"
        table.add_column(column[1:], no_wrap=column[0] != "~", overflow=overflow, justify=justify)
    for row in rows:
        table.add_row(*row)
    return table


def pairs(rows: Iterable[tuple[str, str]]) -> Padding:
    """Return names beside their texts, indented; those without a text are left out."""
    table = table_of("<", "~", rows=(row for row in rows if row[1]))
    table.columns[1].overflow = "fold"
    return Padding.indent(table, 2)


class Console(RichConsole):
    """The console of every command: strings are text, never markup, and foreign escapes are removed."""

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        """Write to standard output, to standard error, or to a ``file`` given in Rich's options."""
        file = options.setdefault("file", redaction.beneath(sys.stderr if stderr else sys.stdout))
        self._endless = not (file.isatty() or "width" in options or os.environ.get("COLUMNS"))
        if self._endless:
            options["width"] = ENDLESS
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    @property
    def picture_width(self) -> int:
        """Width of a chart: the terminal's, or a default where lines have no limit."""
        return _PICTURE if self._endless else self.width

    def render(
        self, renderable: RenderableType, options: rich_console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as Rich does, made printable; every print, bar and table passes here."""
        if self._endless and isinstance(renderable, Panel):
            renderable.expand = False
        return harmless(super().render(renderable, options))

    def on_broken_pipe(self) -> None:
        """Exit silently once the reader is gone; Rich would ask ``sys.stdout`` for its descriptor."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(1)


class Shows(Protocol):
    """Shows the amount done, of a total (None: unknown), and the current step if that has changed."""

    def __call__(self, done: float, total: float | None, doing: str | None = None, /) -> None: ...


@contextmanager
def bar(what: str, *, silent: bool = False) -> Iterator[Shows]:
    """Show a progress bar during the block."""
    console = Console(stderr=True)
    shown = progress.Progress(console=console, transient=True, disable=silent or not console.is_terminal)

    def show(done: float, total: float | None, doing: str | None = None, /) -> None:
        shown.update(task, completed=done, total=total, description=doing)

    with shown:
        task = shown.add_task(what, total=None)
        yield show
