"""Tells the daemon, while a command runs, what it came to before: it can warn before that is taken."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from wslgpud.advise.guard.plan import Process
from wslgpud.sources import announced

#: The daemon looks once a second.
_EVERY_SECONDS = 1.0


class Announcement:
    """A file that the daemon reads; see ``wslgpud.sources.announced``."""

    def __init__(self, descriptor: int, who: str, peaks: Mapping[str, int]) -> None:
        """Take an open file, which stays the caller's."""
        self._descriptor, self._who, self._peaks = descriptor, who, peaks
        self._written = float("-inf")

    def note(
        self, now: float, processes: Sequence[Process], held_bytes: int, vram_bytes: Mapping[str, int]
    ) -> None:
        """Say what the command holds now.

        Args:
            now: seconds of the monotonic clock.
            processes: all that it has started.
            held_bytes: RAM and swap that they hold together.
            vram_bytes: by card what is taken beyond what was before.
        """
        if now - self._written < _EVERY_SECONDS:
            return
        self._written = now
        used = {"ram": held_bytes, **vram_bytes}
        pids = tuple(p.pid for p in sorted(processes, key=lambda p: -p.bytes))
        content = announced.text(self._who, self._peaks, used, pids)
        with contextlib.suppress(OSError):  # /run/lock is small; a build must not end for want of room there
            # One line; what is left of a longer one before comes after it.
            os.pwrite(self._descriptor, content, 0)


@contextlib.contextmanager
def announcing(
    who: str, peaks: Mapping[str, int], places: Sequence[str] = announced.PLACES
) -> Iterator[Announcement | None]:
    """Announce inside; None where nothing is remembered.

    Raises:
        OSError: none of the folders can be written to.
    """
    if not peaks:
        yield None
        return
    place = next((p for p in places if os.access(p, os.W_OK)), places[0])
    _sweep(Path(place))
    descriptor, name = tempfile.mkstemp(announced.SUFFIX, f"{announced.PREFIX}{os.getpid()}-", place)
    try:
        os.fchmod(descriptor, 0o644)  # the daemon is another user
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield Announcement(descriptor, who, peaks)
    finally:
        Path(name).unlink(missing_ok=True)
        os.close(descriptor)


def _sweep(place: Path) -> None:
    """Remove what guards of this user have left that were killed."""
    for path in place.glob(f"{announced.PREFIX}*{announced.SUFFIX}"):
        with contextlib.suppress(OSError):  # another user's, or one that is in use
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)
