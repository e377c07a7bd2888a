"""RAM, swap, and the kernel's settings for them."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from types import MappingProxyType

from wslgpud.advise.doctor.evidence import Evidence
from wslgpud.advise.doctor.findings import (
    Outcome,
    check,
    good,
    in_windows,
    in_wslconfig,
    note,
    problem,
    shows_who,
    skipped,
    unknown,
)
from wslgpud.sources.text import table, whole
from wslgpud.words import Message, say, says, template
from wslgpud.words.units import size

GIB = 1 << 30
#: A build of a CUDA extension takes 10 to 15 GB, and a 7B model passes through RAM on its way to the card.
SMALL_BYTES = 15 * GIB
#: WSL's own choice of swap is a quarter of the memory; half of that is too little to outlast a peak.
LEAST_SWAP_RATIO = 0.125
#: Share of time in which nothing moved for lack of memory: see the risk engine's own limits.
THRASHING_RATIO = 0.1
#: Elasticsearch asks for it; big models are mapped in many pieces as well.
MAPS = 262144
#: One watch is 1 kB of kernel memory at most; editors and TensorBoard want one for each folder.
WATCHES, MANY_WATCHES = 65536, 524288


@check("memory.size", "RAM")
def ram(machine: Evidence) -> Outcome:
    """A virtual machine that is too small is why builds and model loading kill WSL."""
    total, available = machine.memory["MemTotal"], machine.memory.get("MemAvailable")
    if total >= SMALL_BYTES:
        left = say("{total_bytes}, {left_bytes} of it available", total_bytes=total, left_bytes=available or 0)
        return good(size(total) if available is None else left)
    if machine.wsl == 2:
        return note(say("WSL has only {total_bytes}", total_bytes=total), "wslgpud wslconfig preset training")
    remedy = say("keep MAX_JOBS low: {command}", command="wslgpud guard -- YOUR BUILD")
    return note(say("only {total_bytes}", total_bytes=total), remedy)


@check("memory.swap", "Swap")
def swap(machine: Evidence) -> Outcome:
    """With swap, a peak makes things slow; without it, the kernel kills."""
    total, ram = machine.memory.get("SwapTotal"), machine.memory["MemTotal"]
    if total is None:
        return unknown(say("{path} does not say", path="/proc/meminfo"))
    if total >= LEAST_SWAP_RATIO * ram:
        return good(size(total))
    make = (
        "sudo fallocate -l 16G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile && sudo swapon /swapfile"
    )
    remedy = in_wslconfig(f"swap={max(4, round(ram * 0.4 / GIB))}GB") if machine.wsl else make
    if total:
        return note(say("{swap_bytes} for {ram_bytes} of RAM", swap_bytes=total, ram_bytes=ram), remedy)
    if machine.wsl and float((machine.read("/proc/uptime") or "1e9").split()[0]) < 60:
        return unknown(say("WSL adds swap some seconds after it starts; ask again in a minute"))
    return problem(say("there is none"), remedy)


@check("memory.thrashing", "Thrashing")
def thrashing(machine: Evidence) -> Outcome:
    """A machine that keeps swapping does everything a hundred times slower."""
    text = machine.read("/proc/pressure/memory")
    if text is None:
        return unknown(say("this kernel reports no pressure"))
    match = re.search(r"^full avg10=([\d.]+)", text, re.MULTILINE)
    if not match:
        return unknown(say("{path} does not say", path="/proc/pressure/memory"))
    share = float(match[1]) / 100
    if share < THRASHING_RATIO:
        return good(say("programs waited for memory {share_ratio} of the last 10 s", share_ratio=share))
    found = say("everything stood still for lack of memory {share_ratio} of the last 10 s", share_ratio=share)
    return problem(found, shows_who("wslgpud status"))


@check("memory.killed", "OOM kills")
def killed(machine: Evidence) -> Outcome:
    """A program that the kernel kills is gone, often without a word."""
    kills = whole(table(machine.read("/proc/vmstat") or "").get("oom_kill"))
    if kills is None:
        return unknown(say("{path} does not say", path="/proc/vmstat"))
    if not kills:
        return good(say("none since boot"))
    found = says(
        "{count} process killed for lack of memory since boot",
        "{count} processes killed for lack of memory since boot",
        count=kills,
    )
    return note(found, "wslgpud incidents")


@check("kernel.swappiness", "vm.swappiness")
def swappiness(machine: Evidence) -> Outcome:
    """Above 60 the kernel swaps programs out to keep files cached; at 0 it swaps only when it is too late."""
    return _sysctl(machine, "vm.swappiness", 10, range(1, 61))


@check("kernel.overcommit", "vm.overcommit_memory")
def overcommit(machine: Evidence) -> Outcome:
    """At 1 no allocation ever fails: programs cannot save themselves, and warnings come later."""
    told = {
        1: template("{value}: every allocation succeeds until something is killed"),
        2: template("{value}: programs that reserve much address space, as CUDA does, may not start"),
    }
    return _sysctl(machine, "vm.overcommit_memory", 0, (0,), told)


@check("kernel.max_map_count", "vm.max_map_count")
def max_map_count(machine: Evidence) -> Outcome:
    """Big models and vector databases map many pieces of memory."""
    return _sysctl(machine, "vm.max_map_count", MAPS, range(MAPS, 1 << 62))


@check("kernel.inotify", "inotify watches")
def inotify(machine: Evidence) -> Outcome:
    """Editors and TensorBoard stop seeing changes when these run out."""
    return _sysctl(machine, "fs.inotify.max_user_watches", MANY_WATCHES, range(WATCHES, 1 << 62))


@check("kernel.pressure", "Pressure (PSI)")
def pressure(machine: Evidence) -> Outcome:
    """It is the earliest sign that memory is getting short."""
    if machine.host.exists("/proc/pressure/memory"):
        return good("/proc/pressure")
    if machine.wsl != 2:
        return note(say("the kernel does not report it"), say("add psi=1 to the kernel's command line"))
    if machine.release.startswith("5."):
        found = say("Linux {version} has none", version=machine.release.partition("-")[0])
        return note(found, in_windows("wsl --update"))
    # Linux 6.18 as WSL builds it has it, switched off: arch/x86/configs/config-wsl.
    return note(say("built into the kernel, but off"), in_wslconfig("kernelCommandLine=psi=1"))


@check("kernel.memory_cgroup", "Memory cgroups")
def memory_cgroup(machine: Evidence) -> Outcome:
    """They limit and measure containers and guarded builds."""
    controllers = machine.read("/sys/fs/cgroup/cgroup.controllers")
    if controllers is None:
        if any(m.type == "cgroup" and "memory" in m.options for m in machine.mounts):
            return good(say("version {number}", number=1))
        return unknown(say("{path} shows no controllers", path="/sys/fs/cgroup"))
    if "memory" in controllers.split():
        return good(say("version {number}", number=2))
    remedy = say("remove automount.cgroups=v1 from /etc/wsl.conf, and cgroup_no_v1 from the kernel's command line")
    return note(say("version 2 without the memory controller"), remedy)


@check("memory.limited", "Limits on groups")
def limited(machine: Evidence) -> Outcome:
    """A group that reaches its limit is killed even though the machine has memory left."""
    most, now = (machine.number(f"/sys/fs/cgroup/wsl-user/memory.{name}") for name in ("max", "current"))
    if most is None or now is None:
        return skipped(say("WSL sets none here"))
    found = say("{used_bytes} that WSL allows all programs together", used_bytes=(now, most))
    return note(found, shows_who("wslgpud status")) if now > 0.95 * most else good(found)


def _sysctl(
    machine: Evidence, name: str, wanted: int, accepted: Container[int], told: Mapping[int, str] = MappingProxyType({})
) -> Outcome:
    """Compare a setting of the kernel's with what it may be; ``told`` says more of some values."""
    path = f"/proc/sys/{name.replace('.', '/')}"
    value = whole(machine.host.read(path).strip())
    if value is None:
        return unknown(say("{path} does not hold a number", path=path))
    if value in accepted:
        return good(str(value))
    found = Message(told[value], {"value": value}) if value in told else str(value)
    return note(found, f"echo {name}={wanted} | sudo tee -a /etc/sysctl.d/90-training.conf && sudo sysctl --system")
