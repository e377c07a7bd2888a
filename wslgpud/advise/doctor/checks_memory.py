"""RAM, swap, and the kernel's settings for them."""

from __future__ import annotations

import re

from wslgpud.advise.doctor.findings import Outcome, check, could_not_tell, good, not_applicable, note, problem
from wslgpud.advise.doctor.look import Look
from wslgpud.sources.text import table, whole
from wslgpud.units import size

GIB = 1 << 30
#: A build of a CUDA extension takes 10 to 15 GB, and a 7B model passes through RAM on its way to the card.
SMALL_BYTES = 15 * GIB
#: WSL's own choice of swap is a quarter of the memory; half of that is too little to outlast a peak.
LEAST_SWAP_RATIO = 0.125
#: Share of time in which nothing moved for want of memory: see the risk engine's own limits.
THRASHING_PERCENT = 10.0
#: Elasticsearch asks for it; big models are mapped in many pieces as well.
MAPS = 262144
#: One watch is 1 kB of kernel memory at most; editors and TensorBoard want one for each folder.
WATCHES = 65536


@check("memory.size", "RAM", "Too small a virtual machine is what makes builds and loading models kill WSL.")
def ram(look: Look) -> Outcome:
    """There is enough RAM for a training."""
    total = look.memory["MemTotal"]
    if total >= SMALL_BYTES:
        return good(f"{size(total)}, of which {size(look.memory.get('MemAvailable', 0))} are available")
    if look.wsl != 2:
        return note(f"only {size(total)}", "keep MAX_JOBS low: wslgpud guard -- YOUR BUILD")
    return note(f"WSL has only {size(total)}", "wslgpud wslconfig preset training")


@check("memory.swap", "Swap", "With swap a peak makes things slow; without it the kernel kills.")
def swap(look: Look) -> Outcome:
    """There is swap, and enough of it."""
    total, ram_bytes = look.memory.get("SwapTotal"), look.memory["MemTotal"]
    if total is None:
        return could_not_tell("/proc/meminfo does not tell")
    remedy = (
        f"swap={max(4, round(ram_bytes * 0.4 / GIB))}GB        (below [wsl2] in .wslconfig)"
        if look.wsl
        else "sudo fallocate -l 16G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile"
        " && sudo swapon /swapfile"
    )
    if not total:
        uptime = float((look.read("/proc/uptime") or "1e9").split()[0])
        if look.wsl and uptime < 60:
            return could_not_tell("WSL adds it some seconds after its start; ask again in a minute")
        return problem("none", remedy)
    if total < LEAST_SWAP_RATIO * ram_bytes:
        return note(f"{size(total)} beside {size(ram_bytes)} of RAM", remedy)
    return good(size(total))


@check(
    "memory.thrashing",
    "Thrashing",
    "A machine that swaps in circles does everything a hundred times slower.",
)
def thrashing(look: Look) -> Outcome:
    """Programs do not wait for memory now."""
    text = look.read("/proc/pressure/memory")
    if text is None:
        return could_not_tell("this kernel shows no pressure")
    match = re.search(r"^full avg10=([\d.]+)", text, re.MULTILINE)
    if not match:
        return could_not_tell("/proc/pressure/memory does not tell")
    share = float(match[1])
    if share >= THRASHING_PERCENT:
        return problem(
            f"nothing moved for want of memory during {share:.0f} % of the last 10 s",
            "wslgpud status        (who is it?)",
        )
    return good(f"programs waited for memory during {share:.0f} % of the last 10 s")


@check("memory.killed", "OOM kills", "What the kernel has killed is missing, often without a word.")
def killed(look: Look) -> Outcome:
    """The kernel has killed nothing since the start."""
    kills = whole(table(look.read("/proc/vmstat") or "").get("oom_kill"))
    if kills is None:
        return could_not_tell("/proc/vmstat does not tell")
    if kills:
        what = f"{kills} process{'es' * (kills > 1)} killed for want of memory since the start"
        return note(what, "wslgpud incidents")
    return good("none since the start")


