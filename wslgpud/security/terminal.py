"""The only way to standard output and standard error: control characters do not get through.

Names of cgroups, programs and files, kernel lines, answers of workers and rows of a foreign database are foreign text.
``install`` puts a ``Boundary`` in front of both streams, so that ``print``, Click, warnings, tracebacks and log lines
all pass it. Only ``wslgpud.cli.console.Console`` writes beneath it, because colours are escape sequences, too; it
cleans the text between them.
"""

from __future__ import annotations

import io
import sys
from typing import TextIO

from wslgpud.words.units import printable


class Boundary(io.TextIOBase):
    """A stream that passes text on without control characters.

    It claims to be no terminal and has neither ``buffer`` nor ``fileno()``: code that would colour its output or write
    past it falls back to plain text.
    """

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def writable(self) -> bool:
        return True

    def write(self, text: str | bytes) -> int:
        """Pass the text on; line feeds and tabs are layout and stay."""
        if isinstance(text, bytes):  # Click's, for want of a ``buffer``: the values that a shell completes
            text = text.decode(errors="replace")
        self.beneath.write(printable(text, layout="\n\t"))
        return len(text)

    def flush(self) -> None:
        self.beneath.flush()


def install() -> None:
    """Put a boundary in front of standard output and standard error, once."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without UTF-8 shows ? instead of bars and unsupported names; no traceback.
            stream.reconfigure(errors="replace")
        if stream is not None and not isinstance(stream, Boundary):  # None: closed by the parent process
            setattr(sys, name, Boundary(stream))


def beneath(stream: TextIO) -> TextIO:
    """Return the stream beneath a boundary, for code that cleans text itself; any other stream unchanged."""
    return stream.beneath if isinstance(stream, Boundary) else stream
