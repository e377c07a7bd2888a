"""Runs a program of ``programs`` with the companion, and writes down what it saw after each step.

``python watched.py NAME STEPS DEVICE ram|card``, by a Python that has torch: prints one line of JSON, a list of
[memory in use after a step, peak, what the outside sees], in bytes. Of RAM in use is our own anonymous memory, and so
is what the outside sees; of a card that is what the allocator has taken from it.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "wslgpud" / "training"))

import companion  # noqa: E402 - as it is found in a stranger's Python: by itself

ROWS: list[list[int]] = []


class Noting(companion.Companion):  # type: ignore[misc]  # found at run time
    """Reads after each step, without reporting."""

    def _begin(self, optimizer: Any) -> None:
        super()._begin(optimizer)
        self._daemon_reads = True

    def _read(self) -> None:
        self._workers_bytes = sum(map(companion._proportional_bytes, companion._children()))
        super()._read()

    def _note(self, name: str, used: int, peak: int, more: dict[str, int]) -> None:
        if (name == "ram") == (sys.argv[4] == "ram"):
            ROWS.append([used, peak, more.get("reserved", used)])


companion.READ_SECONDS = companion.TELL_SECONDS = 0.0
companion.Companion._tell = lambda self: None
companion.COMPANION = Noting()
companion.watch()
runpy.run_path(str(HERE / "programs.py"), run_name="__main__")
sys.stdout.write(json.dumps(ROWS) + "\n")
