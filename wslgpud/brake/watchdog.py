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

from wslgpud.brake.held_jobs import HeldJob, from_json, resume, to_json
from wslgpud.brake.resident import stay_resident

#: for so long it may take to confirm, and at first to start; a job that it does not know of is not stopped
CONFIRM_SECONDS, START_SECONDS = 0.5, 10.0
#: bytes of one line
_MOST_BYTES = 1 << 22
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Watchdog:
    """The daemon's side of it."""

    def __init__(self) -> None:
        """Start the child; it inherits what capabilities are handed on now."""
        from wslgpud.probes.supervisor import clean_environment, python_command  # not in the child

        self._child = subprocess.Popen(
            python_command("wslgpud.brake.watchdog"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=dict(clean_environment()),
            cwd="/",
            # A closing terminal and Ctrl-C are for the daemon.
            start_new_session=True,
        )
        self._started = False
        self._pipes = cast("IO[bytes]", self._child.stdin), cast("IO[bytes]", self._child.stdout)

    @property
    def pid(self) -> int:
        return self._child.pid

    def update(self, held: Iterable[HeldJob]) -> bool:
        """Tell it all that is held from now on; return whether it has confirmed that."""
        input_, output = self._pipes
        line = json.dumps([to_json(job) for job in held]).encode() + b"\n"
        until = time.monotonic() + (CONFIRM_SECONDS if self._started else START_SECONDS)
        try:
            os.set_blocking(input_.fileno(), False)
            while line:
                _, ready, _ = select.select([], [input_], [], max(0.0, until - time.monotonic()))
                if not ready:
                    return self._lost()
                line = line[os.write(input_.fileno(), line) :]
            ready, _, _ = select.select([output], [], [], max(0.0, until - time.monotonic()))
            self._started = bool(ready) and os.read(output.fileno(), 1) == b"+"
            return self._started or self._lost()
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


def watch(updates: BinaryIO, confirmed: BinaryIO) -> None:
    """Take what is held, line by line; when no more comes, resume it."""
    held: list[HeldJob] = []
    while (line := updates.readline(_MOST_BYTES)).endswith(b"\n"):
        held = [from_json(one) for one in json.loads(line)]
        with contextlib.suppress(OSError):  # it has been killed meanwhile
            confirmed.write(b"+")
            confirmed.flush()
    for job in held:
        resume(job)


def main() -> int:
    for number in _SIGNALS:  # systemd ends all of a unit at once; our end is the daemon's
        signal.signal(number, signal.SIG_IGN)
    stay_resident()  # the daemon may do the same, and says so if not
    watch(sys.stdin.buffer, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
