"""WSL itself: kernel, version, systemd, interop, .wslconfig."""

from __future__ import annotations

import contextlib

from wslgpud.advise.doctor.checking import (
    KEEPS_RUNNING,
    Evidence,
    Outcome,
    WslConfig,
    check,
    good,
    in_windows,
    note,
    problem,
    skipped,
    unknown,
)
from wslgpud.advise.doctor.torches import version
from wslgpud.advise.wslconfig import compare, files
from wslgpud.advise.wslconfig.check import remarks
from wslgpud.advise.wslconfig.presets import WINDOWS_BYTES
from wslgpud.host import NoData, SourceError
from wslgpud.probes.interop import BINFMT
from wslgpud.words import Message, say, says

#: CUDA under WSL: https://docs.nvidia.com/cuda/wsl-user-guide/
MIN_KERNEL = (5, 10, 43)
#: The first with gradual memory reclaim, mirrored networking and wslinfo.
GOOD_WSL = (2, 0, 0)
_UPDATE = in_windows("wsl --update")
#: They leak one by one, and sessions fail at some hundred: https://github.com/microsoft/WSL/issues/41242, 40650
MANY_RELAYS = 20


@check("wsl.kernel", "Linux kernel")
def kernel(machine: Evidence) -> Outcome:
    """CUDA under WSL2 needs Linux 5.10.43 or newer."""
    if machine.wsl == 1:
        return problem(say("this is WSL 1, which has no GPU"), in_windows("wsl --set-version DISTRO 2"))
    if not machine.release:
        return unknown(say("the kernel's release cannot be read"))
    if machine.wsl and version(machine.release) < MIN_KERNEL:
        return problem(machine.release, _UPDATE)
    return good(machine.release)


@check("wsl.version", "WSL version", "wsl")
def wsl_version(machine: Evidence) -> Outcome:
    """New releases fix crashes, memory reclaim and the GPU driver."""
    installed = ""
    with contextlib.suppress(NoData, SourceError):
        installed = machine.host.run(["wslinfo", "--version"], 2.0).strip()
    if not installed:
        return note(say("too old to report its version"), _UPDATE)
    return note(f"WSL {installed}", _UPDATE) if version(installed) < GOOD_WSL else good(f"WSL {installed}")


@check("wsl.systemd", "systemd")
def systemd(machine: Evidence) -> Outcome:
    """The daemon is a systemd service; without systemd nothing starts it."""
    first = (machine.read("/proc/1/comm") or "").strip()
    if not first:
        return unknown(say("process 1 is not visible"))
    if first == "systemd":
        return good(say("running as process 1"))
    if not machine.wsl:
        return note(say("process 1 is {name}: have this machine's init system start 'wslgpud run'", name=first))
    command = "sudo wslgpud wslconfig set boot.systemd=true"
    remedy = say("{command}   # then, in Windows: wsl --shutdown", command=command)
    return problem(say("off: process 1 is {name}", name=first), remedy)


@check("wsl.stays", "Keeps running", "wsl")
def stays(machine: Evidence) -> Outcome:
    """Windows stops a distro 15 s after its last terminal closes, with all services and trainings in it."""
    config = machine.wslconfig
    if config.error:
        return unknown(config.error)
    timeout = config.parsed.get("general.instanceIdleTimeout") if config.parsed else None
    if isinstance(timeout, int) and timeout < 0:
        return good(say("instanceIdleTimeout={value}: the distro keeps running", value=timeout))
    idle = 15 if timeout is None else int(timeout) / 1000
    return note(
        say("WSL stops this distro {idle_seconds} after its last terminal closes", idle_seconds=idle), KEEPS_RUNNING
    )


@check("wsl.containers", "Room for containers", "wsl")
def containers(machine: Evidence) -> Outcome:
    """Containers of WSL 3 (wslc) run in a virtual machine of their own, which may take half of Windows' RAM as well."""
    ram = machine.windows_ram
    try:
        most = files.containers_bytes(machine.host, ram)
    except files.NotFound as error:
        return unknown(error.message)
    if most is None:
        return skipped(say("this Windows user has none"))
    if ram is None:
        return unknown(say("Windows' RAM is not known"))
    facts = {"wsl_bytes": machine.memory["MemTotal"], "containers_bytes": most, "total_bytes": ram}
    found = say("WSL may take {wsl_bytes} and its containers {containers_bytes} of {total_bytes} in Windows", **facts)
    if facts["wsl_bytes"] + most + WINDOWS_BYTES <= ram:
        return good(found)
    return note(
        found,
        say(
            "wslc settings   # in Windows: a smaller session.memorySize; {command} shows a memory= that leaves room",
            command="wslgpud wslconfig preset training",
        ),
    )


