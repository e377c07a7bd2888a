"""Mistakes in .wslconfig and wsl.conf, with their fixes: WSL's own warnings, and silent ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from wslgpud.advise.wslconfig import together, unknown
from wslgpud.advise.wslconfig.presets import GIB, WINDOWS_BYTES
from wslgpud.advise.wslconfig.unknown import Advice
from wslgpud.probes.interop import WSL_CONF_PATH
from wslgpud.probes.wsl_config import Entry, Parsed
from wslgpud.probes.wsl_keys import WSL_CONF, WSLCONFIG, WslFile, WslKey
from wslgpud.words import Message, MessageLike, say, template

#: number of settings listed that a bad line keeps from taking effect
_MAX_NAMES = 6
#: a smaller size is a forgotten unit: nobody means kilobytes
_NO_UNIT_BYTES = 1 << 24
#: too little for any training
_MIN_BYTES = 2 * GIB

#: Files that people name by mistake, or a folder. Kernels are called bzImage, vmlinux or Image, often with a version
#: after a dot, so that not every ending says something.
_NO_KERNEL = re.compile(
    r"[\\/]$|\.(ya?ml|json|toml|txt|md|conf|cfg|config|ini|sh|bat|cmd|ps1|exe|msi|dll|vhdx?|iso|tar|zip|7z|deb|rpm|whl)$",
    re.IGNORECASE,
)

_BLIND = template("neither Windows' memory nor VRAM spill can be seen, and no toast can be shown")
#: key and value -> why it is wrong, and the fix
_REGRETTED = {
    ("gpu.enabled", "False"): (template("this distro has no GPU"), template("delete the line")),
    ("gpu.appendLibPath", "False"): (
        template("programs do not find the driver's libraries (/usr/lib/wsl/lib)"),
        template("delete the line"),
    ),
    ("interop.enabled", "False"): (_BLIND, template("delete the line")),
    ("wsl2.hostFileSystemAccess", "False"): (_BLIND, template("delete the line")),
    ("automount.enabled", "False"): (
        template("Windows drives are not mounted: .wslconfig cannot be read, and no Windows program started"),
        template("delete the line, or mount C: on /mnt/c in /etc/fstab (type drvfs)"),
    ),
    ("automount.cgroups", "'v1'"): (
        template("with cgroup v1 no group's memory pressure can be seen"),
        template("delete the line"),
    ),
    ("experimental.sparseVhd", "True"): (
        template("current releases ignore it: sparse disks have lost data"),
        template("delete the line; to reclaim space: wsl --shutdown, then Optimize-VHD or diskpart's compact vdisk"),
    ),
    ("wsl2.vmIdleTimeout", "60000"): (
        template("it is the default and frees no memory (autoMemoryReclaim does)"),
        template("delete the line"),
    ),
    ("experimental.autoMemoryReclaim", "'Gradual'"): (
        template("up to WSL 2.9.4 it also pushes the memory of idle programs to swap"),
        template("write autoMemoryReclaim=dropCache, the default"),
    ),
    ("experimental.autoMemoryReclaim", "'Disabled'"): (
        template("Windows gets the page cache of Linux back only when WSL ends"),
        template("delete the line"),
    ),
    ("wsl2.safeMode", "True"): (
        template("no GPU, no swap, no network, no systemd"),
        template("delete the line once the distro is repaired"),
    ),
    ("wsl2.gpuSupport", "False"): (template("the virtual machine has no GPU"), template("delete the line")),
    ("wsl2.swap", "0"): (
        template("without swap the first shortage of memory kills programs"),
        template("write swap=8GB or more"),
    ),
}


class Remark(NamedTuple):
    """A remark on a line: ``wsl`` is WSL's own warning (empty if WSL is silent)."""

    line: int
    wsl: str
    why: MessageLike
    fix: MessageLike


