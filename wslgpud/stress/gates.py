"""Gates: may a stress run begin, and must a running one leave? Pure; ``conditions.py`` gathers the facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wslgpud.config import Stress
from wslgpud.model import GpuSample
from wslgpud.words import Message, MessageLike, say

MIB = 1 << 20
#: utilization that counts as idle over the settle time: usually below the first, hardly ever above the second
IDLE_MEDIAN, IDLE_P95 = 0.05, 0.20
#: allowed variation of used memory meanwhile: a desktop's varies by some tens of MiB
STEADY_BYTES = 128 * MIB
#: with less free than this share, a run would reveal little about the card
MIN_FREE_RATIO = 0.60
#: drivers and desktops need a while to recover after the host slept
AFTER_JUMP_SECONDS = 600.0


@dataclass(frozen=True)
class Surroundings:
    """The state of the machine before a run; ``samples`` cover the settle time, oldest first."""

    samples: Sequence[GpuSample]
    holders: Sequence[str] = ()
    on_battery: bool | None = None
    jump_age_seconds: float | None = None
    hung_since_boot: bool = False
    recent_gpu_errors: bool = False


def obstacles(seen: Surroundings, settings: Stress) -> Iterator[Message]:
    """Yield the reasons against starting a run now; none if it may start."""
    if seen.hung_since_boot:
        yield say("an earlier run's worker still hangs in the driver: restart WSL or the machine")
    if seen.recent_gpu_errors:
        yield say("the kernel has just reported errors of the GPU driver")
    if seen.holders:
        yield say("programs are using the GPU: {programs}", programs=tuple(sorted(set(seen.holders))[:5]))
    if seen.on_battery:
        yield say("the machine is running on battery")
    if seen.jump_age_seconds is not None and seen.jump_age_seconds < AFTER_JUMP_SECONDS:
        yield say("the machine woke up only {awake_seconds} ago", awake_seconds=seen.jump_age_seconds)
    yield from _of_card(seen.samples, settings) if seen.samples else [say("the GPU does not answer")]


def _of_card(samples: Sequence[GpuSample], settings: Stress) -> Iterator[Message]:
    last = samples[-1]
    if busy := sorted(s.utilization_ratio for s in samples if s.utilization_ratio is not None):
        middle, high = busy[len(busy) // 2], busy[int(0.95 * len(busy))]
        if middle >= IDLE_MEDIAN or high >= IDLE_P95:
            facts = {"busy_ratio": high, "past_seconds": settings.settle_seconds}
            yield say("the GPU is busy: {busy_ratio} in the last {past_seconds}", **facts)
    used = [s.used_bytes for s in samples if s.used_bytes is not None]
    if not used:
        yield say("the driver does not report how much memory is in use")
    elif (varied := max(used) - min(used)) > STEADY_BYTES:
        yield say("memory in use varies by {varied_bytes}", varied_bytes=varied)
    if last.free_bytes is not None and last.total_bytes:
        free = last.free_bytes / last.total_bytes
        if free < MIN_FREE_RATIO:
            yield say("only {free_ratio} of the memory is free", free_ratio=free)
    celsius = last.temperature_celsius
    if celsius is not None and celsius > settings.max_celsius:
        yield say("the GPU is hot: {celsius} °C", celsius=round(celsius))


#: Before a guest died of a full card, NVML was silent for 33 s (microsoft/WSL#40732).
SILENT_SECONDS = 10.0


def reason_to_leave(
    holders: Sequence[str] = (), *, waiting: bool = False, gpu_errors: bool = False, silent_seconds: float = 0.0
) -> MessageLike:
    """Return why a run must end; empty when it may continue.

    ``holders`` use the GPU (none did at the start), ``waiting``: a program waits for the lock file, ``gpu_errors``: the
    kernel log has new errors of the driver.
    """
    if waiting:
        return say("a program is waiting for the GPU's lock file")
    if holders:
        return say("{program} wants the GPU", program=holders[0])
    if gpu_errors:
        return say("the kernel reports errors of the GPU driver")
    if silent_seconds > SILENT_SECONDS:
        return say("the driver has not answered for {silent_seconds}", silent_seconds=silent_seconds)
    return ""
