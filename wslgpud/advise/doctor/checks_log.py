"""The kernel log: whether it can be read, and signs that precede a crash of the virtual machine."""

from __future__ import annotations

import contextlib
import os

from wslgpud.advise.doctor.checking import (
    Evidence,
    Outcome,
    check,
    good,
    in_windows,
    lasting_sysctl,
    note,
    problem,
    unknown,
)
from wslgpud.host import NoData, SourceError
from wslgpud.sources.kernel_lines import PRECEDES_THE_END, LineParser, parse_line
from wslgpud.sources.kernel_log import KernelLogSource
from wslgpud.words import TEMPLATES, Message, cause, say, says, template

#: by kind, the worst first: message and remedy
_SIGNS: dict[str, tuple[str, Message]] = {
    # Afterwards every terminal ends with "Catastrophic failure": https://github.com/microsoft/WSL/issues/13263, 40458
    "init": (template("the kernel killed one of WSL's own processes: {line}"), in_windows("wsl --shutdown")),
    # Windows had no memory left for the VM, or was hibernated: https://github.com/microsoft/WSL/issues/5410, 9972
    "stall": (
        template("this VM stalled, as when Windows runs out of memory, its disk hangs or it hibernates: {line}"),
        say("close programs in Windows, or set a smaller memory= below [wsl2] in .wslconfig; then wsl --shutdown"),
    ),
    "library": (template("a library of the GPU driver crashed: {line}"), Message(TEMPLATES["driver"]["crash"])),
}
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
_WORST_FIRST = ("init", _DISK, *_SIGNS, *_RULES.values())


@check("kernel.log", "Signs of a crash", "wsl")
def signs(machine: Evidence) -> Outcome:
    """Before WSL ends with "Catastrophic failure" (E_UNEXPECTED), its kernel usually logs the reason."""
    if not _readable(machine):
        return unknown(say("hidden from this user: {command}", command="sudo wslgpud doctor"))
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
    for kind in _WORST_FIRST:
        if kind in found:
            lines = says("{count} line since boot", "{count} lines since boot", count=len(found[kind]))
            sign, remedy = _told(kind, found[kind][-1][:120])
            return problem(say("{sign} ({lines})", sign=sign, lines=lines), remedy)
    return good(say("none since boot"))


def _told(kind: str, line: str) -> tuple[Message, Message]:
    if kind in _SIGNS:
        told, remedy = _SIGNS[kind]
        return Message(told, {"line": line}), remedy
    texts = TEMPLATES["rule"][kind]
    return say("{title}: {line}", title=Message(texts["title"]), line=line), Message(texts["advice"])


@check("rights.kernel_log", "Kernel log")
def kernel_log(machine: Evidence) -> Outcome:
    """Only the kernel log shows which process was killed, and the errors of the GPU driver."""
    daemon = machine.daemon_sources.get(KernelLogSource.name)
    if daemon == "ok":
        return good(say("the daemon reads it"))
    readable, refused = _readable(machine), daemon == "absent"
    if readable and not refused:
        return good(say("readable"))
    command = lasting_sysctl("kernel.dmesg_restrict", 0)
    remedy = say("{command}   # or install the service, which may read it", command=command)
    return note(say("hidden from the daemon") if refused else say("hidden from this user"), remedy)


def _readable(machine: Evidence) -> bool:
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
