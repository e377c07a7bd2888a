"""Which programs the daemon has stopped: on disk before the signal goes out, so that none stays stopped.

Whatever becomes of the daemon (``kill -9``, an OOM kill, a bug), its next start lets them go on, and so does
``wslgpud alerts release``, which the service runs whenever it has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from wslgpud import documents

FILE = "stopped.json"


class Stopped(NamedTuple):
    """A stopped process: its identity, and whose it is."""

    pid: int
    start_ticks: int
    uid: int


class StoppedFile:
    """The list of them in the daemon's folder; there is no file while nothing is stopped."""

    def __init__(self, folder: Path) -> None:
        """Keep where it lies."""
        self.path = folder / FILE

    def read(self) -> set[Stopped]:
        """Return what this boot's daemons have stopped and not let go on; nothing where that is not known.

        Start times count from the boot: those of an earlier one could name somebody else now.
        """
        try:
            document = documents.parsed(documents.read(self.path))
            if document["boot_id"] != _boot_id():
                return set()
            return {Stopped(*(int(number) for number in entry)) for entry in document["stopped"]}
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return set()

    def write(self, stopped: Iterable[Stopped]) -> None:
        """Replace the list in one step, on disk when this returns.

        Raises:
            OSError: it cannot be written.
        """
        entries = sorted(stopped)
        if not entries:
            self.path.unlink(missing_ok=True)
            return
        documents.put(self.path, json.dumps({"boot_id": _boot_id(), "stopped": entries}), synced=True)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
