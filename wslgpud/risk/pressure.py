"""Memory pressure: how much of the time the machine stalls, with PSI and without it."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from wslgpud.model import Observation

WINDOW_SECONDS = 10.0


class Pressure(NamedTuple):
    """``full`` is the share of the last 10 s lost by all tasks (measured or estimated), 0 to 1."""

    full: float
    measured: bool
    counters_moved: bool


class _Counters(NamedTuple):
    t: float
    full_us: int | None
    stalls: int | None
    scans: int | None
    swap_in: int | None
    faults: int | None
    kills: int | None


def _rate(new: int | None, old: int | None, seconds: float) -> float:
    """Rate of a counter; a counter that fell was reset and says nothing."""
    if new is None or old is None or new < old or seconds <= 0:
        return 0.0
    return (new - old) / seconds


class PressureMeter:
    """Turns counters of successive observations into a :class:`Pressure`."""

    def __init__(self) -> None:
        self._seen: deque[_Counters] = deque(maxlen=128)

    def push(self, observation: Observation) -> Pressure:
        """Add an observation; return the pressure over the last 10 s."""
        memory = observation.psi.get("memory")
        vm, swap = observation.vm, observation.swap
        now = _Counters(
            observation.t,
            memory.full_total_us if memory else None,
            vm.alloc_stalls_total if vm else None,
            vm.direct_scan_pages_total if vm else None,
            swap.in_bytes_total if swap else None,
            vm.major_faults_total if vm else None,
            vm.oom_kills_total if vm else None,
        )
        seen = self._seen
        while len(seen) > 1 and now.t - seen[1].t >= WINDOW_SECONDS:
            seen.popleft()
        old = seen[0] if seen else now
        before = seen[-1] if seen else now
        if not seen or now.t - before.t >= 0.1 or now.t - before.t < 0:
            seen.append(now)
        seconds = now.t - old.t
        moved = (
            any(
                new is not None and past is not None and new > past
                for new, past in zip(now[2:4], before[2:4])
            )
            or _rate(now.full_us, before.full_us, now.t - before.t) > 0.05e6
        )
        if now.full_us is not None and old.full_us is not None:
            # A short look back is divided by the whole window: two bad samples are not ten bad seconds.
            full = _rate(now.full_us, old.full_us, max(seconds, WINDOW_SECONDS / 2)) / 1e6
            return Pressure(min(1.0, full), measured=True, counters_moved=moved)
        if memory is not None and memory.full_avg10 is not None:
            return Pressure(min(1.0, memory.full_avg10 / 100.0), measured=True, counters_moved=moved)
        return Pressure(0.0, measured=False, counters_moved=moved)
