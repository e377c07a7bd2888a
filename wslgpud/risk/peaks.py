"""Peaks that did no harm: what has been here before and came back will probably come back again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise

MOST_PEAKS = 24


class Peaks:
    """The excursions of a used share, found by their turning points (a zigzag of at least ``swing``)."""

    def __init__(self, swing: float, memory_seconds: float) -> None:
        """Take the fall that ends an excursion and how long its peak is remembered."""
        self._swing, self._memory = swing, memory_seconds
        self._peaks: deque[tuple[float, float]] = deque(maxlen=MOST_PEAKS)
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

    def clear(self) -> None:
        """Forget all peaks, the present one too: it did harm."""
        self._peaks.clear()
        self._high, self._rising = None, True

    def document(self, t: float) -> list[list[float]]:
        """Return [age in seconds, share] of each peak, to be kept over a restart."""
        return [[round(t - when, 1), round(peak, 4)] for when, peak in self._peaks]

    def recall(self, t: float, peaks: Iterable[tuple[float, float]]) -> None:
        """Take over peaks of so many seconds ago from an earlier run."""
        earlier = sorted((t - age, peak) for age, peak in peaks if age <= self._memory)
        self._peaks = deque([*earlier, *self._peaks], maxlen=MOST_PEAKS)

    def reached(self, share: float, before: float) -> bool:
        """Tell whether a peak before some moment was this high."""
        return any(when < before and peak >= share for when, peak in self._peaks)

    @property
    def period_seconds(self) -> float:
        """The usual time from peak to peak; 0 while fewer than two are known."""
        gaps = sorted(b - a for (a, _), (b, _) in pairwise([*self._peaks][-6:]))
        return gaps[len(gaps) // 2] if gaps else 0.0

    def doubt(self, height: float, since: float) -> float:
        """Return how many excursions came as far as ``height`` and went back; nearby peaks count in part.

        The last peak after ``since``, when a growth began, is its own top, not one of before.
        """
        peaks = [*self._peaks]
        if peaks and peaks[-1][0] >= since:
            peaks.pop()
        total = 0.0  # by hand: since Python 3.12 sum() rounds otherwise
        for _, peak in peaks:  # from 1 at the peak itself down to 0 at 15 % of the way from there to the end
            total += max(0.0, 1.0 - max(0.0, height - peak) / (0.15 * (1.0 - peak) + 1e-9))
        return total
