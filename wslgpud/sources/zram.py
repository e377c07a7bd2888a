"""Swap on zram: it lies compressed in RAM, so what is free there is no room beside RAM."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wslgpud.host import Host
from wslgpud.sources import parse_uint

_DEVICE = re.compile(r"^/dev/(zram\d{1,4})\s+partition\s+(\d{1,15})\s+(\d{1,15})\s", re.MULTILINE)
#: how well memory compresses is known once this much lies there
ENOUGH_BYTES = 64 << 20


class Zram(NamedTuple):
    """Swap on zram in bytes: ``stored`` is what it holds of other than uniform pages, ``held`` the RAM that takes."""

    total: int
    free: int
    stored: int
    held: int

    @property
    def compressible(self) -> int | None:
        """Return the RAM that filling the rest would free; None where too little is stored to know.

        Swapping out F bytes frees F and takes F x held / stored: pages that a GPU program computes may not shrink at
        all, and zsmalloc's own needs count. https://docs.kernel.org/admin-guide/blockdev/zram.html#stats
        """
        if self.stored < ENOUGH_BYTES:
            return None
        return int(self.free * max(0.0, 1.0 - self.held / self.stored))


def devices(swaps: str) -> list[tuple[str, int, int]]:
    """Return name, size and free space in bytes of each zram device in /proc/swaps."""
    rows = _DEVICE.findall(swaps)
    return [(name, int(size) << 10, max(0, int(size) - int(used)) << 10) for name, size, used in rows]


def summed(swaps: Iterable[tuple[str, int, int]], stats: Iterable[str]) -> Zram | None:
    """Return all devices together, given the ``mm_stat`` of each; None without a device."""
    total = free = stored = held = 0
    known = False
    for (_, size, left), text in zip(swaps, stats, strict=True):
        known, total, free = True, total + size, free + left
        words = text.split()
        # orig_data_size compr_data_size mem_used_total mem_limit ...
        original, used = (parse_uint(words[i]) if len(words) > 2 else None for i in (0, 2))
        if original is not None and used is not None:
            stored, held = stored + original, held + used
    return Zram(total, free, stored, held) if known else None


def read(host: Host) -> Zram | None:
    """Return this machine's swap on zram; None where there is none."""
    swaps = devices(host.read_optional("/proc/swaps"))
    return summed(swaps, [host.read_optional(f"/sys/block/{name}/mm_stat") for name, _, _ in swaps])


def free_bytes(host: Host, levels: Mapping[str, int]) -> int:
    """Return the free swap of ``/proc/meminfo`` as room beside RAM: of zram only what filling it would free."""
    free = levels.get("SwapFree", 0)
    swap = read(host) if free else None
    return free if swap is None else max(0, free - swap.free) + (swap.compressible or 0)
