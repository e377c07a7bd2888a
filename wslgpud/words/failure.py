"""Why something could not be had: in words of ours, or as the system says it."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Final

from wslgpud.units import one_line
from wslgpud.words.message import Message, Said, template

_MOST_CHARACTERS = 500
#: as the C library words them
_FAILURES: Final[Mapping[int, str]] = {
    errno.EACCES: template("Permission denied"),
    errno.EEXIST: template("File exists"),
    errno.EINVAL: template("Invalid argument"),
    errno.EIO: template("Input/output error"),
    errno.EISDIR: template("Is a directory"),
    errno.ELOOP: template("Too many levels of symbolic links"),
    errno.ENODEV: template("No such device"),
    errno.ENOENT: template("No such file or directory"),
    errno.ENOEXEC: template("Exec format error"),
    errno.ENOMEM: template("Cannot allocate memory"),
    errno.ENOSPC: template("No space left on device"),
    errno.ENOTDIR: template("Not a directory"),
    errno.EPERM: template("Operation not permitted"),
    errno.EROFS: template("Read-only file system"),
    errno.ETIMEDOUT: template("Connection timed out"),
    errno.ECONNREFUSED: template("Connection refused"),
    errno.EADDRINUSE: template("Address already in use"),
    errno.ENAMETOOLONG: template("File name too long"),
}


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
    """Return why the system refused something; the rare reasons in the words of the C library."""
    known = _FAILURES.get(error.errno or 0)
    # Whoever raises an error of his own gives its own text to a number of the system's.
    if known is not None and error.strerror == known:
        return Message(known)
    return error.strerror or str(error)
