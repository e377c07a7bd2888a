"""Brings what the program prints to where it would have gone, and into the log; one live line stays below."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import selectors
import signal
import struct
import termios
from types import TracebackType
from typing import BinaryIO

from wslgpud.masking import masked
from wslgpud.units import printable
from wslgpud.words import failure, t

_CHUNK_BYTES = 1 << 16
_CLEAR = b"\r\x1b[2K"


class Relay:
    """Streams for a child. On a terminal the child gets a terminal too, so that its colours and bars stay."""

    def __init__(self, log: BinaryIO | None, *, live: bool, quiet: bool = False) -> None:
        """Open the streams.

        Args:
            log: unbuffered file that gets all that is printed.
            live: keep a line on standard error, where that is a terminal.
            quiet: print nothing else.
        """
        self._quiet = quiet
        self._log = log
        self._live = live and os.isatty(2)
        self._line = b""
        self._at_start = True
        self._selector = selectors.DefaultSelector()
        self._child_ends: list[int] = []
        self._master: int | None = None
        if os.isatty(1) and os.isatty(2) and not quiet:
            self._master, slave = os.openpty()
            modes = termios.tcgetattr(slave)
            modes[1] &= ~termios.OPOST  # our own terminal makes \r\n of \n, once is enough
            termios.tcsetattr(slave, termios.TCSANOW, modes)
            self.resize()
            signal.signal(signal.SIGWINCH, lambda *_: self.resize())
            self._selector.register(self._master, selectors.EVENT_READ, 1)
            self.stdout = self.stderr = slave
            self._child_ends = [slave]
        else:
            ends = [os.pipe(), os.pipe()]
            for (ours, _), target in zip(ends, (1, 2), strict=True):
                self._selector.register(ours, selectors.EVENT_READ, target)
            self.stdout, self.stderr = (theirs for _, theirs in ends)
            self._child_ends = [self.stdout, self.stderr]

    def __enter__(self) -> Relay:  # noqa: PYI034 - typing.Self came with Python 3.11
        """Return itself; the streams are closed with the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything and take the live line away."""
        self.started()
        self.show("")
        for key in list(self._selector.get_map().values()):
            self._drop(key.fd)
        self._selector.close()
        if self._master is not None:
            signal.signal(signal.SIGWINCH, signal.SIG_DFL)

    def started(self) -> None:
        """Close our copies of the child's ends, so that its end is seen."""
        for end in self._child_ends:
            os.close(end)
        self._child_ends = []

    def resize(self) -> None:
        """Give the child's terminal the size of ours."""
        if self._master is not None:
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(1, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def pump(self, seconds: float) -> bool:
        """Pass on what comes within ``seconds``; False when nothing came."""
        came = False
        for key, _ in self._selector.select(seconds):
            try:
                data = os.read(key.fd, _CHUNK_BYTES)
            except OSError:  # a terminal whose other side is closed says EIO
                data = b""
            if not data:
                self._drop(key.fd)
                continue
            came = True
            self._pass_on(data, key.data)
        return came

    @property
    def open(self) -> bool:
        """Tell whether anybody can still print."""
        return bool(self._selector.get_map())

    def show(self, line: str) -> None:
        """Replace the live line."""
        if not self._live:
            return
        new = printable(masked(line)).encode()
        if self._at_start:
            self._write(2, (_CLEAR if self._line else b"") + new)
            self._line = new

    def _pass_on(self, data: bytes, target: int) -> None:
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
                said = t("the log ends here: {why}", why=failure(error))
                self._write(2, f"wslgpud: {said}\n".encode())

    def _write(self, target: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(target, view) :]
            except BlockingIOError:  # somebody who shares our terminal or pipe has set it so
                select.select([], [target], [])
            except OSError:  # whoever read us has gone, or their disk is full; only the program's end matters
                return

    def _drop(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
