"""The log of a guarded run: one in the state folder, which keeps the last twenty, or where the user wants it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from wslgpud.security import safe_files
from wslgpud.words import MessageError, cause, say

_KEPT_LOGS, _MAX_LOGS = 20, 10_000


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


def opened(file: Path) -> BinaryIO:
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
