"""May a stress run begin, and must a running one leave? Pure; ``look.py`` gathers what this needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wslgpud.config import Stress
from wslgpud.model import GpuSample

MIB = 1 << 20
#: "idle" over the settle time: usually below the first, hardly ever above the second
IDLE_MEDIAN, IDLE_P95 = 0.05, 0.20
#: by how much the memory in use may vary meanwhile: a desktop's does by some tens of MiB
STEADY_BYTES = 128 * MIB
#: less free than this share, and a run would tell little about the card
LEAST_FREE_RATIO = 0.60
#: drivers and desktops need a while to find themselves again after the host slept
AFTER_JUMP_SECONDS = 600.0


@dataclass(frozen=True)
class Surroundings:
    """What the gates look at; ``samples`` cover the settle time, oldest first."""

    samples: Sequence[GpuSample]
    holders: Sequence[str] = ()
    on_battery: bool | None = None
    jump_age_seconds: float | None = None
    hung_since_boot: bool = False
    recent_gpu_errors: bool = False


def obstacles(seen: Surroundings, settings: Stress) -> list[str]:
    """Return why a run must not begin now; nothing when it may."""
    found: list[str] = []
    if seen.hung_since_boot:
        found.append("the worker of an earlier run hangs in the driver: restart WSL or the machine first")
    if seen.recent_gpu_errors:
        found.append("the kernel has just reported errors of the GPU's driver")
    if seen.holders:
        found.append(f"programs use the GPU: {', '.join(sorted(set(seen.holders))[:5])}")
    if seen.on_battery:
        found.append("the machine runs on battery")
    if seen.jump_age_seconds is not None and seen.jump_age_seconds < AFTER_JUMP_SECONDS:
        found.append(f"the machine woke up only {seen.jump_age_seconds:.0f} s ago")
    return found + _of_card(seen.samples, settings)


def _of_card(samples: Sequence[GpuSample], settings: Stress) -> list[str]:
    if not samples:
        return ["the GPU does not answer"]
    found: list[str] = []
    last = samples[-1]
    busy = sorted(s.utilization_ratio for s in samples if s.utilization_ratio is not None)
    if busy:
        middle, high = busy[len(busy) // 2], busy[min(len(busy) - 1, int(0.95 * len(busy)))]
        if middle >= IDLE_MEDIAN or high >= IDLE_P95:
            found.append(f"the GPU is busy ({high:.0%} in the last {settings.settle_seconds:.0f} s)")
    used = [s.used_bytes for s in samples if s.used_bytes is not None]
    if not used:
        found.append("the driver does not tell how much memory is in use")
    elif max(used) - min(used) > STEADY_BYTES:
        found.append(f"the memory in use varies by {(max(used) - min(used)) // MIB} MiB")
    if last.free_bytes is not None and last.total_bytes:
        free = last.free_bytes / last.total_bytes
        if free < LEAST_FREE_RATIO:
            found.append(f"only {free:.0%} of the memory are free")
    celsius = last.temperature_celsius
    if celsius is not None and celsius > settings.max_celsius:
        found.append(f"the GPU is hot ({celsius:.0f} °C)")
    return found


@dataclass(frozen=True)
class Watched:
    """What is looked at ten times a second while a run goes on.

    ``waiting``: somebody waits for the lock file. ``gpu_errors``: new errors of the driver in the kernel log.
    """

    holders: Sequence[str] = ()
    waiting: bool = False
    gpu_errors: bool = False
    silent_seconds: float = 0.0


#: Before a guest died of a full card, NVML was silent for 33 s (microsoft/WSL#40732).
SILENT_SECONDS = 10.0


def reason_to_leave(now: Watched, before: Sequence[str]) -> str:
    """Return why a running run must end, empty when it may go on.

    ``before`` are the programs that held the GPU when it began.
    """
    new = [holder for holder in now.holders if holder not in before]
    if now.waiting:
        return "a program waits for the GPU's lock file"
    if new:
        return f"{new[0]} wants the GPU"
    if now.gpu_errors:
        return "the kernel reports errors of the GPU's driver"
    if now.silent_seconds > SILENT_SECONDS:
        return f"the driver has not answered for {now.silent_seconds:.0f} s"
    return ""