def remarks(parsed: Parsed, host_memory_bytes: int | None = None, host_processors: int | None = None) -> list[Remark]:
    """Return all remarks, in the order of lines; takes Windows' RAM and processors, if known."""
    found: list[Remark] = []
    for entry in parsed.entries:
        if entry.warnings:
            found.append(Remark(entry.line, entry.warnings[0], *_warned(entry, parsed)))
        elif entry.key is not None:
            found += (Remark(entry.line, "", *advice) for advice in _silent(entry, entry.key, host_memory_bytes))
        wanted, has = entry.result, host_processors or 0
        if entry.key is WSLCONFIG.by_path["wsl2.processors"] and isinstance(wanted, int) and 0 < has < wanted:
            # WSL's own warning at its start.
            wsl = "wsl2.processors cannot exceed the number of logical processors on the system"
            why = say("WSL uses all processors that Windows has")
            fix = say("write {setting} or less", setting=f"processors={host_processors}")
            found.append(Remark(entry.line, f"{wsl} ({wanted} > {host_processors})", why, fix))
    found += (Remark(entry.line, wsl, why, fix) for entry, wsl, why, fix in together.findings(parsed))
    if parsed.file is WSL_CONF and parsed.windows_line:
        why = say("WSL 2.3.26 and earlier read no file with Windows' line ends (microsoft/WSL#12502)")
        fix = say("give it those of Linux: {command}", command=f"sudo sed -i 's/\\r$//' {WSL_CONF_PATH}")
        found.append(Remark(parsed.windows_line, "", why, fix))
    return sorted(found, key=lambda remark: (remark.line, remark.wsl))


def _warned(entry: Entry, parsed: Parsed) -> Advice:
    if entry.state == "unreadable":
        why, fix = _unreadable(entry, parsed.file)
        return (why if parsed.file.forgiving else _stops(parsed.lost)), fix
    if entry.state == "unknown":
        return unknown.advice(entry, parsed)
    if entry.state == "duplicate":
        why = say("WSL takes the first of two lines with the same key and ignores this one")
        return why, say("delete one of them")
    return say("WSL ignores the line and uses its default"), _right_form(entry.key, entry.value)


def _stops(lost: Sequence[Entry]) -> MessageLike:
    settings = tuple(entry.written for entry in lost if entry.written)[:_MAX_NAMES]
    if not settings:
        return say("WSL reads nothing below this line")
    return say("WSL reads nothing below this line; not in force: {settings}", settings=settings)


def _right_form(key: WslKey | None, value: str) -> MessageLike:
    if key is None or key.kind in ("text", "path"):
        return say("correct the value")
    if key.kind == "size":
        return _right_size(key, value)
    if key.kind in ("bool", "choice"):
        choices = key.choices or ("true", "false")
        by_name = {choice.lower(): choice for choice in choices}
        near = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(value.lower())
        if key.kind == "choice":
            near = next(iter(difflib.get_close_matches(value.lower(), by_name, n=1)), None)
        return _write(key, by_name[near]) if near else say("write one of {choices}", choices=choices)
    return {
        "integer": say("write a whole number"),
        "ports": say("write ports from 1 to 65535, separated by commas"),
        "address": say("write an IPv4 address"),
    }.get(key.kind, say("write an address like 01:23:45:67:89:ab"))


def _write(key: WslKey, value: str) -> Message:
    return say("write {setting}", setting=f"{key.name}={value}")


def _right_size(key: WslKey, value: str) -> MessageLike:
    plain = value.replace(" ", "").upper().replace("IB", "B").replace(",", ".")
    number = plain.rstrip("BKMGT")
    unit = plain[len(number) :] or "GB"
    try:
        count, whole = float(number), int(float(number))
    except (ValueError, OverflowError):
        return say("write swap=8GB (or swap=0 for none)") if key.name == "swap" else _write(key, "8GB")
    if count != whole and unit[:1] in "TGM":
        smaller = {"T": "GB", "G": "MB", "M": "KB"}[unit[:1]]
        return say("write {setting} (whole numbers only)", setting=f"{key.name}={round(count * 1024)}{smaller}")
    return say("write {setting} (upper case, no space, no fraction)", setting=f"{key.name}={whole}{unit}")


def _silent(entry: Entry, key: WslKey, host_memory_bytes: int | None) -> Iterator[Advice]:
    """Return mistakes that WSL does not warn about."""
    if key.kind == "size" and isinstance(entry.result, int):
        yield from _odd_size(entry, key, entry.result, host_memory_bytes)
    if key.kind == "path" and any(char in entry.value for char in "\t\n\b"):
        why = say(r"a single backslash turns \t, \n and \b into a tab, a line break, a backspace")
        yield why, say(r"double every \ in the path")
    if not entry.value.isascii():
        fix = say("use a path without such characters") if key.kind == "path" else say("use ASCII characters only")
        yield say("WSL garbles every character that is not ASCII"), fix
    yield from _meaning(entry, key)


