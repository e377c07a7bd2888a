"""Trainings that read from a Windows drive, whose files are slow to reach from Linux."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from wslgpud.host import Host
from wslgpud.sources.disk import READERS, open_there, windows_points

#: check interval of open files: a data set does not move
DRIVES_SECONDS = 10.0


class DriveWatch:
    """Checks now and then whether a training has files of a Windows drive open; see the doctor's check."""

    def __init__(self, host: Host) -> None:
        self._host, self._looked = host, -math.inf
        self._slow_reader: tuple[str, str] | None = None

    def slow_reader(self, document: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the name of that process of a document, and the path; None where there is none."""
        now = time.monotonic()
        if now - self._looked >= DRIVES_SECONDS:
            self._looked = now
            points = windows_points(self._host)
            names = {p["pid"]: p["name"] for p in document.get("processes", ()) if READERS & set(p["roles"])}
            seen = next(open_there(self._host, names, points), None) if points else None
            self._slow_reader = None if seen is None else (f"{names[seen[0]]} (pid {seen[0]})", seen[1])
        return self._slow_reader