@check("wsl.interop", "Windows programs", "wsl")
def interop(machine: Evidence) -> Outcome:
    """Toast notifications, Windows' memory and VRAM spill all need Windows programs."""
    entry = ""
    with contextlib.suppress(NoData, SourceError):
        entry = next((name for name in machine.host.names(BINFMT) if name.startswith("WSLInterop")), "")
    if not entry:
        return note(
            say("no Windows program can be started: the binfmt_misc entry is gone (microsoft/WSL#8843)"),
            "sudo sh -c 'echo :WSLInterop:M::MZ::/init:PF > /proc/sys/fs/binfmt_misc/register'",
        )
    if not (machine.read(f"{BINFMT}/{entry}") or "enabled").startswith("enabled"):
        return note(say("switched off in binfmt_misc"), f"echo 1 | sudo tee {BINFMT}/{entry}")
    if not machine.host.exists("/run/WSL"):
        return unknown(say("/run/WSL is not visible: this looks like a container"))
    return good(say("{entry} is registered", entry=entry))


@check("wsl.relays", "Relays of ended sessions", "wsl")
def relays(machine: Evidence) -> Outcome:
    """Each holds its connections to Windows; with none left, no session starts, though running programs continue."""
    left = machine.running.count("Relay")  # one that serves a session is named Relay(PID)
    if left < MANY_RELAYS:
        return good(say("{count} are left", count=left))
    remedy = say(
        "save your work, run {update} and {shutdown} in Windows; WSL 2.9.8 ends them itself (microsoft/WSL#41242)",
        update="wsl --update",
        shutdown="wsl --shutdown",
    )
    return problem(say("{count} left behind: new terminals soon hang or end with E_UNEXPECTED", count=left), remedy)


@check("wslconfig.valid", ".wslconfig", "wsl")
def wslconfig_valid(machine: Evidence) -> Outcome:
    """WSL ignores lines that it does not understand, and its warnings are easily missed."""
    return _valid(machine.wslconfig)


@check("wslconf.valid", "wsl.conf", "wsl")
def wsl_conf_valid(machine: Evidence) -> Outcome:
    """WSL reads nothing below the first line that it does not understand."""
    return _valid(machine.wsl_conf)


def _valid(file: WslConfig) -> Outcome:
    path, parsed, error = file
    if error:
        return unknown(error)
    if parsed is None:
        return good(say("there is no {path}: every setting is at its default", path=path))
    found = remarks(parsed)
    if not found:
        return good(say("{path}: nothing to report", path=path))
    summary = says(
        "{count} remark on {path} (line {lines})",
        "{count} remarks on {path} (lines {lines})",
        count=len(found),
        path=path,
        lines=tuple(remark.line for remark in found),
    )
    if any(remark.wsl for remark in found):
        return problem(say("{remarks}; WSL ignores some of these lines", remarks=summary), "wslgpud wslconfig check")
    return note(summary, "wslgpud wslconfig check")


@check("wslconfig.in_force", "Limits in force", "wsl")
def wslconfig_in_force(machine: Evidence) -> Outcome:
    """A limit protects nothing until WSL is restarted."""
    _, parsed, error = machine.wslconfig
    if error:
        return unknown(error)
    if parsed is None:
        return skipped(say("there is no .wslconfig"))
    waiting = tuple(_waits(row) for row in compare.rows(parsed, machine.host) if row.match == "waiting")
    if not waiting:
        return good(say("all settings visible from here are in force"))
    remedy = say("{command}   # in Windows; ends everything that runs in WSL", command="wsl --shutdown")
    return problem(say("not in force: {settings}", settings=waiting), remedy)


def _waits(row: compare.SettingRow) -> str | Message:
    if row.key.name == "kernelCommandLine":  # too long to show twice
        return row.key.name
    wanted, has = compare.quoted(row.key, row.wanted), compare.measured(row.key, row.has)
    return say("{setting}={wanted} (now {has})", setting=row.key.name, wanted=wanted, has=has)
