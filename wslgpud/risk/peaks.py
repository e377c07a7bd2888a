"""Peaks that did no harm: what has been here before and came back will probably come back again."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

MOST_PEAKS = 24


class Peaks:
    """The excursions of a used share, found by their turning points (a zigzag of at least ``swing``)."""

    def __init__(self, swing: float, memory_seconds: float) -> None:
        """Take the fall that ends an excursion and how long its peak is remembered."""
        self._swing = swing
        self._memory = memory_seconds
        self._peaks: list[tuple[float, float]] = []
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
                del self._peaks[:-MOST_PEAKS]
                self._rising, self._low = False, used
        else:
            self._low = min(self._low, used)
            if used >= self._low + self._swing:
                self._rising, self._high = True, used
        while self._peaks and t - self._peaks[0][0] > self._memory:
            del self._peaks[0]

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
        self._peaks = [*earlier, *self._peaks][-MOST_PEAKS:]

    def reached(self, share: float, before: float) -> bool:
        """Tell whether a peak before some moment was this high."""
        return any(when < before and peak >= share for when, peak in self._peaks)

    @property
    def period_seconds(self) -> float:
        """The usual time from peak to peak; 0 while fewer than two are known."""
        times = [t for t, _ in self._peaks[-6:]]
        gaps = sorted(b - a for a, b in pairwise(times))
        return gaps[len(gaps) // 2] if gaps else 0.0

    def doubt(self, height: float, since: float) -> float:
        """Return how many excursions came about this far and went back; nearby peaks count in part.

        Args:
            height: the used share that a growth has come to.
            since: when it began; the last peak since then is its own top, not one of before.
        """
        peaks = self._peaks[:-1] if self._peaks and self._peaks[-1][0] >= since else self._peaks
        total = 0.0
        for _, peak in peaks:
            if height <= peak:
                total += 1.0
            else:
                total += max(0.0, 1.0 - (height - peak) / (0.15 * (1.0 - peak) + 1e-9))
        return total
