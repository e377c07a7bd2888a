"""RAM, swap, and the kernel's settings for them."""

from __future__ import annotations

import re

from wslgpud.advise.doctor.findings import (
    Outcome,
    check,
    could_not_tell,
    good,
    in_windows,
    in_wslconfig,
    not_applicable,
    note,
    problem,
    shows_who,
)
from wslgpud.advise.doctor.look import Look
from wslgpud.sources.text import table, whole
from wslgpud.units import size
from wslgpud.words import say, says, template

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
WATCHES = 65536


@check(
    "memory.size",
    template("RAM"),
    template("A virtual machine that is too small is why builds and model loading kill WSL."),
)
def ram(look: Look) -> Outcome:
    """There is enough RAM for a training."""
    total, available = look.memory["MemTotal"], look.memory.get("MemAvailable")
    if total >= SMALL_BYTES:
        if available is None:
            return good(size(total))
        return good(
            say("{total_bytes}, {left_bytes} of it available", total_bytes=total, left_bytes=available)
        )
    if look.wsl != 2:
        return note(
            say("only {total_bytes}", total_bytes=total),
            say("keep MAX_JOBS low: {command}", command="wslgpud guard -- YOUR BUILD"),
        )
    return note(say("WSL has only {total_bytes}", total_bytes=total), "wslgpud wslconfig preset training")


@check(
    "memory.swap",
    template("Swap"),
    template("With swap, a peak makes things slow; without it, the kernel kills."),
)
def swap(look: Look) -> Outcome:
    """There is swap, and enough of it."""
    total, ram_bytes = look.memory.get("SwapTotal"), look.memory["MemTotal"]
    if total is None:
        return could_not_tell(say("{path} does not say", path="/proc/meminfo"))
    remedy = (
        in_wslconfig(f"swap={max(4, round(ram_bytes * 0.4 / GIB))}GB")
        if look.wsl
        else "sudo fallocate -l 16G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile"
        " && sudo swapon /swapfile"
    )
    if not total:
        uptime = float((look.read("/proc/uptime") or "1e9").split()[0])
        if look.wsl and uptime < 60:
            return could_not_tell(say("WSL adds swap some seconds after it starts; ask again in a minute"))
        return problem(say("there is none"), remedy)
    if total < LEAST_SWAP_RATIO * ram_bytes:
        return note(say("{swap_bytes} for {ram_bytes} of RAM", swap_bytes=total, ram_bytes=ram_bytes), remedy)
    return good(size(total))


@check(
    "memory.thrashing",
    template("Thrashing"),
    template("A machine that keeps swapping does everything a hundred times slower."),
)
def thrashing(look: Look) -> Outcome:
    """Programs do not wait for memory now."""
    text = look.read("/proc/pressure/memory")
    if text is None:
        return could_not_tell(say("this kernel reports no pressure"))
    match = re.search(r"^full avg10=([\d.]+)", text, re.MULTILINE)
    if not match:
        return could_not_tell(say("{path} does not say", path="/proc/pressure/memory"))
    share = float(match[1]) / 100
    if share >= THRASHING_RATIO:
        return problem(
            say(
                "everything stood still for lack of memory {share_ratio} of the last 10 s", share_ratio=share
            ),
            shows_who("wslgpud status"),
        )
    return good(say("programs waited for memory {share_ratio} of the last 10 s", share_ratio=share))


@check(
    "memory.killed",
    template("OOM kills"),
    template("A program that the kernel kills is gone, often without a word."),
)
def killed(look: Look) -> Outcome:
    """The kernel has killed nothing since the start."""
    kills = whole(table(look.read("/proc/vmstat") or "").get("oom_kill"))
    if kills is None:
        return could_not_tell(say("{path} does not say", path="/proc/vmstat"))
    if not kills:
        return good(say("none since boot"))
    return note(
        says(
            "{count} process killed for lack of memory since boot",
            "{count} processes killed for lack of memory since boot",
            count=kills,
        ),
        "wslgpud incidents",
    )


