"""Compares each setting of a .wslconfig with the running virtual machine."""

from __future__ import annotations

import contextlib
import re
from typing import Literal, NamedTuple

from wslgpud.host import Host, NoData, SourceError
from wslgpud.probes.wsl_config import WSLCONFIG, Parsed, Value, WslKey
from wslgpud.sources.disk import mounts
from wslgpud.sources.memory import meminfo
from wslgpud.words.units import size

#: The kernel keeps page tables, its own code and a bit per page: measured 0.7 to 3 % of memory=44GB to 50GB
#: (microsoft/WSL#10011: 44142 MiB of 45056), and some 100 MB on small machines.
_KERNEL_RATIO, _KERNEL_BYTES = 0.035, 160 << 20
_UNITS = (("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10), ("B", 1))
_SWAP_SLACK_BYTES = 1 << 20  # its header
_MEMORY = {"wsl2.memory": "MemTotal", "wsl2.swap": "SwapTotal"}

Match = Literal["in force", "waiting", "default", "not visible"]
Fact = int | bool | str


class SettingRow(NamedTuple):
    """One setting: the value in the file (None: not set) and in the machine (None: not visible)."""

    key: WslKey
    wanted: Value | None
    has: Fact | None
    match: Match


def rows(parsed: Parsed, host: Host) -> list[SettingRow]:
    """Return a row for every key that is set in the file or visible from inside."""
    seen = facts(host)
    found = []
    for key in WSLCONFIG.keys:
        wanted, has = parsed.get(key.path), seen.get(key.path)
        if wanted is None and has is None:
            continue
        match: Match = "default" if wanted is None else "not visible"
        if wanted is not None and has is not None:
            match = "in force" if fits(key.path, wanted, has) else "waiting"
        found.append(SettingRow(key, wanted, has, match))
    return found


def fits(path: str, wanted: Value, has: Fact) -> bool:
    """Return whether the machine's value matches the file's.

    WSL takes 0 for all processors and the usual share of the memory: ``Config::Initialize``, see check.py.
    """
    if path == "wsl2.memory":
        return not wanted or int(wanted) * (1 - _KERNEL_RATIO) - _KERNEL_BYTES <= int(has) <= int(wanted)
    if path == "wsl2.swap":
        return abs(int(wanted) - int(has)) <= _SWAP_SLACK_BYTES
    if path == "wsl2.kernelCommandLine":
        return set(str(wanted).split()) <= set(str(has).split())
    if path == "wsl2.networkingMode":
        one, other = (str(mode).lower().replace("virtioproxy", "consomme") for mode in (wanted, has))
        return one == other
    if path == "wsl2.nestedVirtualization":
        return bool(wanted) or not has  # true without support by the processor is no mistake
    return wanted == has or (path == "wsl2.processors" and int(wanted) <= 0)


def facts(host: Host) -> dict[str, Fact]:
    """Return the effects of settings that are visible from inside."""
    found: dict[str, Fact] = {}
    with contextlib.suppress(SourceError):
        memory = meminfo(host.read_optional("/proc/meminfo"))
        found = {path: memory[line] for path, line in _MEMORY.items() if line in memory}
    if cpus := len(re.findall(r"^cpu\d+ ", host.read_optional("/proc/stat"), re.MULTILINE)):
        found["wsl2.processors"] = cpus
    if line := host.read_optional("/proc/cmdline").strip():
        found["wsl2.kernelCommandLine"] = line
    with contextlib.suppress(NoData, SourceError):  # WSL before 2.0 has no wslinfo
        found["wsl2.networkingMode"] = host.run(["wslinfo", "--networking-mode"], 2.0).strip()
    found["wsl2.gpuSupport"] = host.exists("/dev/dxg")
    # Switched off, a plain folder of that name stays: https://github.com/microsoft/WSL/issues/11934
    if any(mount.point.endswith("/wslg") for mount in mounts(host.read_optional("/proc/self/mounts"))):
        found["wsl2.guiApplications"] = True
    if flags := host.read_optional("/proc/cpuinfo"):
        found["wsl2.nestedVirtualization"] = bool(re.search(r"^flags\b.*\b(vmx|svm)\b", flags, re.MULTILINE))
    return found


def quoted(key: WslKey, value: Value | None) -> str:
    """Format a value as in a .wslconfig: ``50GB``."""
    if isinstance(value, bool):
        return str(value).lower()
    if key.kind != "size" or not isinstance(value, int) or not value:
        return "" if value is None else str(value)
    return next(f"{value // scale}{unit}" for unit, scale in _UNITS if value % scale == 0)


def measured(key: WslKey, value: Fact | None) -> str:
    """Format a value of the machine: ``47.9 GiB``."""
    return size(value) if key.kind == "size" and isinstance(value, int) and value else quoted(key, value)