@check(
    "kernel.swappiness",
    "vm.swappiness",
    "Above 60 the kernel swaps out programs to keep files; at 0 it swaps only when it is too late.",
)
def swappiness(look: Look) -> Outcome:
    """The kernel swaps neither eagerly nor never."""
    value = look.number("/proc/sys/vm/swappiness")
    if value > 60 or value == 0:
        return note(str(value), _sysctl("vm.swappiness", 10))
    return good(str(value))


@check(
    "kernel.overcommit",
    "vm.overcommit_memory",
    "At 1 no allocation ever fails: programs cannot save themselves, and early warnings lose a sign.",
)
def overcommit(look: Look) -> Outcome:
    """Absurd allocations fail."""
    value = look.number("/proc/sys/vm/overcommit_memory")
    if value == 1:
        return note(
            "1: every allocation succeeds until something is killed", _sysctl("vm.overcommit_memory", 0)
        )
    if value == 2:
        return note("2: programs that reserve much address space, as CUDA's do, may fail to start",
                    _sysctl("vm.overcommit_memory", 0))  # fmt: skip
    return good("0")


@check(
    "kernel.max_map_count", "vm.max_map_count", "Big models and vector databases map many pieces of memory."
)
def max_map_count(look: Look) -> Outcome:
    """Programs may map enough pieces of memory."""
    value = look.number("/proc/sys/vm/max_map_count")
    return good(str(value)) if value >= MAPS else note(str(value), _sysctl("vm.max_map_count", MAPS))


@check("kernel.inotify", "inotify watches", "Editors and TensorBoard stop seeing changes when these run out.")
def inotify(look: Look) -> Outcome:
    """Enough files can be watched."""
    value = look.number("/proc/sys/fs/inotify/max_user_watches")
    return (
        good(str(value))
        if value >= WATCHES
        else note(str(value), _sysctl("fs.inotify.max_user_watches", 524288))
    )


@check("kernel.pressure", "Pressure (PSI)", "It is the earliest sign that memory gets short.")
def pressure(look: Look) -> Outcome:
    """The kernel tells how long programs wait."""
    if look.host.exists("/proc/pressure/memory"):
        return good("/proc/pressure is there")
    if look.wsl != 2:
        return note("the kernel does not show it", "add psi=1 to the kernel's command line")
    if look.release.startswith("5."):
        return note(f"Linux {look.release.partition('-')[0]} has none", "wsl --update        (in Windows)")
    # Linux 6.18 as WSL builds it has it, switched off: arch/x86/configs/config-wsl.
    return note(
        "built into the kernel, and off", "kernelCommandLine=psi=1        (below [wsl2] in .wslconfig)"
    )


@check(
    "kernel.memory_cgroup",
    "Memory cgroups",
    "Containers and guarded builds are limited and measured by them.",
)
def memory_cgroup(look: Look) -> Outcome:
    """Groups of processes can be limited."""
    controllers = look.read("/sys/fs/cgroup/cgroup.controllers")
    if controllers is None:
        if any(m.type == "cgroup" and "memory" in m.options for m in look.mounts):
            return good("version 1")
        return could_not_tell("/sys/fs/cgroup shows no controllers")
    if "memory" in controllers.split():
        return good("version 2")
    remedy = "remove automount.cgroups=v1 from /etc/wsl.conf, and cgroup_no_v1 from the kernel's command line"
    return note("version 2 without memory", remedy)


@check(
    "memory.limited",
    "Limits on groups",
    "A group that reaches its limit is killed though the machine has memory.",
)
def limited(look: Look) -> Outcome:
    """No limit on all of the user's programs is nearly reached."""
    limit, current = (look.read(f"/sys/fs/cgroup/wsl-user/memory.{n}") for n in ("max", "current"))
    most, now = whole((limit or "").strip()), whole((current or "").strip())
    if most is None or now is None:
        return not_applicable("WSL sets none here")
    text = f"{size(now)} of {size(most)} that WSL gives all programs together"
    return note(text, "wslgpud status        (who is it?)") if now > 0.95 * most else good(text)


def _sysctl(name: str, value: int) -> str:
    return f"echo {name}={value} | sudo tee -a /etc/sysctl.d/90-training.conf && sudo sysctl --system"
