"""What people tell the running brake: a small file in the folder that only root and the service can write to."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from wslgpud.security import safe_files

FILE = "brake-commands.json"
Command = Literal["resume", "stop"]
#: more than a person gives between two ticks; of more the last count
_MOST = 100


class CommandFile:
    """Reads the file when it has changed; one that cannot be read commands nothing."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._stamp = self._now()

    def new(self) -> Iterator[tuple[int, Command]]:
        """Yield the commands that have come since the last call, by number of the job. Numbers are never used again."""
        stamp = self._now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, OverflowError):
            yield from self.read()

    def read(self) -> list[tuple[int, Command]]:
        """Return the commands in the file. Raises OSError, ValueError, TypeError, KeyError: there are none."""
        document = safe_files.parsed(safe_files.contents(self.path))
        known: dict[str, Command] = {"resume": "resume", "stop": "stop"}
        return [(int(number), known[command]) for number, command in document["commands"][-_MOST:]]

    def append(self, number: int, command: Command) -> None:
        """Add a command. Raises OSError: the file cannot be written."""
        before: list[tuple[int, Command]] = []
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, OverflowError):
            before = self.read()
        document = {"commands": [*before, (number, command)][-_MOST:]}
        safe_files.put(self.path, json.dumps(document), mode=0o644)  # the daemon is another user

    def _now(self) -> tuple[int, int]:
        try:
            found = self.path.lstat()
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_ino
