"""Jumps: rises within a sample or two. An allocation, not a growth: it says nothing of what follows."""

from __future__ import annotations

from typing import NamedTuple

FLAT = 3.0
"""A jump is at least so many times what rose in the blocks before it: in a ramp every block is as high."""
RESUMED = 0.02
"""Rise after a jump (share of the capacity) that shows that something grows on."""
FALLEN = 0.5
"""Share of a jump that, once given back, shows that what jumped has gone."""
REMEMBERED = 64
"""Blocks for which a jump and its top are news: after that it is a plateau."""
AFTER = 0.1
"""Fall below a jump's top that shows that what jumped has gone."""


class Shift(NamedTuple):
    """By how much the past is to be raised, so that no time scale takes a jump for growth."""

    by: float
    fresh: bool = False  # a jump begins
    began_before: bool = False  # it began in the block before


NONE = Shift(0.0)


class Jumps:
    """Tells jumps from growth, one sample at a time; blocks are the samples of about half a second."""

    def __init__(self, least: float) -> None:
        """Take the smallest rise that can be a jump, as a share of the capacity."""
        self._least = least
        self._last: float | None = None
        self._block_from = self._anchor = self._crest = self._resumed_above = 0.0
        self._height = self._lifted = self._tallest = 0.0
        self._rises = (0.0, 0.0)
        self._blocks_since, self._crest_age = 9, REMEMBERED
        self._falling = False

    def see(self, used: float, *, new_block: bool) -> Shift:
        """Take the next sample; return what it means for the past."""
        last, self._last = self._last, used
        if last is None:
            self._anchor = self._block_from = self._crest = used
            return NONE
        if new_block:
            self._rises = (self._rises[1], max(0.0, last - self._block_from))
            self._anchor = self._block_from = last
            self._blocks_since += 1
            self._crest_age += 1
        shift = self._judge(used)
        self._lifted += shift.by
        if shift.by > 0.0:
            self._anchor = used
        if shift.by or used > self._crest:
            if shift.by > 0.0 or used > self._crest + RESUMED:
                self._crest_age = 0
            self._crest, self._falling = used, shift.by < 0.0
        return shift

    def _judge(self, used: float) -> Shift:
        rise = used - self._anchor
        if rise > 0.0 and self._blocks_since <= 1:
            self._height += rise
            self._resumed_above += rise
            return Shift(rise)  # the sample fell into the middle of the jump
        if rise >= self._least and rise >= FLAT * max(self._rises):
            if self._crest_age < REMEMBERED and used - self._crest < 0.5 * rise:
                self._crest_age = 0
                return NONE  # back to where it has just been: the next tooth of a saw
            began_before = self._rises[1] > FLAT * self._rises[0]
            self._height = self._tallest = rise + (self._rises[1] if began_before else 0.0)
            self._blocks_since = 0
            self._resumed_above = used + RESUMED
            return Shift(self._height, fresh=True, began_before=began_before)
        if self._blocks_since == 2 and rise >= 0.3 * self._height > 0.0:
            height, self._height, self._resumed_above = self._height, 0.0, 0.0
            return Shift(-height)  # a third in a row: it was the start of a ramp
        return self._given_back(used)

    def _given_back(self, used: float) -> Shift:
        """Follow the fall of what had stood for a while: the past comes down with it, sample by sample.

        What falls at once was a tooth or a copy. Its like will come again, and the tops are what to look at:
        with the past taken down, the next one would be lifted again, and a floor that rises under a saw that
        leaps up in one sample and comes down in three would never be seen.
        """
        fall = self._crest - used
        if self._lifted <= 0.0 or fall <= 0.0 or self._crest_age < REMEMBERED:
            return NONE
        if self._falling or fall >= FALLEN * self._tallest:
            return Shift(-min(self._lifted, fall))
        return NONE

    def standing(self, used: float) -> bool:
        """Tell whether nothing has grown since the last jump, so that what grew before it is over."""
        if used > self._resumed_above or used < self._resumed_above - AFTER:
            self._resumed_above = 0.0
            return False
        return True
