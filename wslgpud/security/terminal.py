"""The one way to standard output and standard error: nothing that a terminal obeys gets through.

Names of cgroups, programs and files, kernel lines, answers of workers and rows of a foreign database are
text that others chose. ``install`` puts a ``Boundary`` in front of both streams, so that ``print``, Typer,
warnings, tracebacks and log lines all pass it. Only ``wslgpud.cli.console.Console`` writes beneath it,
because colours are escape sequences, too; it cleans the text between them.
"""

from __future__ import annotations

import io
import sys
from typing import TextIO

from wslgpud.words.units import printable


class Boundary(io.TextIOBase):
    """A stream that passes text on without control characters.

    To everybody it is no terminal and has neither ``buffer`` nor ``fileno()``: who would colour its output or
    write past it gets plain text instead.
    """

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Pass the text on; line feeds and tabs are layout and stay."""
        self.beneath.write(printable(text, layout="\n\t"))
        return len(text)

    def flush(self) -> None:
        self.beneath.flush()


def install() -> None:
    """Put a boundary in front of standard output and standard error, once."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without UTF-8 shows ? in place of bars and of names that it lacks; no traceback.
            stream.reconfigure(errors="replace")
        if stream is not None and not isinstance(stream, Boundary):  # None: whoever started us closed it
            setattr(sys, name, Boundary(stream))


def beneath(stream: TextIO) -> TextIO:
    """Return what lies beneath a boundary, for the one who cleans text itself; any other stream as it is."""
    return stream.beneath if isinstance(stream, Boundary) else stream
