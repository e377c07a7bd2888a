"""Headroom of each resource below its real ceiling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from wslgpud.model import CgroupState, GpuSample, Observation

WSL_VRAM_SHARE = 0.04
WSL_VRAM_BYTES = 512 << 20
"""Under WSL2 allocations fail with about this much still "free" (microsoft/WSL#41176: make_resident gave -12
with 2 GB free; ollama#18201: 0.6 GiB of a 96 GB card never usable). Used until the ceiling is learned."""


class Room(NamedTuple):
    """Headroom and capacity of one resource in bytes."""

    resource: str
    key: str  # identity across samples: of a card its UUID, as cards may swap places
    headroom: int
    capacity: int  # changes when the machine does
    swap: bool = False  # swap is part of it, so a growth gets slower before the end

    @property
    def share(self) -> float:
        """Headroom as a share of the capacity, 0 to 1."""
        return min(1.0, max(0.0, self.headroom / self.capacity))


def ram_room(observation: Observation) -> Room | None:
    """RAM and swap are one resource: the kernel kills when both are gone."""
    ram, swap = observation.ram, observation.swap
    if ram is None or ram.total <= 0:
        return None
    free, more = (swap.free, swap.total) if swap is not None else (0, 0)
    return Room("ram", "ram", max(0, ram.available + free), ram.total + more, more > 0)


def gpu_key(gpu: GpuSample) -> str:
    """Return the key of a card; recordings may lack the UUID."""
    return gpu.uuid or f"gpu{gpu.index}"


def gpu_used(gpu: GpuSample) -> int | None:
    """Return the VRAM in use in bytes, by NVML's own word or from what is free."""
    if gpu.used_bytes is not None or gpu.free_bytes is None or not gpu.total_bytes:
        return gpu.used_bytes
    return gpu.total_bytes - gpu.free_bytes


def gpu_room(gpu: GpuSample, *, wsl: bool, learned_ceiling: int | None = None) -> Room | None:
    """VRAM up to NVML's total less what the driver (under WSL2 Windows too) keeps, or as learned."""
    total, used = gpu.total_bytes, gpu_used(gpu)
    if not total or total < 0 or used is None:
        return None
    ceiling = total - (gpu.reserved_bytes or 0)
    if learned_ceiling is not None:
        ceiling = min(ceiling, learned_ceiling)
    elif wsl:
        ceiling -= max(WSL_VRAM_BYTES if total > 4 * WSL_VRAM_BYTES else 0, int(WSL_VRAM_SHARE * total))
    headroom = ceiling - used
    if gpu.free_bytes is not None:
        headroom = min(headroom, gpu.free_bytes)
    return Room(f"gpu{gpu.index}", gpu_key(gpu), max(0, headroom), ceiling)


def cgroup_room(group: CgroupState, swap_free: int | None) -> Room | None:
    """A limit less what cannot be reclaimed; swap counts only where its own limit is known.

    All file pages are reclaimable, as in the kernel's own MemAvailable (mm/show_mem.c): a group whose page
    cache fills its limit is healthy.
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
    return Room(name, name, max(0, headroom), capacity, capacity > group.limit)


def rooms(observation: Observation, learned_ceilings: Mapping[str, int]) -> Iterator[Room]:
    """Every resource that the observation knows; ceilings in bytes by :func:`gpu_key`."""
    swap_free = observation.swap.free if observation.swap else None
    found = [
        ram_room(observation),
        *(gpu_room(g, wsl=observation.wsl, learned_ceiling=learned_ceilings.get(gpu_key(g))) for g in observation.gpus),
        *(cgroup_room(group, swap_free) for group in observation.cgroups),
    ]
    return (room for room in found if room is not None and room.capacity > 0)