@check(
    "kernel.swappiness",
    template("vm.swappiness"),
    template(
        "Above 60 the kernel swaps programs out to keep files cached; at 0 it swaps only when it is too late."
    ),
)
def swappiness(look: Look) -> Outcome:
    """The kernel swaps neither eagerly nor never."""
    value = look.number("/proc/sys/vm/swappiness")
    if value > 60 or value == 0:
        return note(str(value), _sysctl("vm.swappiness", 10))
    return good(str(value))


@check(
    "kernel.overcommit",
    template("vm.overcommit_memory"),
    template("At 1 no allocation ever fails: programs cannot save themselves, and warnings come later."),
)
def overcommit(look: Look) -> Outcome:
    """Absurd allocations fail."""
    value = look.number("/proc/sys/vm/overcommit_memory")
    remedy = _sysctl("vm.overcommit_memory", 0)
    if value == 1:
        return note(say("{value}: every allocation succeeds until something is killed", value=value), remedy)
    if value == 2:
        return note(
            say(
                "{value}: programs that reserve much address space, as CUDA does, may not start", value=value
            ),
            remedy,
        )
    return good(str(value))


@check(
    "kernel.max_map_count",
    template("vm.max_map_count"),
    template("Big models and vector databases map many pieces of memory."),
)
def max_map_count(look: Look) -> Outcome:
    """Programs may map enough pieces of memory."""
    value = look.number("/proc/sys/vm/max_map_count")
    return good(str(value)) if value >= MAPS else note(str(value), _sysctl("vm.max_map_count", MAPS))


@check(
    "kernel.inotify",
    template("inotify watches"),
    template("Editors and TensorBoard stop seeing changes when these run out."),
)
def inotify(look: Look) -> Outcome:
    """Enough files can be watched."""
    value = look.number("/proc/sys/fs/inotify/max_user_watches")
    if value >= WATCHES:
        return good(str(value))
    return note(str(value), _sysctl("fs.inotify.max_user_watches", 524288))


@check(
    "kernel.pressure",
    template("Pressure (PSI)"),
    template("It is the earliest sign that memory is getting short."),
)
def pressure(look: Look) -> Outcome:
    """The kernel tells how long programs wait."""
    if look.host.exists("/proc/pressure/memory"):
        return good("/proc/pressure")
    if look.wsl != 2:
        return note(say("the kernel does not report it"), say("add psi=1 to the kernel's command line"))
    if look.release.startswith("5."):
        return note(
            say("Linux {version} has none", version=look.release.partition("-")[0]),
            in_windows("wsl --update"),
        )
    # Linux 6.18 as WSL builds it has it, switched off: arch/x86/configs/config-wsl.
    return note(say("built into the kernel, but off"), in_wslconfig("kernelCommandLine=psi=1"))


@check(
    "kernel.memory_cgroup",
    template("Memory cgroups"),
    template("They limit and measure containers and guarded builds."),
)
def memory_cgroup(look: Look) -> Outcome:
    """Groups of processes can be limited."""
    controllers = look.read("/sys/fs/cgroup/cgroup.controllers")
    if controllers is None:
        if any(m.type == "cgroup" and "memory" in m.options for m in look.mounts):
            return good(say("version {number}", number=1))
        return could_not_tell(say("{path} shows no controllers", path="/sys/fs/cgroup"))
    if "memory" in controllers.split():
        return good(say("version {number}", number=2))
    return note(
        say("version 2 without the memory controller"),
        say(
            "remove automount.cgroups=v1 from /etc/wsl.conf, and cgroup_no_v1 from the kernel's command line"
        ),
    )


@check(
    "memory.limited",
    template("Limits on groups"),
    template("A group that reaches its limit is killed even though the machine has memory left."),
)
def limited(look: Look) -> Outcome:
    """No limit on all of the user's programs is nearly reached."""
    limit, current = (look.read(f"/sys/fs/cgroup/wsl-user/memory.{n}") for n in ("max", "current"))
    most, now = whole((limit or "").strip()), whole((current or "").strip())
    if most is None or now is None:
        return not_applicable(say("WSL sets none here"))
    found = say("{used_bytes} that WSL allows all programs together", used_bytes=(now, most))
    return note(found, shows_who("wslgpud status")) if now > 0.95 * most else good(found)


def _sysctl(name: str, value: int) -> str:
    return f"echo {name}={value} | sudo tee -a /etc/sysctl.d/90-training.conf && sudo sysctl --system"
