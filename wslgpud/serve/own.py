"""What the daemon itself costs: its processes, as the kernel accounts for them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)


def processes() -> list[dict[str, Any]]:
    """Return pid, name, processor seconds and memory (its share of what it shares) of us and our children.

    A child that ends meanwhile is left out, memory that the kernel does not tell is absent.
    """
    found = []
    for pid in (os.getpid(), *_children()):
        try:
            # The name stands in brackets and may hold any character, brackets too.
            name, _, rest = (_PROC / str(pid) / "stat").read_bytes().partition(b"(")[2].rpartition(b")")
        except OSError:
            continue
        fields = rest.split()
        process: dict[str, Any] = {
            "pid": pid,
            "name": name.decode("utf-8", "replace"),
            "cpu_seconds": round((int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND, 2),
        }
        memory = _pss_bytes(pid)
        found.append(process if memory is None else {**process, "pss_bytes": memory})
    return found


def _children() -> Iterator[int]:
    """Return the children of all our threads; of kernels without CONFIG_PROC_CHILDREN none."""
    for task in _PROC.glob("self/task/*/children"):
        try:
            yield from map(int, task.read_text().split())
        except OSError:
            continue


def _pss_bytes(pid: int) -> int | None:
    try:
        found = _PSS.search((_PROC / str(pid) / "smaps_rollup").read_bytes())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
