"""A child that outlives the daemon by a moment: whatever ends it, all that it held goes on.

It is told by a pipe what is held, and knows by the pipe's end that the daemon is no more: killed, crashed or
ended. It has the daemon's rights from before those were given up, imports little, and does nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import IO, BinaryIO, cast

from wslgpud.brake.grip import Grip, known, let_go, told

#: for so long it may take to confirm what it was told; a job that it does not know of is not stopped
CONFIRM_SECONDS = 0.5
#: bytes of one line
_MOST_BYTES = 1 << 22
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Watchdog:
    """The daemon's side of it."""

    def __init__(self) -> None:
        """Start the child; it inherits what capabilities are handed on now."""
        self._child = subprocess.Popen(
            [sys.executable, "-m", "wslgpud.brake.watchdog"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # A closing terminal and Ctrl-C are for the daemon.
            start_new_session=True,
        )
        self._pipes = cast("IO[bytes]", self._child.stdin), cast("IO[bytes]", self._child.stdout)

    @property
    def pid(self) -> int:
        return self._child.pid

    def tell(self, held: Iterable[Grip]) -> bool:
        """Tell it all that is held from now on; return whether it has confirmed that."""
        told_in, heard_from = self._pipes
        line = json.dumps([told(grip) for grip in held]).encode() + b"\n"
        until = time.monotonic() + CONFIRM_SECONDS
        try:
            os.set_blocking(told_in.fileno(), False)
            while line:
                _, ready, _ = select.select([], [told_in], [], max(0.0, until - time.monotonic()))
                if not ready:
                    return self._lost()
                line = line[os.write(told_in.fileno(), line) :]
            ready, _, _ = select.select([heard_from], [], [], max(0.0, until - time.monotonic()))
            return os.read(heard_from.fileno(), 1) == b"+" if ready else self._lost()
        except (OSError, ValueError):  # it has ended, or we have ended it
            return self._lost()

    def _lost(self) -> bool:
        """Give it up: it may have half a line, and a late answer would be taken for one to the next."""
        self._child.kill()
        return False

    def alive(self) -> bool:
        return self._child.poll() is None

    def close(self) -> None:
        """End it; what it was told last to be held goes on."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self._child.wait(CONFIRM_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def watch(told_in: BinaryIO, confirmed: BinaryIO) -> None:
    """Take what is held, line by line; when no more comes, let it go on."""
    held: list[Grip] = []
    while (line := told_in.readline(_MOST_BYTES)).endswith(b"\n"):
        held = [known(one) for one in json.loads(line)]
        with contextlib.suppress(OSError):  # it has been killed meanwhile
            confirmed.write(b"+")
            confirmed.flush()
    for grip in held:
        let_go(grip)


def main() -> int:
    for number in _SIGNALS:  # systemd ends all of a unit at once; our end is the daemon's
        signal.signal(number, signal.SIG_IGN)
    watch(sys.stdin.buffer, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
