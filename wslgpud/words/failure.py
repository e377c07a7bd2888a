"""Why something could not be had: in words of ours, or as the system says it."""

from __future__ import annotations

from wslgpud.units import one_line
from wslgpud.words.message import Message, Said

_MOST_CHARACTERS = 500


class Told(Exception):  # noqa: N818 - mostly a state, not a mistake
    """What is raised with a message: ``said`` is worded only where somebody reads it."""

    def __init__(self, said: Said) -> None:
        """Keep the message."""
        super().__init__(said)
        # Part of a text may be the words of a server or a program that is not ours.
        self.said = one_line(said, _MOST_CHARACTERS) if isinstance(said, str) else said

    def __str__(self) -> str:
        """Return one line of English, for logs."""
        return one_line(str(self.said), _MOST_CHARACTERS)


def failure(error: OSError) -> Said:
    """Return why the system refused something; rare reasons stay as they are in every language."""
    return Message(error.strerror) if error.strerror else str(error)


def cause(error: BaseException) -> Said:
    """Return the message that an error was raised with, the system's reason, or else its text in one line."""
    first = error.args[0] if error.args else ""
    if isinstance(first, Message):
        return first
    return failure(error) if isinstance(error, OSError) else one_line(str(error))
