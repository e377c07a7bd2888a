"""Four ways to divide a machine between Windows and WSL, as shares of what it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GIB = 1 << 30
#: what Windows itself, a browser and an editor need before they begin to swap
WINDOWS_BYTES, WINDOWS_PROCESSORS = 4 * GIB, 2

RECLAIM = "experimental.autoMemoryReclaim"
_STAYS = {"general.instanceIdleTimeout": "-1"}


@dataclass(frozen=True, slots=True)
class Preset:
    """Shares of the machine's RAM and processors; swap is a share of the memory that WSL gets."""

    name: str
    purpose: str
    memory_ratio: float
    processors_ratio: float
    swap_ratio: float
    more: Mapping[str, str]


#: On the machine they were tried on (64 GB, 32 threads): 50, 40, 32, 56 GB; 24, 20, 16, 28 threads.
PRESETS = {
    preset.name: preset
    for preset in (
        Preset("training", "a big training or build, and an editor in Windows", 0.78, 0.75, 0.4, _STAYS),
        Preset("inference", "a model that serves all day beside other work", 0.625, 0.625, 0.4, _STAYS),
        Preset("desktop", "daily development; Windows comes first", 0.5, 0.5, 0.5, MappingProxyType({})),
        Preset("max", "all that Windows can spare, for a night", 0.875, 0.875, 0.43,
               {**_STAYS, "wsl2.guiApplications": "false"}),
    )
}  # fmt: skip

REASONS = {
    "general.instanceIdleTimeout": "without it Windows stops the distro, with its services and trainings, "
    "15 s after the last terminal closes",
    RECLAIM: "page cache of an idle machine goes back to Windows; gradual would also push idle programs "
    "to swap (up to WSL 2.9.4)",
    "wsl2.guiApplications": "WSLg holds some of the card's memory; graphical Linux programs will not start",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of a preset, and why."""

    path: str
    value: str
    why: str


def settings(preset: Preset, memory_bytes: int, processors: int) -> list[Setting]:
    """Return what a preset means on a machine.

    Args:
        preset: which one.
        memory_bytes: Windows' RAM.
        processors: Windows' logical processors.
    """
    whole = round(memory_bytes / GIB)
    spared = max(whole - WINDOWS_BYTES // GIB, whole // 2)
    memory = max(1, min(round(memory_bytes * preset.memory_ratio / GIB), spared))
    threads = max(
        1, min(round(processors * preset.processors_ratio), max(processors - WINDOWS_PROCESSORS, 1))
    )
    swap = max(1, round(memory * preset.swap_ratio))
    left = f"Windows keeps {whole - memory} GB"
    why = (
        f"{memory / whole:.0%} of {whole} GB, taken on demand; {left}",
        f"{threads / processors:.0%} of {processors}; the rest keeps Windows answering",
        f"{swap / memory:.0%} of the memory: a peak gets slow instead of killed",
    )
    return [
        Setting("wsl2.memory", f"{memory}GB", why[0]),
        Setting("wsl2.processors", str(threads), why[1]),
        Setting("wsl2.swap", f"{swap}GB", why[2]),
        Setting(RECLAIM, "dropCache", REASONS[RECLAIM]),
        *(Setting(path, value, REASONS[path]) for path, value in preset.more.items()),
    ]
