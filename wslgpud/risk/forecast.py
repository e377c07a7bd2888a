"""How fast a resource is used up, seen at every time scale at once.

The used share of a resource is kept as a pyramid: level k holds the last eight blocks of 2**k samples, each
by its maximum (the envelope of use, which irons out what saws up and down within a block). Counting
samples instead of seconds makes the picture the same for one sample every 0.1 s or every minute.

How likely a growth goes on to the end follows from how far it has come (Lindy's rule: the chance that what
has gained G goes on for H more is G / (G + H) when nothing else is known of its size). The rule knows no
bytes and no seconds, so a leak of hours and one of seconds are judged alike.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

BLOCKS = 8
LEVELS = 14
BASE_SECONDS = 0.45
FEWEST = 4


class Growth(NamedTuple):
    """A growth that is going on: ``gain`` and ``rate`` (a second) are shares of the capacity."""

    window_seconds: float
    gain: float
    rate: float
    probability: float
    eta_seconds: float
    pace: float


class Level:
    """The last blocks of one time scale: maxima of the used share, and when each block ended."""

    __slots__ = ("count", "cur", "cur_t", "ends", "maxima")

    def __init__(self) -> None:
        self.maxima: deque[float] = deque(maxlen=BLOCKS - 1)
        self.ends: deque[float] = deque(maxlen=BLOCKS - 1)
        self.cur = 0.0
        self.cur_t = 0.0
        self.count = 0

    def growth(self, t: float, used: float, noise: float) -> Growth | None:
        """Return the growth that this scale sees, or None where it sees none that is alive and steady."""
        n = len(self.maxima)
        if n < FEWEST - 1:
            return None
        now = max(used, self.cur) if self.count else used
        since, reference = self.ends[0], self.maxima[0]
        if n >= BLOCKS - 2 and self.maxima[1] >= reference:
            since, reference = self.ends[1], self.maxima[1]
        gain = now - reference
        if gain <= noise:
            return None
        recent = now - self.maxima[-3]
        if recent * (n + 1) < 1.5 * gain:  # 3 of n + 1 blocks, at half the mean rate
            return None
        total = largest = 0.0
        rises = 0
        least = 0.05 * gain
        before = self.maxima[0]
        for value in (*list(self.maxima)[1:], now):
            rise = value - before
            before = value
            if rise > 0.0:
                total += rise
                if rise > least:
                    rises += 1
                if rise > largest:
                    largest = rise
        if rises < (FEWEST - 1 if now > 0.88 else FEWEST):
            return None
        window = t - since
        if window <= 0.0:
            return None
        pace = (now - self.maxima[-2]) * (n + 1) / (2.0 * gain)
        steadiness = min(1.0, (1.0 - largest / total) / 0.6)
        return Growth(window, (gain - noise) * steadiness, gain / window, 0.0, 0.0, pace)


class Envelope:
    """The pyramid: ``push`` samples in, ``growths`` out."""

    def __init__(self, noise: float, jump: float) -> None:
        """Take the gain that counts as noise and the rise that counts as a jump, as shares."""
        self._noise = noise
        self._jump = jump
        self._levels = [Level() for _ in range(LEVELS)]
        self._seen: list[Growth | None] = [None] * LEVELS
        self._block_t = -1.0
        self._last: float | None = None
        self._rises = (0.0, 0.0)
        self._lifted = 0.0
        self._anchor = self._block_from = 0.0
        self._jump_age = 9
        self._jump_height = 0.0
        self._mark = 0.0
        self._mark_t = -1.0
        self._resumed_above = 0.0
        self._marked_before = -1.0
        self.rolled: list[tuple[int, float, float]] = []

    def clear(self) -> None:
        """Forget everything: what comes next is another machine."""
        self.__init__(self._noise, self._jump)  # type: ignore[misc]

    def skip(self, seconds: float) -> None:
        """Forget the scales that are shorter than a gap in time: they know nothing of what was before."""
        for level in self._levels:
            if level.maxima and level.ends[-1] - level.ends[0] < 2.0 * seconds:
                level.maxima.clear()
                level.ends.clear()
                level.count = 0
        self._seen = [None] * LEVELS

    def push(self, t: float, used: float) -> None:
        """Add one sample; ``rolled`` then lists (level, time, maximum) of the blocks it completed."""
        self.rolled = []
        self._lift_jumps(t, used)
        self._last = used
        if used > self._mark + 0.004 or used < self._mark - self._noise:
            if used > self._mark:
                self._marked_before, self._mark_t = self._mark_t, t
            self._mark = used
        base = self._levels[0]
        if base.count == 0:
            self._block_t = t
            base.cur = used
        elif t - self._block_t >= BASE_SECONDS:
            self._roll(0, base.cur_t, base.cur)
            self._block_t = t
            base.cur = used
        else:
            base.cur = max(base.cur, used)
        base.count = 1
        base.cur_t = t

    def _roll(self, index: int, t: float, value: float) -> None:
        """Put a completed block into its ring; two of them make one of the next level."""
        level = self._levels[index]
        level.maxima.append(value)
        level.ends.append(t)
        self.rolled.append((index, t, value))
        if index + 1 == LEVELS:
            return
        above = self._levels[index + 1]
        if above.count == 0:
            above.cur = value
        else:
            above.cur = max(above.cur, value)
        above.count += 1
        if above.count == 2:
            self._roll(index + 1, t, above.cur)
            above.count = 0

    def _lift_jumps(self, t: float, used: float) -> None:
        """Raise all that was before a jump to its height, so that no scale takes it for growth."""
        if self._last is None:
            self._anchor = self._block_from = used
            return
        new_block = t - self._block_t >= BASE_SECONDS
        if new_block:
            self._rises = (self._rises[1], max(0.0, self._last - self._block_from))
            self._anchor = self._block_from = self._last
            self._jump_age += 1
        rise = used - self._anchor
        if rise > 0.0 and self._jump_age <= 1:
            self._shift(rise)  # a sample may fall into the middle of a jump
            self._resumed_above += rise
            self._jump_height += rise
        elif rise >= self._jump and rise >= 3.0 * max(self._rises):
            before = self._rises
            if before[1] > 3.0 * before[0]:  # and into its beginning
                rise += before[1]
                self._mark_t = self._marked_before
            self._settle(t)
            self._shift(rise)
            self._anchor = used
            self._jump_age, self._jump_height = 0, rise
            self._resumed_above = used + 0.02
        elif self._jump_age == 2 and rise >= 0.3 * self._jump_height > 0.0:
            self._shift(-self._jump_height)  # a third in a row: it was the start of a ramp
            self._jump_height = self._resumed_above = 0.0
        elif rise <= -self._jump and self._lifted > 0.0:
            self._shift(-min(self._lifted, -rise))

    def _settle(self, t: float) -> None:
        """Let the growth that had ended before a jump be forgotten: what jumped is something else."""
        for level in self._levels:
            if not level.maxima:
                continue
            window = t - level.ends[0]
            if t - self._mark_t > 0.15 * window:
                height = level.maxima[-1]
                level.maxima = deque((height for _ in level.maxima), maxlen=BLOCKS - 1)
                level.cur = height

    def _shift(self, by: float) -> None:
        self._lifted += by
        self._mark += by
        if by > 0.0:
            self._anchor += by
        for level in self._levels:
            level.maxima = deque((m + by for m in level.maxima), maxlen=BLOCKS - 1)
            level.cur += by

    def growths(self, headroom: float) -> list[Growth]:
        """Return what grows now, at every scale, given the share that is left; the finest scale first."""
        fresh = {index for index, _, _ in self.rolled}
        found = []
        t, used = self._levels[0].cur_t, self._levels[0].cur
        if used > self._resumed_above or used < self._resumed_above - 0.1:
            self._resumed_above = 0.0
        else:
            return []
        for index, level in enumerate(self._levels):
            if len(level.maxima) + 1 < FEWEST:
                self._seen[index] = None
                continue
            if index < 2 or index - 2 in fresh or index in fresh:
                self._seen[index] = level.growth(t, used, self._noise)
            growth = self._seen[index]
            if growth is not None and growth.gain > 0.0:
                still = t - self._mark_t
                alive = max(0.0, growth.window_seconds - still) / growth.window_seconds
                found.append(
                    growth._replace(
                        probability=alive * alive * growth.gain / (growth.gain + headroom),
                        eta_seconds=headroom / growth.rate,
                    )
                )
        return found
