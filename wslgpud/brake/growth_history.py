"""What each process held at earlier scans: so it is known who has grown at the moment when that is asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from wslgpud.brake.policy import resource_kind
from wslgpud.brake.process_tree import ProcessKey, ProcessTree, ScannedProcess
from wslgpud.model import Forecast, Level

#: time between two scans: while something grows, and once half of the memory is gone
GROWING_SECONDS, HALF_FULL_SECONDS = 2.0, 15.0
#: scans that are kept; growth is asked for over at most so long, and over what there is where that is less
MOST_SCANS, LONGEST_SECONDS, SHORTEST_SECONDS = 40, 60.0, 3.0


class Baseline(NamedTuple):
    """What each process held at a moment, alone and with what it shares, and what was left of each resource."""

    t: float
    own_bytes: Mapping[ProcessKey, int]
    with_shared_bytes: Mapping[ProcessKey, int]
    left_bytes: Mapping[str, int]


class GrowthHistory:
    """The last scans."""

    def __init__(self) -> None:
        self._scans: deque[Baseline] = deque(maxlen=MOST_SCANS)

    def is_due(self, t: float, now: Mapping[str, Forecast]) -> bool:
        """Tell whether it is time for a scan."""
        watched = [f for name, f in now.items() if resource_kind(name) != "gpu" and f.capacity_bytes > 0]
        growing = any(f.level >= Level.INFO for f in watched)
        half_full = any(f.headroom_bytes < f.capacity_bytes / 2 for f in watched)
        seconds = GROWING_SECONDS if growing else HALF_FULL_SECONDS
        return (growing or half_full) and (not self._scans or t - self._scans[-1].t >= seconds)

    def add(self, t: float, processes: Collection[ScannedProcess], now: Mapping[str, Forecast]) -> None:
        own = {one.key: one.memory_bytes for one in processes}
        shared = {one.key: one.memory_bytes + one.shared_bytes for one in processes}
        self._scans.append(Baseline(t, own, shared, {name: f.headroom_bytes for name, f in now.items()}))

    def clear(self) -> None:
        self._scans.clear()

    def before(self, t: float, forecast: Forecast, longest_seconds: float = LONGEST_SECONDS) -> Baseline | None:
        """Return the scan from which on growth is asked for: that at which it began, if there is one of then."""
        window = min(longest_seconds, max(SHORTEST_SECONDS, forecast.window_seconds or 0.0))
        known = [one for one in self._scans if forecast.resource in one.left_bytes]
        return next((one for one in reversed(known) if t - one.t >= window), known[0] if known else None)


def own_tree(processes: Iterable[ScannedProcess], before: Baseline, ours: Collection[int]) -> ProcessTree:
    """Return the tree of processes with their own memory."""
    return ProcessTree(processes, before.own_bytes, ours)


def shared_tree(processes: Iterable[ScannedProcess], before: Baseline, ours: Collection[int]) -> ProcessTree:
    """Return the tree of processes with what they share counted for each."""
    return ProcessTree((one.with_shared() for one in processes), before.with_shared_bytes, ours)
