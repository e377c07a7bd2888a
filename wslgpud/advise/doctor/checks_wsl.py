"""WSL itself: kernel, version, systemd, interop, .wslconfig."""

from __future__ import annotations

from wslgpud.advise.doctor.findings import (
    Outcome,
    check,
    could_not_tell,
    good,
    not_applicable,
    note,
    problem,
)
from wslgpud.advise.doctor.look import Look
from wslgpud.advise.doctor.torches import version
from wslgpud.advise.wslconfig import compare
from wslgpud.advise.wslconfig.check import remarks
from wslgpud.host import NoData, SourceError

#: CUDA under WSL: https://docs.nvidia.com/cuda/wsl-user-guide/
LEAST_KERNEL = (5, 10, 43)
#: The first with gradual memory reclaim, mirrored networking and wslinfo.
GOOD_WSL = (2, 0, 0)
_BINFMT = "/proc/sys/fs/binfmt_misc"
_SHUTDOWN = "wsl --shutdown        (in Windows; ends all that runs in WSL)"


@check("wsl.kernel", "Linux kernel", "CUDA under WSL2 needs Linux 5.10.43 or newer.")
def kernel(look: Look) -> Outcome:
    """The kernel is new enough for CUDA."""
    if look.wsl == 1:
        return problem("this is WSL 1, which has no GPU", "wsl --set-version DISTRO 2        (in Windows)")
    if not look.release:
        return could_not_tell("the kernel's release cannot be read")
    if look.wsl and version(look.release) < LEAST_KERNEL:
        return problem(look.release, "wsl --update        (in Windows)")
    return good(look.release)


@check("wsl.version", "WSL version", "New releases mend crashes, memory reclaim and the GPU's driver.", "wsl")
def wsl_version(look: Look) -> Outcome:
    """WSL is of this age."""
    if not look.wsl_version:
        return note("too old to tell its version", "wsl --update        (in Windows)")
    if version(look.wsl_version) < GOOD_WSL:
        return note(f"WSL {look.wsl_version}", "wsl --update        (in Windows)")
    return good(f"WSL {look.wsl_version}")


@check("wsl.systemd", "systemd", "The daemon is a systemd service; without systemd nothing starts it.")
def systemd(look: Look) -> Outcome:
    """The service manager runs."""
    first = (look.read("/proc/1/comm") or "").strip()
    if not first:
        return could_not_tell("process 1 is hidden")
    if first == "systemd":
        return good("it is process 1")
    if not look.wsl:
        return note(f"process 1 is {first}: start 'wslgpud run' by what this machine has instead")
    remedy = (
        "printf '[boot]\\nsystemd=true\\n' | sudo tee -a /etc/wsl.conf   # then, in Windows: wsl --shutdown"
    )
    return problem(f"off: process 1 is {first}", remedy)


@check(
    "wsl.stays",
    "Keeps running",
    "Windows stops a distro, services and trainings with it, 15 s after its last terminal closes.",
    "wsl",
)
def stays(look: Look) -> Outcome:
    """The distro is not stopped when the last terminal closes."""
    config = look.wslconfig
    if config.error:
        return could_not_tell(config.error)
    timeout = config.parsed.get("general.instanceIdleTimeout") if config.parsed else None
    if isinstance(timeout, int) and timeout < 0:
        return good("instanceIdleTimeout=-1: the distro stays")
    seconds = 15 if timeout is None else int(timeout) / 1000
    return note(
        f"WSL stops this distro {seconds:g} s after the last terminal",
        "[general]\ninstanceIdleTimeout=-1        (in .wslconfig; wslgpud wslconfig apply training does it)",
    )


@check(
    "wsl.interop", "Windows programs", "Toasts, Windows' memory and spilled VRAM are asked of Windows.", "wsl"
)
def interop(look: Look) -> Outcome:
    """Windows programs can be started."""
    try:
        entries = [name for name in look.host.names(_BINFMT) if name.startswith("WSLInterop")]
    except (NoData, SourceError):
        entries = []
    if not entries:
        return note(
            "no program of Windows can be started: its entry in binfmt_misc is gone (microsoft/WSL#8843)",
            "sudo sh -c 'echo :WSLInterop:M::MZ::/init:PF > /proc/sys/fs/binfmt_misc/register'",
        )
    if not (look.read(f"{_BINFMT}/{entries[0]}") or "enabled").startswith("enabled"):
        return note("switched off in binfmt_misc", f"echo 1 | sudo tee {_BINFMT}/{entries[0]}")
    if not look.host.exists("/run/WSL"):
        return could_not_tell("/run/WSL is hidden: this looks like a container")
    return good(f"{entries[0]} is registered")


@check(
    "wslconfig.valid",
    ".wslconfig",
    "WSL ignores what it does not understand, and says so where nobody looks.",
    "wsl",
)
def wslconfig_valid(look: Look) -> Outcome:
    """.wslconfig says what its owner thinks."""
    config = look.wslconfig
    if config.error:
        return could_not_tell(config.error)
    if config.parsed is None:
        return good(f"there is no {config.path}: all is at its default")
    found = remarks(config.parsed)
    if not found:
        return good(f"{config.path}: nothing to remark")
    lines = ", ".join(str(remark.line) for remark in found)
    text = f"{len(found)} remark{'s' * (len(found) > 1)} on {config.path} (line {lines})"
    if any(remark.wsl for remark in found):
        return problem(f"{text}; WSL ignores some of it", "wslgpud wslconfig check")
    return note(text, "wslgpud wslconfig check")


@check("wslconfig.in_force", "Limits in force", "A limit that waits for a restart protects nobody.", "wsl")
def wslconfig_in_force(look: Look) -> Outcome:
    """What .wslconfig says is what the machine has."""
    config = look.wslconfig
    if config.error:
        return could_not_tell(config.error)
    if config.parsed is None:
        return not_applicable("there is no .wslconfig")
    waiting = [
        f"{row.key.name}={compare.shown(row.key, row.wanted)} (now {compare.shown(row.key, row.has)})"
        for row in look.settings_seen
        if row.match == "waiting" and row.key.name != "kernelCommandLine"
    ]
    if any(row.match == "waiting" and row.key.name == "kernelCommandLine" for row in look.settings_seen):
        waiting.append("kernelCommandLine")
    if waiting:
        return problem(f"not in force: {', '.join(waiting)}", _SHUTDOWN)
    return good("all that can be seen from here is in force")
