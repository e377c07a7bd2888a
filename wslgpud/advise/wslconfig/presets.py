"""Four ways to divide a machine between Windows and WSL, as shares of what it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wslgpud.words import Message, say, template

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
        Preset(
            "training",
            template("a big training or build, with an editor in Windows"),
            0.78, 0.75, 0.4, _STAYS,
        ),
        Preset(
            "inference",
            template("a model that serves all day beside other work"),
            0.625, 0.625, 0.4, _STAYS,
        ),
        Preset(
            "desktop",
            template("daily development; Windows comes first"),
            0.5, 0.5, 0.5, MappingProxyType({}),
        ),
        Preset(
            "max",
            template("all that Windows can spare, for a night"),
            0.875, 0.875, 0.43, {**_STAYS, "wsl2.guiApplications": "false"},
        ),
    )
}  # fmt: skip

_REASONS = {
    "general.instanceIdleTimeout": template(
        "without it Windows stops the distro, with its services and trainings, 15 s after the last terminal "
        "closes"
    ),
    RECLAIM: template(
        "an idle machine gives its page cache back to Windows; gradual would also push idle programs to swap "
        "(up to WSL 2.9.4)"
    ),
    "wsl2.guiApplications": template(
        "WSLg holds some of the card's memory; graphical Linux programs will not start"
    ),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of a preset, and why."""

    path: str
    value: str
    why: Message


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
    return [
        Setting(
            "wsl2.memory",
            f"{memory}GB",
            say(
                "{share_ratio} of {total_bytes}, taken on demand; Windows keeps {rest_bytes}",
                share_ratio=memory / whole,
                total_bytes=whole * GIB,
                rest_bytes=(whole - memory) * GIB,
            ),
        ),
        Setting(
            "wsl2.processors",
            str(threads),
            say(
                "{share_ratio} of {number}; the rest keeps Windows responsive",
                share_ratio=threads / processors,
                number=processors,
            ),
        ),
        Setting(
            "wsl2.swap",
            f"{swap}GB",
            say("{share_ratio} of the memory: a peak gets slow instead of killed", share_ratio=swap / memory),
        ),
        Setting(RECLAIM, "dropCache", Message(_REASONS[RECLAIM])),
        *(Setting(path, value, Message(_REASONS[path])) for path, value in preset.more.items()),
    ]