def _odd_size(entry: Entry, key: WslKey, result: int, host_memory_bytes: int | None) -> Iterator[Advice]:
    most_bytes = max((host_memory_bytes or 0) - WINDOWS_BYTES, _MIN_BYTES)
    if 0 < result < _NO_UNIT_BYTES:
        why = say("a size without a unit is in bytes")
        if key.name == "memory":
            why = say(
                "a size without a unit is in bytes: the virtual machine gets 256 MiB and does not start "
                "(microsoft/WSL#11144)"
            )
        yield why, _write(key, f"{entry.value}{'MB' if result >= 512 else 'GB'}")
    elif key.name == "memory" and result < _MIN_BYTES:
        yield say("{value} is too little for training", value=entry.value), say("write memory=8GB or more")
    elif key.name == "memory" and host_memory_bytes and result > most_bytes:
        why = say(
            "Windows has {total_bytes} and keeps less than {least_bytes} of it: both will swap",
            total_bytes=host_memory_bytes,
            least_bytes=WINDOWS_BYTES,
        )
        yield why, say("write {setting} or less", setting=f"memory={most_bytes // GIB}GB")


def _meaning(entry: Entry, key: WslKey) -> Iterator[Advice]:
    if key.path == "wsl2.kernel" and _NO_KERNEL.search(entry.value):
        yield say("this is no Linux kernel: WSL does not start with it"), say("delete the line, for WSL's own kernel")
    elif key.name == "kernelCommandLine" and "sysctl.vm.overcommit_memory=1" in entry.value.split():
        why = say("with overcommit_memory=1 no allocation ever fails: programs are killed instead")
        yield why, say("remove sysctl.vm.overcommit_memory=1 from the line")
    elif key.path == "automount.options" and _refuses_all(entry.value):
        yield Message(_BLIND), say("write fmask=11 in the options: with that mask no Windows program can be started")
    elif regretted := _REGRETTED.get((key.path, repr(entry.result))):
        yield Message(regretted[0]), Message(regretted[1])
    if key.old_section and entry.written.lower().startswith(f"{key.old_section}."):
        why = say("it has moved to [{section}]; WSL still accepts it here", section=key.section)
        yield why, say("move the line below a line [{section}]", section=key.section)


def _refuses_all(options: str) -> bool:
    """Return whether these options remove execute permission for everybody; root needs one such bit, too.

    https://github.com/mame/wsl2-ssh-agent/issues/15, https://github.com/microsoft/WSL/issues/13104
    """
    taken = 0
    for digits in re.findall(r"\b[uf]mask=([0-7]{1,4})\b", options):
        taken |= int(digits, 8)
    return taken & 0o111 == 0o111


#: https://github.com/microsoft/wslg/wiki/Controlling-WSLg-frequently-used-settings
_OF_WSLG = "[system-distro-env]"


def _unreadable(entry: Entry, file: WslFile) -> Advice:
    warning = entry.warnings[0]
    if warning.startswith(("Expected ']'", "Invalid section", "Expected ' '")):
        why = say("WSL skips the header, so the lines below it land in the wrong section")
        name, found, setting = entry.value.partition("]")
        if found and "=" in setting:
            facts = {"setting": setting.strip(), "header": f"{name}]"}
            return why, say("write {setting} on a line of its own below {header}", **facts)
        if entry.value.strip() == _OF_WSLG:
            return why, say("move it with its lines to {file}, which WSLg reads", file=".wslgconfig")
        return why, say("write it like {header}", header=f"[{file.keys[0].section}]")
    fix = say('close the "')
    if warning.startswith("Invalid key name"):
        fix = say("start comments with # (never with ;) and keys with a letter")
    elif warning.startswith("Invalid escaped character"):
        fix = say(r"double every backslash: C:\\Users\\me\\swap.vhdx")
    elif warning.startswith("Expected '='"):
        fix = say("write key=value")
    return say("WSL skips the line"), fix
