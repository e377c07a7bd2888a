"""Scarcity without growth: cards at their ceiling, and the share of time in which the machine stalls.

A full card's next allocation fails, or lands in Windows' RAM.
Windows pages VRAM out instead of refusing allocations, under WSL2 whatever its policy
(https://github.com/microsoft/WSL/issues/11050). Shared memory alone is normal: pinned buffers and the desktop use it as
well, so only its growth while the card is full counts. Where Windows tells what it has moved of each process, that is
the spill itself.

A server that allocates its share at once and stays there is not full and causes no warning: vLLM with
``gpu_memory_utilization=0.97``, JAX, a model loaded by llama.cpp. Its use rises fast, right after the program appeared,
and then hardly varies; no allocation has failed, and nothing was moved into Windows RAM.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from wslgpud.model import GpuSample, Observation, VmState
from wslgpud.risk.growth import ADVANCE
from wslgpud.risk.headroom import Room, gpu_used
from wslgpud.risk.settings import RiskSettings

#: A card with more of its memory in use may spill: WSL2 itself takes 6 to 9 %, which programs never get.
FULL_SHARE = 0.9
#: A card that was full this recently still is: programs free memory between steps and take it again.
DIP_SECONDS = 60.0
#: A server loads and allocates its share within this time.
START_SECONDS = 300.0
#: Rise per second (share of the capacity) of a program that allocates its share: from empty to full in 50 s.
FAST = 0.02
#: Share of the way to the ceiling covered at that speed.
FAST_PART = 0.6
#: More than drivers move on their own, and one chunk of the stress run.
MIN_BYTES = 256 << 20
#: This much of it in RAM is critical: speed was reported to fall to a fiftieth
#: (https://github.com/MakazhanAlpamys/Soup/issues/649).
MANY_BYTES = 2 << 30
#: Or use rose slowly, while a model was read from disk, and took the rest within this time.
ARRIVAL_SECONDS = 3.0
_SAMPLE_SECONDS = 1.0
#: Stalls are counted over this time, as PSI's avg10 does.
WINDOW_SECONDS = 10.0
#: Cost of one direct reclaim and one major fault, fitted to PSI's ``full`` on recorded out-of-memory runs (Linux 6.1,
#: virtual disk). A faster disk makes faults cheaper, so without PSI, pressure is overestimated rather than missed; it
#: counts only while little memory is available.
STALL_SECONDS, FAULT_SECONDS = 0.004, 0.0004
#: Share of reclaimed pages that are read back at once, above which the working set does not fit, and how many must be
#: reclaimed to tell. The measure is Android lmkd's (workingset_refault relative to reclaimed pages), the figures ours.
REFAULT_RATIO, REFAULT_PAGES_PER_SECOND = 0.3, 2000.0


def may_spill(gpu: GpuSample) -> bool:
    """Return whether a card is so full that Windows may move its memory."""
    share = gpu.used_bytes / gpu.total_bytes if gpu.used_bytes is not None and gpu.total_bytes else 0.0
    return max(share, gpu.windows_ratio or 0.0) >= FULL_SHARE


@dataclass(slots=True)
class Spill:
    """Growth of the shared memory of one card since it was full, and what was shared before; in bytes.

    Taken over from an earlier run: a new sample does not show it.
    """

    full_t: float = -math.inf
    before: float | None = None
    grown: float = 0.0

    def update(self, t: float, shared: float, *, full: bool) -> float:
        """Take the shared memory, in bytes; return how much was moved there."""
        # Full at the first sample: that sample is the only baseline.
        least = shared if self.before is None else min(self.before, shared)
        dips = t - self.full_t <= DIP_SECONDS
        self.before = least if full else max(least, shared - self.grown) if dips else shared
        grown = shared - self.before
        if full:
            self.full_t, self.grown = t, grown
        elif not dips:
            self.grown = 0.0
        return grown


class Full(NamedTuple):
    """A full card."""

    seconds: float  # for how long it has been full
    spilled_bytes: int = 0  # moved into Windows RAM
    critical: bool = False  # much of it, for long
    flat_seconds: float = 0.0  # since its use last rose


class _Since:
    """Start of a condition."""

    t = math.inf

    def update(self, t: float, *, holds: bool) -> float:
        """Return for how long it has held; -1 when it does not."""
        self.t = min(self.t, t) if holds else math.inf
        return t - self.t if holds else -1.0


class Fullness:
    """Detects whether a card is full, a sample at a time. Shares are of the capacity."""

    def __init__(self, settings: RiskSettings) -> None:
        self._settings = settings
        self._seen: deque[tuple[float, float]] = deque(maxlen=int(START_SECONDS / _SAMPLE_SECONDS) + 2)
        self._programs: dict[int, float] = {}
        self._reserved = 0.0
        self._spill = Spill()
        self._full_t: float | None = None
        self._top = (0.0, 0.0)
        self._spilling, self._spilling_much, self._dry = _Since(), _Since(), _Since()
        self._reported = False

    def rebase(self, factor: float) -> None:
        """Take a new capacity: multiply the shares of the old one by a factor."""
        self._seen = deque(((t, factor * used) for t, used in self._seen), maxlen=self._seen.maxlen)
        self._reserved *= factor

    def failed(self) -> None:
        """Note that an allocation has failed: this is not a server's share."""
        self._reserved = 0.0
        self._seen.clear()

    def document(self) -> dict[str, Any]:
        """Return the state that is kept across restarts."""
        before = self._spill.before if self._spill.grown else None
        found: dict[str, Any] = {} if before is None else {"shared_before_bytes": int(before)}
        return found | ({"reserved_ratio": round(self._reserved, 4)} if self._reserved else {})

    def recall(self, document: Mapping[str, Any]) -> None:
        """Take over an earlier run's state."""
        self._reserved = document.get("reserved_ratio", self._reserved)
        self._spill.before = document.get("shared_before_bytes", self._spill.before)

    def update(self, t: float, room: Room, *, alarmed: bool = False) -> Full | None:
        """Take a sample; return how full the card is, None where it is not full or the resource is no card.

        ``alarmed`` means that there is a warning already: memory moved at the ceiling then belongs to it.
        """
        gpu = room.gpu
        if gpu is None:
            return None
        used, share = (gpu_used(gpu) or 0) / room.capacity, room.share
        at_once = alarmed and share < self._settings.full_headroom
        moved = self._moved(t, gpu, patience=0.0 if at_once else self._settings.full_seconds)
        full = self._at_ceiling(t, gpu, used, share)
        if self._full_t in (None, t) or used > self._top[1] + ADVANCE:
            self._top = t, used
        flat = t - self._top[0]
        self._programs = {p.pid: self._programs.get(p.pid, t) for p in gpu.processes if p.pid}
        if not self._seen or t - self._seen[-1][0] >= _SAMPLE_SECONDS:
            self._seen.append((t, used))
        if moved is not None:
            self._reserved = 0.0
            return moved._replace(seconds=max(moved.seconds, full or 0.0), flat_seconds=flat)
        return Full(full, flat_seconds=flat) if full is not None and full >= self._settings.full_seconds else None

    def _moved(self, t: float, gpu: GpuSample, *, patience: float) -> Full | None:
        """Return the memory moved into Windows RAM, once it is enough for long enough."""
        grown: float | None = None
        if gpu.shared_bytes is not None:
            grown = self._spill.update(t, float(gpu.shared_bytes), full=may_spill(gpu))
        if gpu.demoted_bytes is not None:  # the spill itself; shared memory also holds pinned buffers
            grown = float(gpu.demoted_bytes)
        if grown is None:
            return None
        s = self._settings
        held = self._spilling.update(t, holds=grown >= (MIN_BYTES / 2 if self._reported else MIN_BYTES))
        much = self._spilling_much.update(t, holds=grown >= MANY_BYTES)
        dry = self._dry.update(t, holds=held < 0.0)
        self._reported = held >= patience or (self._reported and dry < s.recovery_seconds)
        return Full(max(held, 0.0), int(grown), much >= s.recovery_seconds) if self._reported else None

    def _at_ceiling(self, t: float, gpu: GpuSample, used: float, share: float) -> float | None:
        """Return for how long the card has been at its ceiling; None where it is not, or holds a server's share."""
        s = self._settings
        if used < 0.5 * self._reserved:
            self._reserved = 0.0
        if share >= (s.full_headroom if self._full_t is None else s.full_clear_headroom):
            self._full_t = None
            return None
        if self._full_t is None:
            self._full_t = t
            if not self._reserved and self._took_it_at_once(t, gpu, used):
                self._reserved = used
        held = t - self._full_t
        if self._reserved:
            if held <= s.recovery_seconds and share < s.full_headroom:
                self._reserved = max(self._reserved, used)  # CUDA graphs and the last buffers follow
            if used <= self._reserved + s.noise:
                return None
            self._reserved, self._full_t = 0.0, t
            return 0.0
        return held

    def _took_it_at_once(self, t: float, gpu: GpuSample, used: float) -> bool:
        """Return whether a program that has just appeared caused a fast rise."""
        seen = [point for point in self._seen if t - point[0] <= START_SECONDS]
        if not seen:
            return False  # full at the first sample: unknown
        start, base = min(seen, key=lambda point: (point[1], -point[0]))
        path = [point for point in seen if point[0] >= start] + [(t, used)]
        fast = 0.0
        for (t0, before), (t1, after) in pairwise(path):
            # A step within one sample counts, however long ago the previous sample was.
            if after - before >= FAST * min(t1 - t0, 2.0):
                fast += after - before
        recent = [value for when, value in path if t - when <= ARRIVAL_SECONDS]
        at_once = fast >= FAST_PART * (used - base) > 0.0 or used - recent[0] >= self._settings.jump
        appeared = [t - self._programs.get(p.pid, t) <= START_SECONDS for p in gpu.processes if p.pid]
        return at_once and (any(appeared) or not appeared)


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
