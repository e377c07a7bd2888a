"""How soon the next tick is due."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from wslgpud.config import Sampling

#: window for the fall of headroom, long enough to see past a single large allocation
TREND_SECONDS = 5.0
#: aim at this many samples before the memory is gone at the present rate
SAMPLES_BEFORE_END = 20


class SamplingPace:
    """Chooses the time to the next tick: shorter while memory shrinks fast.

    The idea is earlyoom's (sleep = headroom / fill rate), with the measured rate instead of the maximum, so that a full
    but quiet machine costs no more than an empty one.
    """

    def __init__(self, settings: Sampling) -> None:
        self._settings = settings
        self._history: deque[tuple[float, Mapping[str, int]]] = deque()

    def next_delay(self, mono: float, headroom_bytes: Mapping[str, int]) -> float:
        """Return the seconds until the next tick, given each resource's headroom now."""
        while self._history and self._history[0][0] < mono - TREND_SECONDS:
            self._history.popleft()
        delay = self._settings.interval_seconds
        if self._history:
            then, before = self._history[0]
            for resource, left in headroom_bytes.items():
                fallen = before.get(resource, left) - left
                if fallen > 0:
                    delay = min(delay, left / fallen * (mono - then) / SAMPLES_BEFORE_END)
        self._history.append((mono, headroom_bytes))
        return max(delay, self._settings.fastest_seconds)
