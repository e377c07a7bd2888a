"""Jumps: rises within a sample or two. An allocation, not a growth: it says nothing of what follows."""

from __future__ import annotations

from typing import NamedTuple

FLAT = 3.0
"""A jump is at least so many times what rose in the blocks before it: in a ramp every block is as high."""
RESUMED = 0.02
"""Rise after a jump (share of the capacity) that shows that something grows on."""
AFTER = 0.1
"""Fall below a jump's top that shows that what jumped has gone."""


class Shift(NamedTuple):
    """By how much the past is to be raised, so that no time scale takes a jump for growth.

    ``fresh`` is True where a jump begins, ``began_before`` where it began in the block before.
    """

    by: float
    fresh: bool = False
    began_before: bool = False


NONE = Shift(0.0)


class Jumps:
    """Tells jumps from growth, one sample at a time; blocks are the samples of about half a second."""

    def __init__(self, least: float) -> None:
        """Take the smallest rise that can be a jump, as a share of the capacity."""
        self._least = least
        self._last: float | None = None
        self._block_from = 0.0
        self._anchor = 0.0
        self._rises = (0.0, 0.0)
        self._blocks_since = 9
        self._height = 0.0
        self._lifted = 0.0
        self._resumed_above = 0.0

    def see(self, used: float, *, new_block: bool) -> Shift:
        """Take the next sample; return what it means for the past."""
        last, self._last = self._last, used
        if last is None:
            self._anchor = self._block_from = used
            return NONE
        if new_block:
            self._rises = (self._rises[1], max(0.0, last - self._block_from))
            self._anchor = self._block_from = last
            self._blocks_since += 1
        shift = self._judge(used)
        self._lifted += shift.by
        if shift.by > 0.0:
            self._anchor = used
        return shift

    def _judge(self, used: float) -> Shift:
        rise = used - self._anchor
        if rise > 0.0 and self._blocks_since <= 1:
            self._height += rise
            self._resumed_above += rise
            return Shift(rise)  # the sample fell into the middle of the jump
        if rise >= self._least and rise >= FLAT * max(self._rises):
            began_before = self._rises[1] > FLAT * self._rises[0]
            self._height = rise + (self._rises[1] if began_before else 0.0)
            self._blocks_since = 0
            self._resumed_above = used + RESUMED
            return Shift(self._height, fresh=True, began_before=began_before)
        if self._blocks_since == 2 and rise >= 0.3 * self._height > 0.0:
            height, self._height, self._resumed_above = self._height, 0.0, 0.0
            return Shift(-height)  # a third in a row: it was the start of a ramp
        if rise <= -self._least and self._lifted > 0.0:
            return Shift(-min(self._lifted, -rise))
        return NONE

    def standing(self, used: float) -> bool:
        """Tell whether nothing has grown since the last jump, so that what grew before it is over."""
        if used > self._resumed_above or used < self._resumed_above - AFTER:
            self._resumed_above = 0.0
            return False
        return True
