"""WSL itself: kernel, version, systemd, interop, .wslconfig, and what its kernel logs before it ends."""

from __future__ import annotations

import contextlib
import os
import re

from wslgpud.advise.doctor.checking import Evidence, Outcome, check, good, in_windows, note, problem, skipped, unknown
from wslgpud.advise.wslconfig import compare, files
from wslgpud.advise.wslconfig.check import remarks
from wslgpud.advise.wslconfig.presets import IDLE, WINDOWS_BYTES
from wslgpud.host import NoData, SourceError
from wslgpud.probes.interop import BINFMT
from wslgpud.probes.wsl_config import Parsed
from wslgpud.sources.kernel_lines import PRECEDES_THE_END, LineParser, parse_line
from wslgpud.sources.logs import KernelLogSource
from wslgpud.words import TEMPLATES, Message, MessageLike, cause, say, says, template

#: the key, which older releases of WSL know as well, comes before our scheduled task
KEEPS_RUNNING = say(
    "[general]\ninstanceIdleTimeout=-1   # in .wslconfig, as the switch in WSL Settings writes it (since 2.9.5); or: "
    "wslgpud wslconfig apply training"
)
#: CUDA under WSL: https://docs.nvidia.com/cuda/wsl-user-guide/
MIN_KERNEL = (5, 10, 43)
#: The first with gradual memory reclaim, mirrored networking and wslinfo.
GOOD_WSL = (2, 0, 0)
_UPDATE = in_windows("wsl --update")
#: They leak one by one, and sessions fail at some hundred: https://github.com/microsoft/WSL/issues/41242, 40650
MANY_RELAYS = 20


def version(said: str) -> tuple[int, ...]:
    """Return the numbers of a version: ``12.8`` and ``2.7.1+cu128`` compare as people expect."""
    return tuple(int(n) for n in re.findall(r"\d+", said.partition("+")[0])[:3])


@check("wsl.kernel", "Linux kernel")
def kernel(machine: Evidence) -> Outcome:
    """CUDA under WSL2 needs Linux 5.10.43 or newer."""
    if machine.wsl == 1:
        return problem("this is WSL 1, which has no GPU", in_windows("wsl --set-version DISTRO 2"))
    old = machine.wsl and version(machine.release) < MIN_KERNEL
    return Outcome("problem" if old else "good", machine.release, _UPDATE if old else "")


@check("wsl.version", "WSL version", "wsl")
def wsl_version(machine: Evidence) -> Outcome:
    """New releases fix crashes, memory reclaim and the GPU driver."""
    installed = ""
    with contextlib.suppress(NoData, SourceError):
        installed = machine.host.run(["wslinfo", "--version"], 2.0).strip()
    if not installed:
        return note("too old to report its version", _UPDATE)
    old = version(installed) < GOOD_WSL
    return Outcome("note" if old else "good", f"WSL {installed}", _UPDATE if old else "")


@check("wsl.systemd", "systemd")
def systemd(machine: Evidence) -> Outcome:
    """The daemon is a systemd service; without systemd nothing starts it."""
    first = machine.host.read("/proc/1/comm").strip()
    if first == "systemd":
        return good("running as process 1")
    if not machine.wsl:
        return note("process 1 is {name}: have this machine's init system start 'wslgpud run'", name=first)
    command = "sudo wslgpud wslconfig set boot.systemd=true"
    remedy = say("{command}   # then, in Windows: wsl --shutdown", command=command)
    return problem("off: process 1 is {name}", remedy, name=first)


@check("wsl.stays", "Keeps running", "wsl")
def stays(machine: Evidence) -> Outcome:
    """Windows stops a distro 15 s after its last terminal closes, with all services and trainings in it."""
    _, parsed, error = machine.wslconfig
    if error:
        return Outcome("could not tell", error)
    timeout = parsed.get(IDLE) if parsed else None
    if isinstance(timeout, int) and timeout < 0:
        return good("instanceIdleTimeout={value}: the distro keeps running", value=timeout)
    idle = 15 if timeout is None else int(timeout) / 1000
    return note("WSL stops this distro {idle_seconds} after its last terminal closes", KEEPS_RUNNING, idle_seconds=idle)


