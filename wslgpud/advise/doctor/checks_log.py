"""The kernel log: whether it can be read, and what in it precedes an end of the whole virtual machine."""

from __future__ import annotations

import contextlib
import os

from wslgpud.advise.doctor.checking import Evidence, Outcome, check, good, in_windows, note, problem, unknown
from wslgpud.host import NoData, SourceError
from wslgpud.sources.kernel_log import PRECEDES_THE_END, KernelLogSource, parse_line
from wslgpud.words import Message, say, says, template

#: of each kind: how it is told, and what helps
_SIGNS: dict[str, tuple[str, Message]] = {
    # ext4 turns read-only, then the distro does not start (E_UNEXPECTED): https://github.com/microsoft/WSL/issues/8340,
    # 6220, 10194, 40450; https://learn.microsoft.com/windows/wsl/disk-space#how-to-repair-a-vhd-mounting-error
    "disk": (
        template("the distro's disk fails, most likely because the Windows drive is full: {line}"),
        say(
            "free up the Windows drive, then run 'wsl --shutdown' there; if it goes on: "
            "https://learn.microsoft.com/windows/wsl/disk-space#how-to-repair-a-vhd-mounting-error"
        ),
    ),
    # Windows had no memory left for the VM: https://github.com/microsoft/WSL/issues/5410
    "stall": (
        template("the processors of this VM stood still, as when Windows runs out of memory: {line}"),
        say("a smaller memory= below [wsl2] in .wslconfig; close programs in Windows"),
    ),
    # Every terminal then ends with "Catastrophic failure": https://github.com/microsoft/WSL/issues/13263, 40458
    "init": (template("the kernel killed what WSL itself runs on: {line}"), in_windows("wsl --shutdown")),
}


@check("kernel.log", "Signs of a crash", "wsl")
def signs(machine: Evidence) -> Outcome:
    """Before WSL ends with "Catastrophic failure" (E_UNEXPECTED), its kernel tends to say why."""
    found: dict[str, str] = {}
    count = 0
    with contextlib.closing(KernelLogSource(machine.host, machine.config)) as source:
        for line in filter(None, map(parse_line, source.records())):
            for kind, pattern in PRECEDES_THE_END.items():
                if pattern.match(line.text):
                    count, found[kind] = count + 1, line.text
    if not found:
        return good(say("none since boot"))
    kind, text = next(iter(found.items()))
    lines = says("{count} line since boot", "{count} lines since boot", count=count)
    told, remedy = _SIGNS[kind]
    return problem(say("{sign} ({lines})", sign=Message(told, {"line": text[:120]}), lines=lines), remedy)


@check("rights.kernel_log", "Kernel log")
def kernel_log(machine: Evidence) -> Outcome:
    """Only there does it say who was killed, and what the GPU driver reported."""
    try:
        if machine.host.live:
            os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_CLOEXEC))  # reading would wait
        else:
            machine.host.read("/dev/kmsg")
    except NoData:
        return unknown(say("there is no {path}", path="/dev/kmsg"))
    except (OSError, SourceError):
        command = "sudo sysctl kernel.dmesg_restrict=0"
        remedy = say("{command}   # or install the service, which may read it", command=command)
        return note(say("hidden from this user"), remedy)
    return good(say("readable"))
