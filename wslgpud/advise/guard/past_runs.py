"""The peaks of earlier runs, in one small file of the user's.

``commands`` holds for each: ``peak_bytes`` of RAM and swap, ``vram_bytes`` by card's UUID beyond the use before,
``compiler_bytes`` of the largest compiler, ``jobs`` at once, ``killed`` after an OOM kill (it needs at least its peak
then), seconds and exit status.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wslgpud.advise.guard.usage import RunStats
from wslgpud.security import safe_files

NAME = "guard.json"
#: limit; the oldest entries are dropped
MAX_COMMANDS = 200


@dataclass(slots=True)
class PastRuns:
    """Peaks by command and by compiler, in bytes; ``commands`` in order of their last run."""

    commands: dict[str, dict[str, Any]] = field(default_factory=dict)
    compilers: dict[str, int] = field(default_factory=dict)

    def compiler_bytes(self, command: str) -> int | None:
        """Return the highest memory of one compiler in earlier runs of a command."""
        value = self.commands.get(command, {}).get("compiler_bytes")
        return value if isinstance(value, int) and value > 0 else None

    def peaks(self, command: str, jobs: int | None, most: Mapping[str, int]) -> dict[str, int]:
        """Return the expected memory of a command, in bytes, by resource ("ram" or a card's UUID).

        A build's memory is proportional to its number of jobs. A peak above this machine's capacity (``most``) is
        wrong, or from another machine.
        """
        facts = self.commands.get(command, {})
        before, vram = facts.get("jobs"), facts.get("vram_bytes")
        noted = {"ram": facts.get("peak_bytes"), **(vram if isinstance(vram, dict) else {})}
        found = {name: size for name, size in noted.items() if type(size) is int and 0 < size <= most.get(name, size)}
        if "ram" in found and facts.get("compiler_bytes") and jobs and isinstance(before, int):
            wanted = found["ram"] * jobs // max(before, 1)
            found["ram"] = min(wanted, most.get("ram", wanted))
        return {name: size for name, size in found.items() if size > 0}

    def learn(self, command: str, stats: RunStats, jobs: int | None) -> None:
        """Take over a run that has ended; the last one counts, as sources and flags change."""
        before = self.commands.pop(command, {})
        facts = {
            "seconds": round(stats.seconds, 1),
            "peak_bytes": stats.peak_bytes,
            "compiler_bytes": stats.compiler_bytes,
            "vram_bytes": stats.vram_taken_bytes,
            "jobs": jobs,
            "code": stats.code,
        }
        if stats.oom_kills:  # it needs at least this much; a compiler's need is unknown
            peak = max(stats.peak_bytes or 0, before.get("peak_bytes") or 0)
            facts |= {"killed": True, "peak_bytes": peak, "compiler_bytes": before.get("compiler_bytes")}
        self.commands[command] = facts
        for old in list(self.commands)[:-MAX_COMMANDS]:
            del self.commands[old]
        for name, size in () if stats.oom_kills else stats.compilers.items():
            # Decays at each run, so that one huge file does not slow down every later build.
            self.compilers[name] = max(size, (self.compilers.get(name, 0) + size) // 2)


def load(folder: Path) -> PastRuns:
    """Return the stored runs; none where the file is missing or invalid."""
    try:
        document = safe_files.parsed(safe_files.contents(folder / NAME))
        commands = {str(k): dict(v) for k, v in document["commands"].items()}
        return PastRuns(commands, {str(k): int(v) for k, v in document["compilers"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return PastRuns()


def save(folder: Path, known: PastRuns) -> None:
    """Write the runs atomically.

    Raises:
        OSError: the folder cannot be written.
    """
    safe_files.make_folder(folder)
    safe_files.put(folder / NAME, json.dumps(dataclasses.asdict(known), indent=1))
