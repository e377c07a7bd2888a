"""Which value still fits: a command with one value after another, stopped before the one that would not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from wslgpud.words import Fact, Message, say

#: What is predicted is taken with so much on top: allocators take memory in steps.
CAUTION = 1.05


@dataclass(frozen=True, slots=True)
class Step:
    """One value and what its run took, None where not known; of VRAM, on top of what was used before."""

    value: str
    code: int
    seconds: float
    ram_bytes: int | None
    vram_bytes: int | None

    @property
    def number(self) -> float | None:
        """The value as a number, where it is one; infinity is none that a peak could follow."""
        try:
            number = float(self.value)
        except ValueError:
            return None
        return number if math.isfinite(number) else None


def predict(points: Sequence[tuple[float, int]], value: float) -> int | None:
    """Return what ``value`` will take: on the line through the last two points, never less than the last.

    Memory grows with a batch by a constant for each sample on top of what is always there; one point says
    nothing of either. Where growth gets faster (attention without flash), the last two are the steepest.
    """
    known = sorted(points)[-2:]
    if len(known) < 2 or known[0][0] == known[1][0]:
        return None
    (x0, y0), (x1, y1) = known
    slope = max(0.0, (y1 - y0) / (x1 - x0))
    return max(y1 if value >= x1 else 0, round(y1 + slope * (value - x1)))


def too_much(steps: Sequence[Step], value: str, ram_room_bytes: int, vram_room_bytes: int | None) -> Message | None:
    """Return why the next value will not fit; None: it fits, or nothing is known."""
    new = Step(value, 0, 0.0, None, None).number
    if new is None:
        return None
    known = [(s.number, s.ram_bytes, s.vram_bytes) for s in steps if s.code == 0 and s.number is not None]
    ram = predict([(x, ram) for x, ram, _ in known if ram is not None], new)
    vram = predict([(x, vram) for x, _, vram in known if vram is not None], new)
    if vram is not None and vram_room_bytes is not None and vram * CAUTION > vram_room_bytes:
        need: dict[str, Fact] = {"value": value, "need_bytes": vram, "free_bytes": vram_room_bytes}
        return say("{value} would take {need_bytes} of VRAM, and {free_bytes} is free: stopped before it", **need)
    if ram is not None and ram * CAUTION > ram_room_bytes:
        need = {"value": value, "need_bytes": ram, "free_bytes": ram_room_bytes}
        return say("{value} would take {need_bytes} of RAM, and {free_bytes} is free: stopped before it", **need)
    return None
