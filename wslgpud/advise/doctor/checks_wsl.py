"""WSL itself: kernel, version, systemd, interop, .wslconfig."""

from __future__ import annotations

from wslgpud.advise.doctor.findings import (
    Outcome,
    check,
    could_not_tell,
    good,
    in_windows,
    not_applicable,
    note,
    problem,
)
from wslgpud.advise.doctor.look import Look
from wslgpud.advise.doctor.torches import version
from wslgpud.advise.wslconfig import compare
from wslgpud.advise.wslconfig.check import remarks
from wslgpud.host import NoData, SourceError
from wslgpud.words import Message, say, says, template

#: CUDA under WSL: https://docs.nvidia.com/cuda/wsl-user-guide/
LEAST_KERNEL = (5, 10, 43)
#: The first with gradual memory reclaim, mirrored networking and wslinfo.
GOOD_WSL = (2, 0, 0)
_BINFMT = "/proc/sys/fs/binfmt_misc"
_UPDATE = "wsl --update"


@check("wsl.kernel", template("Linux kernel"), template("CUDA under WSL2 needs Linux 5.10.43 or newer."))
def kernel(look: Look) -> Outcome:
    """The kernel is new enough for CUDA."""
    if look.wsl == 1:
        return problem(say("this is WSL 1, which has no GPU"), in_windows("wsl --set-version DISTRO 2"))
    if not look.release:
        return could_not_tell(say("the kernel's release cannot be read"))
    if look.wsl and version(look.release) < LEAST_KERNEL:
        return problem(look.release, in_windows(_UPDATE))
    return good(look.release)


@check(
    "wsl.version",
    template("WSL version"),
    template("New releases fix crashes, memory reclaim and the GPU driver."),
    "wsl",
)
def wsl_version(look: Look) -> Outcome:
    """WSL is of this age."""
    if not look.wsl_version:
        return note(say("too old to report its version"), in_windows(_UPDATE))
    if version(look.wsl_version) < GOOD_WSL:
        return note(f"WSL {look.wsl_version}", in_windows(_UPDATE))
    return good(f"WSL {look.wsl_version}")


@check(
    "wsl.systemd",
    template("systemd"),
    template("The daemon is a systemd service; without systemd nothing starts it."),
)
def systemd(look: Look) -> Outcome:
    """The service manager runs."""
    first = (look.read("/proc/1/comm") or "").strip()
    if not first:
        return could_not_tell(say("process 1 is not visible"))
    if first == "systemd":
        return good(say("running as process 1"))
    if not look.wsl:
        return note(
            say("process 1 is {name}: have this machine's init system start 'wslgpud run'", name=first)
        )
    command = r"printf '[boot]\nsystemd=true\n' | sudo tee -a /etc/wsl.conf"
    return problem(
        say("off: process 1 is {name}", name=first),
        say("{command}   # then, in Windows: wsl --shutdown", command=command),
    )


@check(
    "wsl.stays",
    template("Keeps running"),
    template(
        "Windows stops a distro 15 s after its last terminal closes, with all services and trainings in it."
    ),
    "wsl",
)
def stays(look: Look) -> Outcome:
    """The distro is not stopped when the last terminal closes."""
    config = look.wslconfig
    if config.error:
        return could_not_tell(config.error)
    timeout = config.parsed.get("general.instanceIdleTimeout") if config.parsed else None
    if isinstance(timeout, int) and timeout < 0:
        return good(say("instanceIdleTimeout={value}: the distro keeps running", value=timeout))
    return note(
        say(
            "WSL stops this distro {idle_seconds} after its last terminal closes",
            idle_seconds=15 if timeout is None else int(timeout) / 1000,
        ),
        say("[general]\ninstanceIdleTimeout=-1   # in .wslconfig; or: wslgpud wslconfig apply training"),
    )


@check(
    "wsl.interop",
    template("Windows programs"),
    template("Toast notifications, Windows' memory and VRAM spill all take a Windows program."),
    "wsl",
)
def interop(look: Look) -> Outcome:
    """Windows programs can be started."""
    try:
        entries = [name for name in look.host.names(_BINFMT) if name.startswith("WSLInterop")]
    except (NoData, SourceError):
        entries = []
    if not entries:
        return note(
            say("no Windows program can be started: the binfmt_misc entry is gone (microsoft/WSL#8843)"),
            "sudo sh -c 'echo :WSLInterop:M::MZ::/init:PF > /proc/sys/fs/binfmt_misc/register'",
        )
    if not (look.read(f"{_BINFMT}/{entries[0]}") or "enabled").startswith("enabled"):
        return note(say("switched off in binfmt_misc"), f"echo 1 | sudo tee {_BINFMT}/{entries[0]}")
    if not look.host.exists("/run/WSL"):
        return could_not_tell(say("/run/WSL is not visible: this looks like a container"))
    return good(say("{entry} is registered", entry=entries[0]))


@check(
    "wslconfig.valid",
    template(".wslconfig"),
    template("WSL ignores what it does not understand, and says so where nobody looks."),
    "wsl",
)
def wslconfig_valid(look: Look) -> Outcome:
    """.wslconfig says what its owner thinks."""
    config = look.wslconfig
    if config.error:
        return could_not_tell(config.error)
    if config.parsed is None:
        return good(say("there is no {path}: every setting is at its default", path=config.path))
    found = remarks(config.parsed)
    if not found:
        return good(say("{path}: nothing to report", path=config.path))
    told = says(
        "{count} remark on {path} (line {lines})",
        "{count} remarks on {path} (lines {lines})",
        count=len(found),
        path=config.path,
        lines=tuple(remark.line for remark in found),
    )
    if any(remark.wsl for remark in found):
        return problem(
            say("{remarks}; WSL ignores some of these lines", remarks=told), "wslgpud wslconfig check"
        )
    return note(told, "wslgpud wslconfig check")


@check(
    "wslconfig.in_force",
    template("Limits in force"),
    template("A limit that waits for a restart protects nobody."),
    "wsl",
)
def wslconfig_in_force(look: Look) -> Outcome:
    """What .wslconfig says is what the machine has."""
    config = look.wslconfig
    if config.error:
        return could_not_tell(config.error)
    if config.parsed is None:
        return not_applicable(say("there is no .wslconfig"))
    waiting = tuple(_waits(row) for row in look.settings_seen if row.match == "waiting")
    if waiting:
        return problem(
            say("not in force: {settings}", settings=waiting),
            say("{command}   # in Windows; ends everything that runs in WSL", command="wsl --shutdown"),
        )
    return good(say("everything that can be seen from here is in force"))


def _waits(row: compare.Row) -> str | Message:
    if row.key.name == "kernelCommandLine":  # too long to show twice
        return row.key.name
    return say(
        "{setting}={wanted} (now {has})",
        setting=row.key.name,
        wanted=compare.quoted(row.key, row.wanted),
        has=compare.measured(row.key, row.has),
    )
