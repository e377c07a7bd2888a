"""What processes of Windows say: who holds a card, and how much RAM each virtual machine of WSL has."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TypeVar

from wslgpud.model import GpuProcess
from wslgpud.words.units import one_line

#: the programs shown of each card, and the least that one holds; the probe's own limit is for all cards together
MAX_PROGRAMS, MIN_PROGRAM_BYTES = 8, 64 << 20
_NAME_CHARACTERS = 40
#: the process of a session of WSL's containers: https://github.com/microsoft/WSL/discussions/40942
_SESSION = re.compile(r"vmmem(wslc-.+)", re.IGNORECASE)
_MAX_SESSIONS = 8
#: the processes of virtual machines: what runs in WSL's own is no program of Windows
_VIRTUAL_MACHINES = frozenset({"vmmem", "vmmemwsl", "vmwp"})
#: Windows' processes without a file
_WITHOUT_FILE = frozenset({"system", "secure system", "registry", "memory compression"})

Card = TypeVar("Card")


def vm_bytes(held: Iterable[tuple[str, int]]) -> int | None:
    """Return the memory of WSL's VM; next to a ``vmmemWSL``, a ``vmmem`` belongs to another VM."""
    sizes: dict[str, int] = {}
    for name, size in held:
        sizes[name.lower()] = max(size, sizes.get(name.lower(), 0))
    return sizes.get("vmmemwsl") or sizes.get("vmmem")


def sessions(held: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return what the largest sessions of WSL's containers hold, by name."""
    found = Counter[str]()
    for name, size in held:
        if size and (match := _SESSION.fullmatch(one_line(name, _NAME_CHARACTERS))):
            found[match[1]] += size
    return dict(found.most_common(_MAX_SESSIONS))


def programs(rows: Iterable[tuple[Card, object, int | None]]) -> dict[Card, tuple[GpuProcess, ...]]:
    """Return the largest programs of each card, from the use of each process; one without a name has just ended."""
    found: dict[Card, Counter[str]] = defaultdict(Counter)
    for card, process, size in rows:
        name = one_line(process, _NAME_CHARACTERS).removesuffix(".exe") if isinstance(process, str) else ""
        if name and size is not None and name.lower() not in _VIRTUAL_MACHINES:
            bare = name.lower() in _WITHOUT_FILE or _SESSION.fullmatch(name)
            found[card][name if bare else f"{name}.exe"] += size
    return {
        card: tuple(
            GpuProcess(0, name, size) for name, size in held.most_common(MAX_PROGRAMS) if size >= MIN_PROGRAM_BYTES
        )
        for card, held in found.items()
    }
