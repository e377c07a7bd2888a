"""Commands to the running brake: a small file in the state folder, which only root and the service can write to."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from wslgpud.security import safe_files

FILE = "brake-commands.json"
Command = Literal["resume", "stop"]
#: more than anyone types between two ticks; of more, only the last are kept
_MAX_COMMANDS = 100


class CommandFile:
    """The file of commands; an unreadable one is ignored."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._stamp = safe_files.stamp(self.path)

    def new(self) -> Iterator[tuple[int, Command]]:
        """Yield the commands added since the last call, each with its job's number. Numbers are never reused."""
        stamp = safe_files.stamp(self.path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, OverflowError):
            yield from self.read()

    def read(self) -> list[tuple[int, Command]]:
        """Return the commands in the file. Raises OSError, ValueError, TypeError, KeyError: none, or malformed."""
        document = safe_files.parsed(safe_files.contents(self.path))
        known: dict[str, Command] = {"resume": "resume", "stop": "stop"}
        return [(int(number), known[command]) for number, command in document["commands"][-_MAX_COMMANDS:]]

    def append(self, number: int, command: Command) -> None:
        """Add a command. Raises OSError: the file cannot be written."""
        before: list[tuple[int, Command]] = []
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, OverflowError):
            before = self.read()
        document = {"commands": [*before, (number, command)][-_MAX_COMMANDS:]}
        safe_files.put(self.path, json.dumps(document), mode=0o644)  # written by root, read by the service's user
