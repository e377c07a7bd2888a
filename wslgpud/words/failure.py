"""Why something could not be had: in words of ours, or as the system says it."""

from __future__ import annotations

from wslgpud.units import one_line
from wslgpud.words.message import Message, Said, template

_MOST_CHARACTERS = 500
#: what is said most often by the C library, by SQLite, and by ``wslgpud.documents``, which knows no messages
FAILURES = frozenset((
    template("Address already in use"),
    template("Cannot allocate memory"),
    template("Connection refused"),
    template("Connection timed out"),
    template("Exec format error"),
    template("File exists"),
    template("File name too long"),
    template("Input/output error"),
    template("Invalid argument"),
    template("Is a directory"),
    template("No space left on device"),
    template("No such device"),
    template("No such file or directory"),
    template("Not a directory"),
    template("Operation not permitted"),
    template("Permission denied"),
    template("Read-only file system"),
    template("Too many levels of symbolic links"),
    template("its owner holds a lease on it"),
    template("larger than any such file may be"),
    template("this is a FIFO, not a plain file"),
    template("this is a device, not a plain file"),
    template("this is a folder, not a plain file"),
    template("this is a link, not a plain file"),
    template("this is a socket, not a plain file"),
    template("attempt to write a readonly database"),
    template("database disk image is malformed"),
    template("database is locked"),
    template("database or disk is full"),
    template("disk I/O error"),
    template("file is not a database"),
    template("unable to open database file"),
    template("nested too deeply"),
    template("not a JSON object"),
))  # fmt: skip


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


def known(text: str) -> Said:
    """Return a message of what others say often, else their text."""
    return Message(text) if text in FAILURES else text


def failure(error: OSError) -> Said:
    """Return why the system refused something; rare reasons stay as they are in every language."""
    return Message(error.strerror) if error.strerror else str(error)


def cause(error: BaseException) -> Said:
    """Return the message that an error was raised with, the system's reason, or else its text in one line."""
    first = error.args[0] if error.args else ""
    if isinstance(first, Message):
        return first
    return failure(error) if isinstance(error, OSError) else known(one_line(str(error)))
