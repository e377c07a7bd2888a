"""Passes the program's output on to its destination and into the log; one live line stays below it.

The log is one in the state folder, which keeps the last twenty, or where the user wants it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import selectors
import signal
import struct
import termios
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from wslgpud.security import safe_files
from wslgpud.security.redaction import masked
from wslgpud.words import MessageError, cause, say, t
from wslgpud.words.units import printable

if TYPE_CHECKING:
    from typing_extensions import Self

_CHUNK_BYTES = 1 << 16
#: bytes of output that are examined: a traceback of PyTorch with its message
TAIL_BYTES = 16 << 10
_CLEAR = b"\r\x1b[2K"
#: logs kept in the state folder, and most looked at
_KEPT_LOGS, _MAX_LOGS = 20, 10_000


class Relay:
    """A child's output. On a terminal the child gets a terminal too and keeps its colours and progress bars."""

    def __init__(self, log: BinaryIO | None, *, quiet: bool = False) -> None:
        """Open the streams; the log is unbuffered and gets all output. ``quiet`` shows the live line only."""
        self._log, self._live, self._quiet = log, os.isatty(2), quiet
        self._line, self._at_start = b"", True
        #: the end of the output, for ``summary.explanation``
        self.tail = b""
        self._selector = selectors.DefaultSelector()
        self._master: int | None = None
        if os.isatty(1) and os.isatty(2) and not quiet:
            self._master, slave = os.openpty()
            modes = termios.tcgetattr(slave)
            modes[1] &= ~termios.OPOST  # our own terminal already turns \n into \r\n
            termios.tcsetattr(slave, termios.TCSANOW, modes)
            self.resize()
            signal.signal(signal.SIGWINCH, lambda *_: self.resize())
            self._selector.register(self._master, selectors.EVENT_READ, 1)
            self.stdout = self.stderr = slave
        else:
            (out, self.stdout), (err, self.stderr) = os.pipe(), os.pipe()
            self._selector.register(out, selectors.EVENT_READ, 1)
            self._selector.register(err, selectors.EVENT_READ, 2)
        self._child_ends = {self.stdout, self.stderr}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.started()
        self.show("")
        for key in list(self._selector.get_map().values()):
            self._drop(key.fd)
        self._selector.close()
        if self._master is not None:
            signal.signal(signal.SIGWINCH, signal.SIG_DFL)

    def started(self) -> None:
        """Close our copies of the child's descriptors, so that we get its end of file."""
        while self._child_ends:
            os.close(self._child_ends.pop())

    def resize(self) -> None:
        """Give the child's terminal the size of ours."""
        if self._master is not None:
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(1, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def pump(self, seconds: float) -> bool:
        """Pass on output for ``seconds``; False if there was none."""
        came = False
        for key, _ in self._selector.select(seconds):
            try:
                data = os.read(key.fd, _CHUNK_BYTES)
            except OSError:  # EIO: the terminal's other side is closed
                data = b""
            if not data:
                self._drop(key.fd)
                continue
            came = True
            self._pass_on(data, key.data)
        return came

    @property
    def open(self) -> bool:
        """Return whether any process can still write."""
        return bool(self._selector.get_map())

    def show(self, line: str) -> None:
        """Replace the live line."""
        if self._live and self._at_start:
            new = printable(masked(line)).encode()
            self._write(2, (_CLEAR if self._line else b"") + new)
            self._line = new

    def _pass_on(self, data: bytes, target: int) -> None:
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        if not self._quiet:
            if self._line:
                self._write(2, _CLEAR)
                self._line = b""
            self._write(target, data)
            self._at_start = data.endswith((b"\n", b"\r"))
        if self._log is not None:
            try:
                self._log.write(data)
            except OSError as error:  # a full disk must not end a build
                self._log = None
                self._write(2, f"wslgpud: {t('the log ends here: {why}', why=cause(error))}\n".encode())

    def _write(self, target: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(target, view) :]
            except BlockingIOError:  # set non-blocking by a program that shares our terminal or pipe
                select.select([], [target], [])
            except OSError:  # the reader is gone, or its disk is full; only the program's end matters
                return

    def _drop(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)


class LogError(MessageError):
    """A log cannot be written; the message names it and the reason."""


def own_log(folder: Path, command: Sequence[str]) -> tuple[Path, BinaryIO]:
    """Start a log in the state folder. Raises LogError."""
    logs = folder / "guard"
    name = re.sub(r"[^\w.-]+", "-", Path(command[0]).name)[:40]
    new = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{name}-{os.getpid()}.log"
    try:
        safe_files.make_folder(folder)
        safe_files.make_folder(logs)
        with safe_files.Folder(logs) as kept:
            # Not by name: a training started twenty builds ago still writes.
            written = {old: _written(kept, old) for old in kept.names(_MAX_LOGS) if old.endswith(".log")}
            for old in sorted(written, key=written.__getitem__)[: -_KEPT_LOGS + 1]:
                kept.remove(old)
            return logs / new, kept.create(new)
    except OSError as error:
        why = "cannot keep a log in {path}: {why}; name one with --log"
        raise LogError(say(why, path=str(logs), why=cause(error))) from error


def _written(folder: safe_files.Folder, name: str) -> float:
    """Return when a log was last written; one just removed by another guard counts as the oldest."""
    with contextlib.suppress(FileNotFoundError):
        return folder.stat(name).st_mtime
    return 0.0


def opened_log(file: Path) -> BinaryIO:
    """Open the log that the user has named. Raises LogError."""
    try:
        # In a folder of another user's, root is led to no file elsewhere, and held up by no pipe.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(file, flags, 0o666)
    except OSError as error:
        why = say("it is a link; name the file itself") if file.is_symlink() else cause(error)
        raise LogError("cannot write the log {path}: {why}", path=str(file), why=why) from error
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb", buffering=0)
