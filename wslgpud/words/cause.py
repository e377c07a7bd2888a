"""What an error says, whatever kind of error it is."""

from __future__ import annotations

from wslgpud.units import one_line
from wslgpud.words.failure import failure, known
from wslgpud.words.message import Message, Said


def cause(error: BaseException) -> Said:
    """Return the message that an error was raised with, the system's reason, or else its text in one line."""
    first = error.args[0] if error.args else ""
    if isinstance(first, Message):
        return first
    if isinstance(error, OSError):
        return failure(error)
    return known(one_line(str(error)))
