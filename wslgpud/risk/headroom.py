"""Headroom of each resource below its real ceiling: a card's is learned from failed allocations."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from wslgpud.model import CgroupState, GpuSample, Observation
from wslgpud.risk.settings import RiskSettings

WSL_VRAM_SHARE = 0.04
#: Under WSL2 allocations fail with about this much still "free" (microsoft/WSL#41176: make_resident gave -12 with 2 GB
#: free; ollama#18201: 0.6 GiB of a 96 GB card never usable). Used until the ceiling is learned.
WSL_VRAM_BYTES = 512 << 20
#: The resource's name.
WINDOWS = "windows"
#: After this long, a smaller total counts as the machine's size.
TAKEN_SECONDS = 600.0
TREND_SECONDS = 60.0
#: A program that ran out of memory has ended, or freed it, within this time.
FALL_SECONDS = 10.0

#: How a card's ceiling is known: "probable" where the failure itself was not seen.
Certainty = Literal["", "seen", "probable"]


class Room(NamedTuple):
    """Headroom and capacity of one resource in bytes."""

    resource: str
    key: str  # identity across samples: a card's UUID, as indexes may change
    headroom: int
    capacity: int  # may change at run time
    swap: bool = False  # includes swap, so growth slows down before the end
    gpu: GpuSample | None = None
    limit_hits: int | None = None  # how often a cgroup hit its limit
    swap_free: int | None = None  # bytes of the headroom that are swap
    memory_limit: int | None = None  # of a cgroup, without its swap

    @property
    def share(self) -> float:
        """Headroom as a share of the capacity, 0 to 1."""
        return min(1.0, max(0.0, self.headroom / self.capacity))


class BalloonedMemory:
    """RAM that a host has taken back from its virtual machine (balloon): counts as in use for some minutes.

    Each piece shrinks the machine's RAM, and growth under one capacity says nothing under another: without this, such a
    loss would never be seen to continue.
    """

    def __init__(self) -> None:
        self._most = self._total = 0
        self._changed_t = -math.inf

    def total(self, observation: Observation) -> int:
        """Return the machine's RAM plus the RAM taken back in the last minutes; 0 where unknown."""
        ram, t = observation.ram, observation.t
        if ram is None:
            return self._most
        if ram.total != self._total:
            self._total, self._changed_t = ram.total, t
        if ram.total > self._most or t - self._changed_t > TAKEN_SECONDS:
            self._most = ram.total
        return self._most


def ram_room(observation: Observation, total: int = 0) -> Room | None:
    """RAM and swap are one resource: the kernel kills when both are used up.

    ``total`` includes RAM taken back by a host. What compression may still free is room, but no capacity: it changes
    with what is compressed.
    """
    ram, swap = observation.ram, observation.swap
    if ram is None or ram.total <= 0:
        return None
    free, more = (swap.free, swap.total) if swap is not None else (0, 0)
    capacity = max(total, ram.total) + more
    headroom = max(0, ram.available + free + (ram.compressible or 0))
    return Room("ram", "ram", min(headroom, capacity), capacity, more > 0, swap_free=free if more else None)


def windows_room(observation: Observation) -> Room | None:
    """Return Windows' RAM; its page file slows growth down near the end."""
    windows = observation.windows
    return None if windows is None else Room(WINDOWS, WINDOWS, max(0, windows.available), windows.total, swap=True)


def gpu_key(gpu: GpuSample) -> str:
    """Return a card's key; recordings may lack the UUID."""
    return gpu.uuid or f"gpu{gpu.index}"


def gpu_used(gpu: GpuSample) -> int | None:
    """Return the VRAM in use in bytes, as NVML reports it or derived from the free memory."""
    if gpu.used_bytes is not None or gpu.free_bytes is None or not gpu.total_bytes:
        return gpu.used_bytes
    return gpu.total_bytes - gpu.free_bytes


def gpu_room(gpu: GpuSample, *, wsl: bool, learned_ceiling: int | None = None) -> Room | None:
    """VRAM up to NVML's total minus the reserve of the driver; under WSL2 up to Windows' budget, if known, or reserve.

    A learned ceiling takes precedence over both.
    """
    total, used = gpu.total_bytes, gpu_used(gpu)
    if total is None or total <= 0 or used is None:
        return None
    ceiling = total - (gpu.reserved_bytes or 0)
    if learned_ceiling is not None:
        ceiling = min(ceiling, learned_ceiling)
    elif gpu.ceiling_bytes is not None:
        ceiling = min(ceiling, gpu.ceiling_bytes)
    elif wsl:
        ceiling -= max(WSL_VRAM_BYTES if total > 4 * WSL_VRAM_BYTES else 0, int(WSL_VRAM_SHARE * total))
    headroom = ceiling - used
    if gpu.free_bytes is not None:
        headroom = min(headroom, gpu.free_bytes)
    return Room(f"gpu{gpu.index}", gpu_key(gpu), max(0, headroom), ceiling, gpu=gpu)