@check("wsl.containers", "Room for containers", "wsl")
def containers(machine: Evidence) -> Outcome:
    """Containers of WSL 3 (wslc) run in a virtual machine of their own, which may take half of Windows' RAM as well."""
    ram = machine.windows_ram
    most = files.containers_bytes(machine.host, ram)
    if most is None:
        return skipped("this Windows user has none")
    if ram is None:
        return unknown("Windows' RAM is not known")
    facts = {"wsl_bytes": machine.memory["MemTotal"], "containers_bytes": most, "total_bytes": ram}
    found = say("WSL may take {wsl_bytes} and its containers {containers_bytes} of {total_bytes} in Windows", **facts)
    if facts["wsl_bytes"] + most + WINDOWS_BYTES <= ram:
        return good(found)
    remedy = say(
        "wslc settings   # in Windows: a smaller session.memorySize; {command} shows a memory= that leaves room",
        command="wslgpud wslconfig preset training",
    )
    return note(found, remedy)


@check("wsl.interop", "Windows programs", "wsl")
def interop(machine: Evidence) -> Outcome:
    """Toast notifications, Windows' memory and VRAM spill all need Windows programs."""
    entry = ""
    with contextlib.suppress(NoData, SourceError):
        entry = next((name for name in machine.host.names(BINFMT) if name.startswith("WSLInterop")), "")
    if not entry:
        return note(
            "no Windows program can be started: the binfmt_misc entry is gone (microsoft/WSL#8843)",
            "sudo sh -c 'echo :WSLInterop:M::MZ::/init:PF > /proc/sys/fs/binfmt_misc/register'",
        )
    if not (machine.read(f"{BINFMT}/{entry}") or "enabled").startswith("enabled"):
        return note("switched off in binfmt_misc", f"echo 1 | sudo tee {BINFMT}/{entry}")
    if not machine.host.exists("/run/WSL"):
        return unknown("/run/WSL is not visible: this looks like a container")
    return good("{entry} is registered", entry=entry)


@check("wsl.relays", "Relays of ended sessions", "wsl")
def relays(machine: Evidence) -> Outcome:
    """Each holds its connections to Windows; with none left, no session starts, though running programs continue."""
    left = machine.running.count("Relay")  # one that serves a session is named Relay(PID)
    if left < MANY_RELAYS:
        return good("{count} are left", count=left)
    remedy = say(
        "save your work, run {update} and {shutdown} in Windows; WSL 2.9.8 ends them itself (microsoft/WSL#41242)",
        update="wsl --update",
        shutdown="wsl --shutdown",
    )
    return problem("{count} left behind: new terminals soon hang or end with E_UNEXPECTED", remedy, count=left)


@check("wslconfig.valid", ".wslconfig", "wsl")
def wslconfig_valid(machine: Evidence) -> Outcome:
    """WSL ignores lines that it does not understand, and its warnings are easily missed."""
    return _valid(*machine.wslconfig)


@check("wslconf.valid", "wsl.conf", "wsl")
def wsl_conf_valid(machine: Evidence) -> Outcome:
    """WSL reads nothing below the first line that it does not understand."""
    return _valid(*machine.wsl_conf)


def _valid(path: str, parsed: Parsed | None, error: MessageLike) -> Outcome:
    if error:
        return Outcome("could not tell", error)
    if parsed is None:
        return good("there is no {path}: every setting is at its default", path=path)
    found = remarks(parsed)
    if not found:
        return good("{path}: nothing to report", path=path)
    summary = says(
        "{count} remark on {path} (line {lines})",
        "{count} remarks on {path} (lines {lines})",
        count=len(found),
        path=path,
        lines=tuple(remark.line for remark in found),
    )
    if any(remark.wsl for remark in found):
        return problem("{remarks}; WSL ignores some of these lines", "wslgpud wslconfig check", remarks=summary)
    return note(summary, "wslgpud wslconfig check")


@check("wslconfig.in_force", "Limits in force", "wsl")
def wslconfig_in_force(machine: Evidence) -> Outcome:
    """A limit protects nothing until WSL is restarted."""
    _, parsed, error = machine.wslconfig
    if error:
        return Outcome("could not tell", error)
    if parsed is None:
        return skipped("there is no .wslconfig")
    waiting = tuple(_waits(row) for row in compare.rows(parsed, machine.host) if row.match == "waiting")
    if not waiting:
        return good("all settings visible from here are in force")
    remedy = say("{command}   # in Windows; ends everything that runs in WSL", command="wsl --shutdown")
    return problem("not in force: {settings}", remedy, settings=waiting)


def _waits(row: compare.SettingRow) -> str | Message:
    if row.key.name == "kernelCommandLine":  # too long to show twice
        return row.key.name
    wanted, has = compare.quoted(row.key, row.wanted), compare.measured(row.key, row.has)
    return say("{setting}={wanted} (now {has})", setting=row.key.name, wanted=wanted, has=has)


