"""VRAM that Windows has moved into its RAM: what lies in shared memory since a card became full.

Windows pages VRAM out instead of refusing it, under WSL2 whatever its policy says
(https://github.com/microsoft/WSL/issues/11050). Shared memory alone is normal: pinned buffers and the desktop
use it as well, so only what grows while the card is full counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from wslgpud.model import GpuSample, StressResult

NEAR_BYTES = 256 << 20
"""So near to where a stress run saw the card end, it is full: one chunk of that run."""
FULL_SHARE = 0.9
"""A card with more of its memory in use may spill: WSL2 itself takes 6 to 9 %, which no program ever gets."""
DIP_SECONDS = 60.0
"""A card that was full so recently is so still: what programs give back between two steps they take again."""


def card_ends(runs: Iterable[StressResult]) -> dict[str, float]:
    """Return, by UUID, how much of each card was in use when its memory began to lie in RAM.

    Only runs that saw it happen tell: the others ended before. The newest complete one of each card counts.
    """
    found: dict[str, float] = {}
    for run in runs:
        if not run.complete:
            continue
        parts = [run.values.get(name) for name in ("foreign_bytes", "context_bytes", "usable_bytes")]
        known = [float(part) for part in parts if part is not None]
        if run.values.get("spilled_bytes") and len(known) == len(parts):
            found[run.uuid] = sum(known)
        else:
            found.pop(run.uuid, None)
    return found


def may_spill(gpu: GpuSample, end_bytes: float | None) -> bool:
    """Tell whether a card is so full that Windows may move its memory; ``end_bytes`` as a stress run saw."""
    used, total = gpu.used_bytes, gpu.total_bytes
    if used is not None and end_bytes is not None and used >= end_bytes - NEAR_BYTES:
        return True
    share = used / total if used is not None and total else 0.0
    return max(share, gpu.windows_ratio or 0.0) >= FULL_SHARE


class Spill:
    """What has come into the shared memory of one card since it was full."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._before: float | None = None
        self._full_t = -math.inf
        self._grown = 0.0

    @property
    def before_bytes(self) -> float | None:
        """What was shared before the card was full; None while nothing was moved."""
        return self._before if self._grown else None

    def resume(self, t: float, before_bytes: float, grown_bytes: float) -> None:
        """Take over what an earlier run knew; one look at the machine does not show it again."""
        self._before, self._full_t, self._grown = before_bytes, t, grown_bytes

    def look(self, t: float, shared: float, *, full: bool) -> float:
        """Take what is shared now, in bytes; return how much of it was moved there."""
        # Already full at the first look: what was there then is all that can be compared with.
        before = shared if self._before is None else self._before
        least = min(before, shared)
        dips = t - self._full_t <= DIP_SECONDS
        self._before = least if full else max(least, shared - self._grown) if dips else shared
        grown = shared - self._before
        if full:
            self._full_t, self._grown = t, grown
        elif not dips:
            self._grown = 0.0
        return grown
