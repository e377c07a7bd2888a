"""Four ways to divide a machine between Windows and WSL, as shares of its resources."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from wslgpud.advise.wslconfig import files
from wslgpud.host import Host
from wslgpud.probes.wsl_config import size
from wslgpud.words import Message, MessageError, say, template

GIB = 1 << 30
#: memory that Windows, a browser and an editor need without swapping
WINDOWS_BYTES, WINDOWS_PROCESSORS = 4 * GIB, 2

IDLE = "general.instanceIdleTimeout"


class Setting(NamedTuple):
    """One line of a preset, with its reason."""

    path: str
    value: str
    why: Message


class Preset(NamedTuple):
    """Shares of the machine's RAM and processors; swap is a share of WSL's memory."""

    purpose: str
    memory_ratio: float
    processors_ratio: float
    swap_ratio: float
    more: tuple[Setting, ...] = ()


_RECLAIM = Setting(
    "experimental.autoMemoryReclaim",
    "dropCache",
    say(
        "an idle machine gives its page cache back to Windows; gradual would also push idle programs to swap "
        "(up to WSL 2.9.4)"
    ),
)
_STAYS = Setting(
    IDLE,
    "-1",
    say("without it Windows stops the distro, with its services and trainings, 15 s after the last terminal closes"),
)
_NO_WINDOWS = Setting(
    "wsl2.guiApplications",
    "false",
    say("WSLg holds some of the card's memory; graphical Linux programs will not start"),
)
#: On the machine used for testing (64 GB, 32 threads): 50, 40, 32, 56 GB; 24, 20, 16, 28 threads.
PRESETS = {
    "training": Preset(template("a big training or build, with an editor in Windows"), 0.78, 0.75, 0.4, (_STAYS,)),
    "inference": Preset(template("a model that serves all day beside other work"), 0.625, 0.625, 0.4, (_STAYS,)),
    "desktop": Preset(template("daily development; Windows comes first"), 0.5, 0.5, 0.5),
    "max": Preset(template("all that Windows can spare, for a night"), 0.875, 0.875, 0.43, (_STAYS, _NO_WINDOWS)),
}


class NoPreset(MessageError):
    """A preset cannot be scaled; the message names the remedy."""


def for_machine(host: Host, name: str, memory: str = "", processors: int = 0) -> list[Setting]:
    """Return a preset's settings for this machine, asking Windows for the size that is not given. Raises NoPreset."""
    if name not in PRESETS:
        raise NoPreset("there is no preset {name}; there are {known}", name=name, known=tuple(PRESETS))
    ram = size(memory.upper()) if memory else None
    if memory and (not ram or ram < GIB):  # 64 alone would mean bytes
        raise NoPreset("--memory {value}: write it like 64GB", value=memory)
    if not ram or not processors:
        asked = files.windows_size(host)
        if asked is None:
            raise NoPreset(say("Windows' size cannot be queried from here: add --memory 64GB --processors 32"))
        ram, processors = ram or asked[0], processors or asked[1]
    containers = None
    with contextlib.suppress(files.NotFound):
        containers = files.containers_bytes(host, ram)
    return settings(PRESETS[name], ram, processors, containers or 0)


def settings(preset: Preset, memory_bytes: int, processors: int, containers_bytes: int = 0) -> list[Setting]:
    """Return a preset's settings for Windows' RAM and logical processors, beside a session of WSL's containers."""
    whole, containers = round(memory_bytes / GIB), round(containers_bytes / GIB)
    spared = max(whole - WINDOWS_BYTES // GIB - containers, whole // (4 if containers else 2))
    memory = max(1, min(round(memory_bytes * preset.memory_ratio / GIB), spared))
    threads = max(1, min(round(processors * preset.processors_ratio), max(processors - WINDOWS_PROCESSORS, 1)))
    swap = max(1, round(memory * preset.swap_ratio))
    of_memory = say(
        "{share_ratio} of {total_bytes}, taken on demand; Windows keeps {rest_bytes}[, of which WSL's containers may "
        "take {containers_bytes}: less with session.memorySize, see 'wslc settings']",
        share_ratio=memory / whole,
        total_bytes=whole * GIB,
        rest_bytes=(whole - memory) * GIB,
        **({"containers_bytes": containers_bytes} if containers else {}),
    )
    of_processors = say(
        "{share_ratio} of {number}; the rest keeps Windows responsive",
        share_ratio=threads / processors,
        number=processors,
    )
    of_swap = say(
        "{share_ratio} of the memory: a peak slows programs instead of killing them", share_ratio=swap / memory
    )
    return [
        Setting("wsl2.memory", f"{memory}GB", of_memory),
        Setting("wsl2.processors", str(threads), of_processors),
        Setting("wsl2.swap", f"{swap}GB", of_swap),
        _RECLAIM,
        *preset.more,
    ]
