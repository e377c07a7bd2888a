"""Files in RAM (tmpfs, /dev/shm): no process holds them, but the cgroup that wrote them is charged for them.

https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files (``shmem`` of memory.stat)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from wslgpud.brake.culprit import FOUND_SHARE, JOB_SHARE
from wslgpud.brake.freezer import folder_of

_SHMEM: Final = re.compile(r"^shmem (\d+)$", re.MULTILINE)


def shmem_bytes(cgroups: Iterable[str]) -> dict[str, int]:
    """Return the files in RAM of each cgroup (v2, without its root) in bytes; without those that cannot be read."""
    bytes_by_cgroup = {}
    for path in cgroups:
        with suppress(OSError, ValueError):
            text = Path(folder_of(path) or "/nowhere", "memory.stat").read_text(encoding="ascii")
            if match := _SHMEM.search(text):
                bytes_by_cgroup[path] = int(match[1])
    return bytes_by_cgroup


def filling(before: Mapping[str, int], now: Mapping[str, int], lost_bytes: int) -> tuple[str, int] | None:
    """Return the cgroup whose files took the lost memory, and by how much they grew; None if none accounts for it."""
    growth = {path: max(0, size - before.get(path, 0)) for path, size in now.items()}
    largest = max(growth, key=lambda path: growth[path], default=None)
    if largest is None or lost_bytes <= 0:
        return None
    enough = growth[largest] >= max(JOB_SHARE * sum(growth.values()), FOUND_SHARE * lost_bytes)
    return (largest, growth[largest]) if enough else None