def cgroup_room(group: CgroupState, swap_free: int | None) -> Room | None:
    """A limit minus unreclaimable memory; swap counts only where its own limit is known.

    All file pages are reclaimable, as in the kernel's own MemAvailable (mm/show_mem.c): a group whose page cache fills
    its limit is healthy.
    """
    if group.limit <= 0:
        return None
    reclaimable = (group.inactive_file or 0) + (group.active_file or 0) + (group.slab_reclaimable or 0)
    headroom = group.limit - max(0, group.current - reclaimable)
    capacity = group.limit
    if group.swap_limit:
        room = max(0, group.swap_limit - (group.swap_current or 0))
        headroom += room if swap_free is None else min(room, swap_free)
        capacity += group.swap_limit
    name = f"cgroup:{group.path}"
    found = Room(name, name, max(0, headroom), capacity, swap=capacity > group.limit)
    return found._replace(limit_hits=group.max_events_total, memory_limit=group.limit)


def rooms(observation: Observation, learned_ceilings: Mapping[str, int], ram_total: int = 0) -> Iterator[Room]:
    """Every resource that is known; ceilings in bytes by :func:`gpu_key`, ``ram_total`` less ballooned memory."""
    swap_free = observation.swap.free if observation.swap else None
    found = [
        ram_room(observation, ram_total),
        *(gpu_room(g, wsl=observation.wsl, learned_ceiling=learned_ceilings.get(gpu_key(g))) for g in observation.gpus),
        windows_room(observation),
        *(cgroup_room(group, swap_free) for group in observation.cgroups),
    ]
    return (room for room in found if room is not None and room.capacity > 0)


class Failure(NamedTuple):
    """An allocation that has probably failed: ``program`` ended, or freed memory, with the card full."""

    resource: str
    uuid: str
    used_bytes: int
    program: str


@dataclass(slots=True)
class _Card:
    """The last minute of a card: (time, used bytes), when it was full, and its programs with their names."""

    full_t: float = -math.inf
    seen: deque[tuple[float, int]] = field(default_factory=deque)
    programs: Mapping[int, str] = field(default_factory=dict)
    gone: tuple[float, str] | None = None


class Ceilings:
    """The learned ceiling of each card by key: ``bytes_by_key`` is the most it has ever allocated."""

    def __init__(self, settings: RiskSettings) -> None:
        self._settings = settings
        self.bytes_by_key: dict[str, int] = {}
        self._certainty: dict[str, Certainty] = {}
        self._cards: dict[str, _Card] = {}

    def certainty(self, key: str) -> Certainty:
        """Return how a card's ceiling is known: "" where it is not learned."""
        return self._certainty.get(key, "")

    def failed(self, key: str, used: int, total: int) -> None:
        """Learn from an allocation that failed with this much in use."""
        if used >= (1.0 - self._settings.learn_ceiling_below) * total:
            self.bytes_by_key[key], self._certainty[key] = used, "seen"

    def update(self, t: float, gpu: GpuSample, limit: int, *, usual: bool) -> Failure | None:
        """Take a sample; drop a ceiling that was exceeded after all; return an allocation that has failed.

        On native Linux nothing reports a CUDA out-of-memory error. Its visible traces: use grows until next to nothing
        is left, and within seconds a program on the card ends and much of it is free again. Where the driver shows no
        programs, the first fall is enough: a repeated one is a sawtooth. ``limit`` is the usable size in bytes, learned
        or assumed; ``usual`` says that use has been this high before and fell again without harm.
        """
        key, used = gpu_key(gpu), gpu_used(gpu)
        if used is None:
            return None
        known = self.bytes_by_key.get(key)
        if known is not None and used > known:
            del self.bytes_by_key[key], self._certainty[key]
        card = self._cards.setdefault(key, _Card())
        programs = {process.pid: process.name for process in gpu.processes if process.pid}
        ended = [name for pid, name in card.programs.items() if pid not in programs]
        if ended:
            card.gone = (t, ended[0])
        card.programs = programs
        card.seen.append((t, used))
        while t - card.seen[0][0] > TREND_SECONDS:
            card.seen.popleft()
        s = self._settings
        if used >= (1.0 - s.ceiling_reached) * limit:
            card.full_t = t
        if t - card.full_t > FALL_SECONDS:
            return None
        top = max(value for when, value in card.seen if t - when <= FALL_SECONDS)
        if top - used < s.ceiling_fall * limit or top - card.seen[0][1] < s.noise * limit:
            return None
        gone = card.gone[1] if card.gone is not None and t - card.gone[0] <= FALL_SECONDS else ""
        if not gone and (usual or programs or known is not None):
            return None
        self._cards[key] = _Card(programs=programs)
        self.bytes_by_key.setdefault(key, top)
        self._certainty.setdefault(key, "probable")
        return Failure(f"gpu{gpu.index}", gpu.uuid, top, gone)

    def document(self, key: str) -> dict[str, Any]:
        """Return a card's ceiling, to be kept across restarts."""
        used = self.bytes_by_key.get(key)
        return {} if used is None else {"ceiling_bytes": used, "ceiling": self._certainty[key]}

    def recall(self, key: str, document: Mapping[str, Any]) -> None:
        """Take over an earlier run's ceiling."""
        if "ceiling_bytes" in document:
            self.bytes_by_key[key], self._certainty[key] = document["ceiling_bytes"], document["ceiling"]
