"""Resumes stopped compilers whatever becomes of the guard: ``kill -9``, an OOM kill, a bug."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable

#: When its input ends, and so when we end in whatever way, everybody who was ever stopped is let go on; to a
#: process that runs this does nothing.
_SCRIPT = 'while read -r pid; do all="$all $pid"; done; [ -z "$all" ] || kill -CONT $all 2>/dev/null; :'


class Rescue:
    """A shell that waits for our end; started when the first process is stopped."""

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    @property
    def pid(self) -> int | None:
        """The shell's pid, once there is one."""
        return self._shell.pid if self._shell else None

    def note(self, pids: Iterable[int]) -> None:
        """Remember these; call before they are stopped."""
        for pid in pids:
            if self._shell is None:
                end, self._pipe = os.pipe()
                # In a session of its own, so that Ctrl-C ends the build and not its rescue.
                self._shell = subprocess.Popen(["/bin/sh", "-c", _SCRIPT], stdin=end, start_new_session=True)
                os.close(end)
            os.write(self._pipe, f"{pid}\n".encode())

    def close(self) -> None:
        """End the shell, which lets everybody go on."""
        if self._shell is not None:
            os.close(self._pipe)
            self._shell.wait()
            self._shell = None
