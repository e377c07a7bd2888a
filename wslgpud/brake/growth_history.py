"""Memory of each process at earlier scans, so that growth is known at once when a job has to be paused."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from wslgpud.brake.policy import resource_kind
from wslgpud.brake.process_tree import ProcessKey, ProcessTree, ScannedProcess
from wslgpud.model import Forecast, Level

#: time between two scans: while memory is shrinking, and once half of it is used
GROWING_SECONDS, HALF_FULL_SECONDS = 2.0, 15.0
#: scans kept; longest and shortest window over which growth is measured
MAX_SCANS, MAX_SECONDS, MIN_SECONDS = 40, 60.0, 3.0


class Baseline(NamedTuple):
    """A scan at time ``t`` (monotonic): memory of each process without and with shared memory, headroom by resource."""

    t: float
    own_bytes: Mapping[ProcessKey, int]
    with_shared_bytes: Mapping[ProcessKey, int]
    left_bytes: Mapping[str, int]


class GrowthHistory:
    """The most recent scans."""

    def __init__(self) -> None:
        self._scans: deque[Baseline] = deque(maxlen=MAX_SCANS)

    def is_due(self, t: float, now: Mapping[str, Forecast]) -> bool:
        """Return whether it is time for a scan."""
        watched = [f for name, f in now.items() if resource_kind(name) != "gpu" and f.capacity_bytes > 0]
        growing = any(f.level >= Level.INFO for f in watched)
        half_full = any(f.headroom_bytes < f.capacity_bytes / 2 for f in watched)
        seconds = GROWING_SECONDS if growing else HALF_FULL_SECONDS
        return (growing or half_full) and (not self._scans or t - self._scans[-1].t >= seconds)

    def add(self, t: float, processes: Collection[ScannedProcess], now: Mapping[str, Forecast]) -> None:
        own = {process.key: process.memory_bytes for process in processes}
        shared = {process.key: process.memory_bytes + process.shared_bytes for process in processes}
        self._scans.append(Baseline(t, own, shared, {name: f.headroom_bytes for name, f in now.items()}))

    def clear(self) -> None:
        self._scans.clear()

    def before(self, t: float, forecast: Forecast, longest_seconds: float = MAX_SECONDS) -> Baseline | None:
        """Return the scan to measure growth against: the last from before the forecast's window, else the oldest."""
        window = min(longest_seconds, window_seconds(forecast))
        known = [scanned for scanned in self._scans if forecast.resource in scanned.left_bytes]
        return next((scanned for scanned in reversed(known) if t - scanned.t >= window), known[0] if known else None)


def window_seconds(forecast: Forecast) -> float:
    """Return the time over which growth is measured: the forecast's window, within limits."""
    return min(MAX_SECONDS, max(MIN_SECONDS, forecast.window_seconds or MIN_SECONDS))


def own_tree(processes: Iterable[ScannedProcess], before: Baseline, ours: Collection[int]) -> ProcessTree:
    """Return the process tree with each process's private memory."""
    return ProcessTree(processes, before.own_bytes, ours)


def shared_tree(processes: Iterable[ScannedProcess], before: Baseline, ours: Collection[int]) -> ProcessTree:
    """Return the process tree with shared memory counted in full for every process that maps it."""
    return ProcessTree((process.with_shared() for process in processes), before.with_shared_bytes, ours)