#: The daemon warns of these as they happen, in the same words. Connections without memory precede E_UNEXPECTED:
#: https://github.com/microsoft/WSL/issues/40458
_RULES: dict[tuple[str, tuple[str, ...]], str] = {
    ("vmbus_starved", ()): "sessions_blocked",
    ("dxg_error", ("dxgkio_make_resident", "ENOMEM")): "vram_residency_failed",
    ("dxg_error", ("dxgkio_create_allocation", "EOVERFLOW")): "gpu_allocation_refused",
    ("dxg_error", ("dxgkio_create_allocation", "ENOMEM")): "gpu_allocation_refused",
}
#: ext4 turns read-only, then the distro does not start (E_UNEXPECTED): https://github.com/microsoft/WSL/issues/8340,
#: 6220, 6401, 10194, 40450
_DISK = "disk_failing"
_WARNED_OF = {
    rule: (TEMPLATES["rule"][rule]["title"], Message(TEMPLATES["rule"][rule]["advice"]))
    for rule in (_DISK, *_RULES.values())
}
#: by kind, the worst first: title and remedy
_SIGNS: dict[str, tuple[str, Message]] = {
    # Afterwards every terminal ends with "Catastrophic failure": https://github.com/microsoft/WSL/issues/13263, 40458
    "init": (template("the kernel killed one of WSL's own processes"), in_windows("wsl --shutdown")),
    _DISK: _WARNED_OF[_DISK],
    # Windows had no memory left for the VM, or was hibernated: https://github.com/microsoft/WSL/issues/5410, 9972
    "stall": (
        template("this VM stalled, as when Windows runs out of memory, its disk hangs or it hibernates"),
        say("close programs in Windows, or set a smaller memory= below [wsl2] in .wslconfig; then wsl --shutdown"),
    ),
    "library": (template("a library of the GPU driver crashed"), Message(TEMPLATES["driver"]["crash"])),
    **_WARNED_OF,
}


@check("kernel.log", "Signs of a crash", "wsl")
def signs(machine: Evidence) -> Outcome:
    """Before WSL ends with "Catastrophic failure" (E_UNEXPECTED), its kernel usually logs the reason."""
    if not _log_readable(machine):
        return unknown("hidden from this user: {command}", command="sudo wslgpud doctor")
    found: dict[str, list[str]] = {}
    story = LineParser()
    with contextlib.closing(KernelLogSource(machine.host, machine.config)) as source:
        for line in filter(None, map(parse_line, source.records())):
            kinds = [kind for kind, pattern in PRECEDES_THE_END.items() if pattern.match(line.text)]
            if (event := story.add(line.text)) is not None:
                rule = _DISK if event.kind == "disk_error" else _RULES.get((event.kind, event.labels))
                kinds += [rule] if rule else []
            for kind in kinds:
                found.setdefault(kind, []).append(line.text)
    for kind, (title, remedy) in _SIGNS.items():
        if seen := found.get(kind):
            lines = says("{count} line since boot", "{count} lines since boot", count=len(seen))
            return problem("{title}: {line} ({lines})", remedy, title=Message(title), line=seen[-1][:120], lines=lines)
    return good("none since boot")


@check("rights.kernel_log", "Kernel log")
def kernel_log(machine: Evidence) -> Outcome:
    """Only the kernel log shows which process was killed, and the errors of the GPU driver."""
    daemon = machine.daemon_sources.get(KernelLogSource.name)
    if daemon == "ok":
        return good("the daemon reads it")
    readable, refused = _log_readable(machine), daemon == "absent"
    if readable and not refused:
        return good("readable")
    command = lasting_sysctl("kernel.dmesg_restrict", 0)
    remedy = say("{command}   # or install the service, which may read it", command=command)
    return note(say("hidden from the daemon") if refused else say("hidden from this user"), remedy)


def lasting_sysctl(name: str, value: int) -> str:
    """Return a command that sets a kernel setting, now and at each boot.

    In a separate file: appending could hit a file without a final newline, and pasting it twice would add it twice.
    """
    return f"echo {name}={value} | sudo tee /etc/sysctl.d/99-{name}.conf && sudo sysctl --system"


def _log_readable(machine: Evidence) -> bool:
    """Return whether this user may read the kernel log. Raises NoData: there is none."""
    try:
        if machine.host.live:
            os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_CLOEXEC))  # reading would block
        else:
            machine.host.read("/dev/kmsg")
    except (PermissionError, SourceError):
        return False
    except OSError as error:  # containers often have the file without the device
        raise NoData("cannot open {path}: {why}", path="/dev/kmsg", why=cause(error)) from error
    return True
