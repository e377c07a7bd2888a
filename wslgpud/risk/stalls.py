"""Memory pressure: the share of time in which the machine stalls, with PSI and without it."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from wslgpud.model import Observation, VmState

WINDOW_SECONDS = 10.0
STALL_SECONDS = 0.004
#: Cost of one direct reclaim and one major fault, fitted to PSI's ``full`` on recorded out-of-memory runs (Linux 6.1,
#: virtual disk). A faster disk makes faults cheaper, so without PSI, pressure is overestimated rather than missed; it
#: counts only while little memory is available.
FAULT_SECONDS = 0.0004
REFAULT_RATIO = 0.3
#: Share of reclaimed pages that are read back at once, above which the working set does not fit. The measure is Android
#: lmkd's (workingset_refault relative to reclaimed pages), the figure is ours.
REFAULT_PAGES_PER_SECOND = 2000.0


class Pressure(NamedTuple):
    """``full`` is the share of the last 10 s lost by all tasks, 0 to 1; ``stalled`` is about the last gap."""

    full: float = 0.0
    stalled: bool = False


class _Counters(NamedTuple):
    t: float
    full_us: int | None
    vm: VmState

    def rate(self, name: str, old: _Counters, seconds: float) -> float:
        """Rate of a counter; 0 where unknown or reset."""
        new, before = (self.full_us, old.full_us) if name == "full_us" else (getattr(c.vm, name) for c in (self, old))
        if new is None or before is None or new < before or seconds <= 0:
            return 0.0
        return float((new - before) / seconds)


class PressureMeter:
    """Turns the counters of successive observations into a :class:`Pressure`."""

    def __init__(self) -> None:
        self._seen: deque[_Counters] = deque(maxlen=64)

    def push(self, observation: Observation, *, wanted: bool = True) -> Pressure:
        """Add an observation; return the pressure over the last 10 s, none where it is not ``wanted``."""
        seen, memory = self._seen, observation.psi.get("memory")
        if observation.gap_expected:
            seen.clear()
        if memory is None and observation.vm is None:
            return Pressure()  # no counters: the next ones are compared with the last
        now = _Counters(observation.t, memory.full_total_us if memory else None, observation.vm or VmState())
        while len(seen) > 1 and now.t - seen[1].t >= WINDOW_SECONDS:
            seen.popleft()
        if not seen:
            seen.append(now)
            return Pressure()
        old, before = seen[0], seen[-1]
        last = now.t - before.t
        if last >= WINDOW_SECONDS / 50:
            seen.append(now)
        if not wanted:
            return Pressure()
        # A window of a second is divided by several: one bad sample is not ten bad seconds.
        seconds = max(now.t - old.t, WINDOW_SECONDS / 2)
        stalled = now.rate("full_us", before, last) > 0.1e6 or (
            now.full_us is None
            and any(now.rate(name, before, last) > 0.0 for name in ("alloc_stalls_total", "direct_scan_pages_total"))
        )
        if now.full_us is not None and old.full_us is not None:
            return Pressure(min(1.0, now.rate("full_us", old, seconds) / 1e6), stalled)
        if memory is not None and memory.full_avg10 is not None:
            return Pressure(min(1.0, memory.full_avg10 / 100.0), stalled)
        full = now.rate("alloc_stalls_total", old, seconds) * STALL_SECONDS
        full += now.rate("major_faults_total", old, seconds) * FAULT_SECONDS
        stolen = now.rate("steal_pages_total", old, seconds)
        refaulted = now.rate("refault_pages_total", old, seconds)
        if stolen >= REFAULT_PAGES_PER_SECOND and refaulted >= REFAULT_RATIO * stolen:
            full = max(full, REFAULT_RATIO)
        return Pressure(min(1.0, full), stalled)
