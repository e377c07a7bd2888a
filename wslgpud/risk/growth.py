"""Growth of a resource's use, at every time scale at once.

The used share of a resource is kept as a pyramid: level k holds the last eight blocks of 2**k samples, each by its
maximum (the envelope of use, which removes sawtooth patterns within a block).

Counting samples instead of seconds gives the same picture for one sample every 0.1 s or every minute. The probability
that a growth continues to the end follows from its size so far (Lindy's rule: a growth that has gained G gains another
H with probability G / (G + H) when nothing else is known). The rule has neither bytes nor seconds, so a leak over hours
and one over seconds are judged alike. Peaks that did no harm reduce it: use that was here before and went back will
probably do so again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

# Numbers without a source of their own are tuned on the recordings (README.md): so that every exhaustion in them is
# warned of, and as few others as possible.
MAX_PEAKS = 24
#: A jump is at least this many times the rise in the blocks before it: in a ramp, blocks rise equally.
FLAT = 3.0
#: Rise after a jump (share of the capacity) that shows continued growth.
RESUMED = 0.02
#: Share of a jump whose release shows that the jump is over.
FALLEN = 0.5
#: Blocks for which a jump and its top are remembered: after that it is a plateau.
REMEMBERED = 64
#: Fall below a jump's top that shows that the jump is over.
AFTER = 0.1
#: A rise that leads above the last top by less than this part of itself is back at its height.
ABOVE = 0.5
#: Part of a jump by which the third sample in a row must rise to show that it was the start of a ramp.
RAMP = 0.3


class Shift(NamedTuple):
    """Amount by which to raise the past, so that no time scale takes a jump for growth."""

    by: float
    fresh: bool = False  # a jump begins
    began_before: bool = False  # it began in the block before


NONE = Shift(0.0)


class Jumps:
    """Distinguishes jumps from growth, a sample at a time; blocks hold the samples of about half a second."""

    def __init__(self, least: float) -> None:
        """Take the smallest rise that can be a jump, as a share of the capacity."""
        self._least = least
        self._last: float | None = None
        self._block_from = self._anchor = self._crest = self._resumed_above = 0.0
        self._height = self._lifted = self._tallest = 0.0
        self._rises = (0.0, 0.0)
        self._blocks_since = self._crest_age = REMEMBERED
        self._falling = False

    def update(self, used: float, *, new_block: bool) -> Shift:
        """Take the next sample; return the shift of the past."""
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
            return Shift(rise)  # the sample was taken in the middle of the jump
        if rise >= self._least and rise >= FLAT * max(self._rises):
            if self._crest_age < REMEMBERED and used - self._crest < ABOVE * rise:
                self._crest_age = 0
                return NONE  # back at its previous height: the next tooth of a sawtooth
            began_before = self._rises[1] > FLAT * self._rises[0]
            self._height = self._tallest = rise + (self._rises[1] if began_before else 0.0)
            self._blocks_since = 0
            self._resumed_above = used + RESUMED
            return Shift(self._height, fresh=True, began_before=began_before)
        if self._blocks_since == 2 and rise >= RAMP * self._height > 0.0:
            height, self._height, self._resumed_above = self._height, 0.0, 0.0
            return Shift(-height)  # a third in a row: it was the start of a ramp
        return self._given_back(used)

    def _given_back(self, used: float) -> Shift:
        """Follow the fall of a plateau: the past is lowered with it, sample by sample.

        A top that falls at once was a sawtooth or a copy. It will come again, and its tops count: with the past
        lowered, the next one would be raised again, and a floor rising under a sawtooth that leaps up in one sample and
        falls in three would never be seen.
        """
        fall = self._crest - used
        if self._lifted <= 0.0 or fall <= 0.0 or self._crest_age < REMEMBERED:
            return NONE
        if self._falling or fall >= FALLEN * self._tallest:
            return Shift(-min(self._lifted, fall))
        return NONE

    def standing(self, used: float) -> bool:
        """Return whether nothing has grown since the last jump, so that earlier growth is over."""
        if used > self._resumed_above or used < self._resumed_above - AFTER:
            self._resumed_above = 0.0
            return False
        return True


#: Blocks of a scale: fewer show no steadiness, more see an end too late. And scales, up to eight hours.
BLOCKS, SCALES = 8, 14
#: Samples closer than this share a block, so that ten per second look like two.
BASE_SECONDS = 0.45
#: Rises that make a growth: fewer may be single allocations.
MIN_RISES = 4
#: Above this share one rise fewer is enough: there is no room to wait for another.
NEARLY_FULL = 0.88
#: Rise (share of the capacity) that shows that a growth is alive.
ADVANCE = 0.004
#: Its last three blocks must rise by at least this part of what three do on average.
ALIVE = 0.5
#: Part of the whole gain from which a block's rise counts.
RISE = 0.05
#: Part of the gain that must come from others than the largest rise for a growth to be fully steady.
EVEN = 0.6
#: Part of a scale's time without growth after which that had ended before a jump.
ENDED = 0.15
#: A scale survives a gap in time if it is this many times as long.
SURVIVES = 2.0
#: Peaks of which the usual distance is taken.
PERIOD_PEAKS = 6
#: Part of the way from a peak to the end within which growth beyond it is still like the peak.
NEARBY = 0.15


class Growth(NamedTuple):
    """A growth in progress; ``gain``, ``rate`` and ``height`` are shares of the capacity."""

    window_seconds: float
    gain: float
    rate: float  # per second
    pace: float  # current rate relative to the mean
    height: float  # used share reached
    probability: float = 0.0  # of continuing to the end
    eta_seconds: float = 0.0


class Scale:
    """The last blocks of one time scale: maxima of the used share, and when each block ended."""

    def __init__(self) -> None:
        self.maxima: deque[float] = deque(maxlen=BLOCKS - 1)
        self.ends: deque[float] = deque(maxlen=BLOCKS - 1)
        self.current, self.parts = 0.0, 0  # the block being filled, and the halves it has

    def growth(self, t: float, used: float, noise: float) -> Growth | None:
        """Return the growth seen at this scale, or None where none is alive and steady."""
        maxima, n = self.maxima, len(self.maxima)
        now = max(used, self.current) if self.parts else used
        since, reference = self.ends[0], maxima[0]
        if n >= BLOCKS - 2 and maxima[1] >= reference:
            since, reference = self.ends[1], maxima[1]
        gain, window = now - reference, t - since
        if gain <= noise:
            return None
        if (now - maxima[-3]) * (n + 1) < 3.0 * ALIVE * gain:
            return None
        steadiness = self._steadiness(now, RISE * gain)
        if steadiness <= 0.0:
            return None
        pace = (now - maxima[-2]) * (n + 1) / (2.0 * gain)
        return Growth(window, (gain - noise) * steadiness, gain / window, pace, now)

    def _steadiness(self, now: float, least: float) -> float:
        """Return from 0, for a few leaps, to 1, for many equal rises; rises below ``least`` do not count."""
        total = largest = 0.0
        rises, before = 0, self.maxima[0]
        for value in (*self.maxima, now):
            rise, before = value - before, value
            if rise > 0.0:
                total += rise
                rises += rise > least
                largest = max(largest, rise)
        if rises < MIN_RISES - (now > NEARLY_FULL):
            return 0.0
        return min(1.0, (1.0 - largest / total) / EVEN)

    def raise_by(self, shift: float) -> None:
        """Move the past up (or down)."""
        self.maxima = deque((value + shift for value in self.maxima), self.maxima.maxlen)
        self.current += shift

    def flatten(self) -> None:
        """Forget that anything grew."""
        self.current = self.maxima[-1]
        self.maxima = deque([self.current] * len(self.maxima), self.maxima.maxlen)


class Envelope:
    """The pyramid: ``push`` samples in, ``growths`` out."""

    def __init__(self, noise: float, jump: float) -> None:
        """Take the gain that counts as noise and the smallest rise that counts as a jump, as shares."""
        self._noise = noise
        self._jumps = Jumps(jump)
        self._scales = [Scale() for _ in range(SCALES)]
        self._seen: list[Growth | None] = [None] * SCALES
        self._asked = False
        self._t = self._block_t = self._mark = 0.0
        self._mark_t = self._marked_before = -1.0
        self.rolled: list[tuple[int, float, float]] = []

    @property
    def knows(self) -> bool:
        """Return whether there are enough samples for the finest scale."""
        return len(self._scales[0].maxima) >= MIN_RISES - 1

    @property
    def still_seconds(self) -> float:
        """Seconds since use last exceeded its previous maximum."""
        return self._t - self._mark_t

    def push(self, t: float, used: float) -> None:
        """Add one sample; ``rolled`` then lists (scale, time, maximum) of the blocks it completed."""
        base = self._scales[0]
        new_block = base.parts > 0 and t - self._block_t >= BASE_SECONDS
        shift = self._jumps.update(used, new_block=new_block)
        if shift.fresh:
            if shift.began_before or self._mark_t >= self._block_t:
                self._mark_t = self._marked_before
            self._settle(t)
        if shift.by:
            self._mark += shift.by
            for scale in self._scales:
                scale.raise_by(shift.by)
        if shift.by > 0.0:  # a sample taken during the jump is part of it, and not raised again
            self._mark = min(self._mark, used)
            base.current = min(base.current, used)
        if used > self._mark + ADVANCE:
            self._marked_before, self._mark_t = self._mark_t, t
            self._mark = used
        elif used < self._mark - self._noise:
            self._mark = used
        self.rolled = []
        if new_block:
            self._roll(0, self._t, base.current)
        if new_block or not base.parts:
            self._block_t, base.current = t, used
        else:
            base.current = max(base.current, used)
        base.parts = 1
        self._t = t

    def _roll(self, index: int, t: float, value: float) -> None:
        """Put a completed block into its ring; two form one of the next scale."""
        scale = self._scales[index]
        scale.maxima.append(value)
        scale.ends.append(t)
        self.rolled.append((index, t, value))
        if index + 1 == SCALES:
            return
        above = self._scales[index + 1]
        above.current = max(above.current, value) if above.parts else value
        above.parts += 1
        if above.parts == 2:
            self._roll(index + 1, t, above.current)
            above.parts = 0

    def _settle(self, t: float) -> None:
        """Forget growth that had ended before a jump: the jump has another cause."""
        for scale in self._scales:
            if scale.maxima and t - self._mark_t > ENDED * (t - scale.ends[0]):
                scale.flatten()

    def skip(self, seconds: float) -> None:
        """Clear the scales that are shorter than a gap in time: their past is unknown."""
        for scale in self._scales:
            if scale.maxima and scale.ends[-1] - scale.ends[0] < SURVIVES * seconds:
                scale.maxima.clear()
                scale.ends.clear()
                scale.parts = 0
        self._asked = False

    def growths(self, headroom: float, *, resumed: bool = False) -> list[Growth]:
        """Return the current growth at every scale, given the share left; the finest scale first.

        A coarse scale is evaluated four times per block and its result kept in between. ``resumed`` says that samples
        have come since the last call, so that no earlier result is valid.
        """
        t, used = self._t, self._scales[0].current
        if self._jumps.standing(used):
            return []
        fresh = len(self.rolled) + 2 if self._asked and not resumed else SCALES
        self._asked = True
        for index, scale in enumerate(self._scales[:fresh]):
            enough = len(scale.maxima) >= MIN_RISES - 1
            self._seen[index] = scale.growth(t, used, self._noise) if enough else None
        found = []
        for growth in self._seen:
            if growth is not None:
                # Lindy's rule for its size, and again for its pause if it pauses.
                alive = max(0.0, 1.0 - self.still_seconds / growth.window_seconds)
                likely = alive * alive * growth.gain / (growth.gain + headroom)
                found.append(growth._replace(probability=likely, eta_seconds=headroom / growth.rate))
        return found


class Peaks:
    """The excursions of a used share, found by their turning points (a zigzag of at least ``swing``)."""

    def __init__(self, swing: float, memory_seconds: float) -> None:
        """Take the fall that ends an excursion and how long its peak is remembered."""
        self._swing, self._memory = swing, memory_seconds
        self._peaks: deque[tuple[float, float]] = deque(maxlen=MAX_PEAKS)
        self._high: float | None = None
        self._low = 0.0
        self._rising = True

    def push(self, t: float, used: float) -> None:
        """Add one sample of the used share."""
        if self._high is None:
            self._high = self._low = used
        if self._rising:
            self._high = max(self._high, used)
            if used <= self._high - self._swing:
                self._peaks.append((t, self._high))
                self._rising, self._low = False, used
        else:
            self._low = min(self._low, used)
            if used >= self._low + self._swing:
                self._rising, self._high = True, used
        while self._peaks and t - self._peaks[0][0] > self._memory:
            self._peaks.popleft()

    @property
    def any(self) -> bool:
        """Return whether one is remembered."""
        return bool(self._peaks)

    def clear(self) -> None:
        """Forget all peaks, including the present one, which did harm."""
        self._peaks.clear()
        self._high, self._rising = None, True

    def document(self, t: float) -> list[list[float]]:
        """Return [age in seconds, share] of each peak, to be kept across restarts."""
        return [[round(t - when, 1), round(peak, 4)] for when, peak in self._peaks]

    def recall(self, t: float, peaks: Iterable[tuple[float, float]]) -> None:
        """Take over an earlier run's peaks, and their age in seconds."""
        earlier = sorted((t - age, peak) for age, peak in peaks if age <= self._memory)
        self._peaks = deque([*earlier, *self._peaks], maxlen=MAX_PEAKS)

    def reached(self, share: float, before: float) -> bool:
        """Return whether a peak before a moment was this high."""
        return any(when < before and peak >= share for when, peak in self._peaks)

    @property
    def period_seconds(self) -> float:
        """The usual time from peak to peak; 0 while fewer than two are known."""
        gaps = sorted(b - a for (a, _), (b, _) in pairwise([*self._peaks][-PERIOD_PEAKS:]))
        return gaps[len(gaps) // 2] if gaps else 0.0

    def doubt(self, height: float, since: float, others: float = 0.0) -> float:
        """Return how many excursions reached ``height`` and went back; nearby peaks count in part.

        The last peak after ``since``, the start of a growth, is its own top and does not count. ``others`` is the share
        that ``height`` has beyond the use followed here; a peak that does not fit on top of it counts for nothing.
        """
        peaks = [*self._peaks]
        if peaks and peaks[-1][0] >= since:
            peaks.pop()
        total = 0.0  # a loop: since Python 3.12 sum() rounds differently
        for _, own in peaks:  # from 1 at the peak itself down to 0 beyond ``NEARBY``
            peak = own + others
            if peak <= 1.0:
                total += max(0.0, 1.0 - max(0.0, height - peak) / (NEARBY * (1.0 - peak) + 1e-9))
        return total
