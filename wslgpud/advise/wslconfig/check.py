"""Mistakes in .wslconfig and wsl.conf, with their fixes: WSL's own warnings, and silent ones.

What deprives another setting of its effect is in ``Config::Initialize`` of src/windows/common/WslCoreConfig.cpp, and in
``WslCoreVm::ValidateNetworkingMode`` (src/windows/service/exe/WslCoreVm.cpp), which warns at each start:
https://github.com/microsoft/WSL.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from wslgpud.advise.wslconfig.presets import GIB, IDLE, WINDOWS_BYTES
from wslgpud.probes.interop import WSL_CONF_PATH
from wslgpud.probes.wsl_config import FOLKLORE, REMOVED, WSL_CONF, WSLCONFIG, Entry, Parsed, Value, WslKey
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
#: https://github.com/microsoft/wslg/wiki/Controlling-WSLg-frequently-used-settings
_OF_WSLG = "[system-distro-env]"
#: Key that people write below [automount] -> the option of ``options=`` that does it:
#: https://learn.microsoft.com/windows/wsl/wsl-config#automount-options
_MOUNT_OPTIONS = {name: name for name in ("uid", "gid", "umask", "fmask", "dmask", "metadata", "case")} | {
    "defaultuid": "uid",
    "defaultgid": "gid",
}
_DELETE = say("delete the line")
_BLIND = say("neither Windows' memory nor VRAM spill can be seen, and no toast can be shown")
#: key and value -> why it is wrong, and the fix
_REGRETTED: dict[tuple[str, str], tuple[MessageLike, MessageLike]] = {
    ("gpu.enabled", "False"): (say("this distro has no GPU"), _DELETE),
    ("gpu.appendLibPath", "False"): (say("programs do not find the driver's libraries (/usr/lib/wsl/lib)"), _DELETE),
    ("interop.enabled", "False"): (_BLIND, _DELETE),
    ("wsl2.hostFileSystemAccess", "False"): (_BLIND, _DELETE),
    ("automount.enabled", "False"): (
        say("Windows drives are not mounted: .wslconfig cannot be read, and no Windows program started"),
        say("delete the line, or mount C: on /mnt/c in /etc/fstab (type drvfs)"),
    ),
    ("automount.cgroups", "'v1'"): (say("with cgroup v1 no group's memory pressure can be seen"), _DELETE),
    ("experimental.sparseVhd", "True"): (
        say("current releases ignore it: sparse disks have lost data"),
        say("delete the line; to reclaim space: wsl --shutdown, then Optimize-VHD or diskpart's compact vdisk"),
    ),
    ("wsl2.vmIdleTimeout", "60000"): (say("it is the default and frees no memory (autoMemoryReclaim does)"), _DELETE),
    ("experimental.autoMemoryReclaim", "'Gradual'"): (
        say("up to WSL 2.9.4 it also pushes the memory of idle programs to swap"),
        say("write autoMemoryReclaim=dropCache, the default"),
    ),
    ("experimental.autoMemoryReclaim", "'Disabled'"): (
        say("Windows gets the page cache of Linux back only when WSL ends"),
        _DELETE,
    ),
    ("wsl2.safeMode", "True"): (
        say("no GPU, no swap, no network, no systemd"),
        say("delete the line once the distro is repaired"),
    ),
    ("wsl2.gpuSupport", "False"): (say("the virtual machine has no GPU"), _DELETE),
    ("wsl2.swap", "0"): (
        say("without swap the first shortage of memory kills programs"),
        say("write swap=8GB or more"),
    ),
}

_MIRRORED, _BRIDGED, _TUNNELED = "networkingMode=mirrored", "networkingMode=bridged", "dnsTunneling=true"
#: WSL's own words, see Resources.resw
_PROCESSORS = "wsl2.processors cannot exceed the number of logical processors on the system"
_FORWARDING = "The wsl2.localhostForwarding setting has no effect when using mirrored networking mode"
#: a setting -> that below [wsl2] without which it has no effect
_NEEDS = {
    **dict.fromkeys(("experimental.hostAddressLoopback", "experimental.ignoredPorts"), _MIRRORED),
    **{f"wsl2.{name}": _BRIDGED for name in ("vmSwitch", "macAddress", "dhcp", "dhcpTimeout", "ipv6")},
    **dict.fromkeys(("experimental.bestEffortDnsParsing", "experimental.dnsTunnelingIpAddress"), _TUNNELED),
    "experimental.initialAutoProxyTimeout": "autoProxy=true",
}
_DEFAULTS = {"networkingMode": "nat", "dnsTunneling": "true", "autoProxy": "true"}

#: begin of WSL's warning of a malformed setting -> the fix
_MALFORMED = {
    "Invalid key name": template("start comments with # (never with ;) and keys with a letter"),
    "Invalid escaped character": template(r"double every backslash: C:\\Users\\me\\swap.vhdx"),
    "Expected '='": template("write key=value"),
    'Expected "': template('close the "'),
}
_FORMS = {
    "integer": template("write a whole number"),
    "ports": template("write ports from 1 to 65535, separated by commas"),
    "address": template("write an IPv4 address"),
    "mac": template("write an address like 01:23:45:67:89:ab"),
}


class Remark(NamedTuple):
    """What is wrong with a line, and the fix; ``wsl`` is WSL's own warning (empty if WSL is silent)."""

    why: MessageLike
    fix: MessageLike
    wsl: str = ""
    line: int = 0


def remarks(parsed: Parsed, host_memory_bytes: int | None = None, host_processors: int | None = None) -> list[Remark]:
    """Return all remarks, in the order of lines; takes Windows' RAM and processors, if known."""
    found: list[Remark] = []
    for entry in parsed.entries:
        told: list[Remark] = []
        if entry.warning:
            told = [_warned(entry, parsed)._replace(wsl=entry.warning)]
        elif entry.key is not None:
            told = [*_values(entry, entry.key, host_memory_bytes, host_processors), *_beside(entry, entry.key, parsed)]
        found += [one._replace(line=entry.line) for one in told]
    if parsed.file is WSL_CONF and parsed.windows_line:
        why = say("WSL 2.3.26 and earlier read no file with Windows' line ends (microsoft/WSL#12502)")
        fix = say("give it those of Linux: {command}", command=f"sudo sed -i 's/\\r$//' {WSL_CONF_PATH}")
        found.append(Remark(why, fix, "", parsed.windows_line))
    return sorted(found, key=lambda remark: (remark.line, remark.wsl))


def _warned(entry: Entry, parsed: Parsed) -> Remark:
    if entry.state == "unreadable":
        remark = _unreadable(entry, parsed)
        return remark if parsed.file.forgiving else remark._replace(why=_stops(parsed))
    if entry.state == "unknown":
        return _unknown(entry, parsed)
    if entry.state == "duplicate":
        why = say("WSL takes the first of two lines with the same key and ignores this one")
        return Remark(why, say("delete one of them"))
    return Remark(say("WSL ignores the line and uses its default"), _right_form(entry.key, entry.value))


def _stops(parsed: Parsed) -> MessageLike:
    settings = tuple(entry.written for entry in parsed.lost if entry.written)[:_MAX_NAMES]
    if not settings:
        return say("WSL reads nothing below this line")
    return say("WSL reads nothing below this line; not in force: {settings}", settings=settings)


def _unreadable(entry: Entry, parsed: Parsed) -> Remark:
    for start, fix in _MALFORMED.items():
        if entry.warning.startswith(start):
            return Remark(say("WSL skips the line"), Message(fix))
    why = say("WSL skips the header, so the lines below it land in the wrong section")
    name, bracket, setting = entry.value.partition("]")
    if bracket and "=" in setting:
        facts = {"setting": setting.strip(), "header": f"{name}]"}
        return Remark(why, say("write {setting} on a line of its own below {header}", **facts))
    if entry.value.strip() == _OF_WSLG:
        return Remark(why, say("move it with its lines to {file}, which WSLg reads", file=".wslgconfig"))
    return Remark(why, say("write it like {header}", header=f"[{parsed.file.keys[0].section}]"))


def _unknown(entry: Entry, parsed: Parsed) -> Remark:
    """Return why WSL ignores a key that it does not know there, and the fix: the key that was meant, or its place."""
    name, file = entry.name.lower(), parsed.file
    other = WSL_CONF if file is WSLCONFIG else WSLCONFIG
    alone = other.by_name.get(name) if name not in file.by_name else None
    if _mount_option(entry, parsed):
        options = [str(parsed.get("automount.options") or ""), *(_mount_option(e, parsed) for e in parsed.entries)]
        fix = say("write {setting}", setting=f'options="{",".join(filter(None, options))}"')
        return Remark(say("it is no key of its own, but one of the options of [automount]"), fix)
    if home := other.by_path.get(entry.written.lower()) or alone:
        return _moved_to_other_file(home, entry.value)
    if name in FOLKLORE:
        return Remark(say("guides recommend it, but WSL does not know it"), Message(FOLKLORE[name]))
    if name in REMOVED:
        return Remark(say("WSL knows it no longer: {version} removed it", version=REMOVED[name]), _DELETE)
    if right := file.by_name.get(name):
        return _moved_to_other_section(right, parsed)
    fix = _DELETE
    for near in difflib.get_close_matches(name, file.by_name, n=1, cutoff=0.75):
        right = file.by_name[near]
        fix = say("did you mean {key} (below [{section}])?", key=right.name, section=right.section)
    return Remark(say("no version of WSL knows this key"), fix)


def _mount_option(entry: Entry, parsed: Parsed) -> str:
    """Return a key below [automount] of wsl.conf as the option that is meant; empty if none is."""
    section, _, name = entry.written.lower().partition(".")
    if parsed.file is not WSL_CONF or section != "automount" or entry.state != "unknown":
        return ""
    option = _MOUNT_OPTIONS.get(name, "")
    if option == "metadata":  # a word without a value
        return option
    return f"{option}={entry.value}" if option and entry.value.isalnum() else ""


def _moved_to_other_file(home: WslKey, value: str) -> Remark:
    to_conf = home in WSL_CONF.keys
    # To be pasted into a root shell: it must not contain text of the file.
    command = ["sudo"] * to_conf + ["wslgpud", "wslconfig", "set", f"{home.path}={value}"]
    path = WSL_CONF_PATH if to_conf else WSLCONFIG.name
    why = say("WSL reads it in {path} only, below [{section}]", path=path, section=home.section)
    return Remark(why, say("move it there: {command}", command=shlex.join(command)))


def _moved_to_other_section(right: WslKey, parsed: Parsed) -> Remark:
    section = right.section
    if right.name == "sparseVhd":
        why = say("it belongs below [experimental], where current releases ignore it: disks have lost data")
        return Remark(why, _DELETE)
    if decides := parsed.first(right.path):
        why = say("it belongs below [{section}], where line {line} has it", section=section, line=decides.line)
        return Remark(why, _DELETE)
    why = say(
        "it belongs below [{section}]; until then, {key} is at its default: {default}",
        section=section,
        key=right.name,
        default=Message(right.default) if right.default else say("none"),
    )
    return Remark(why, say("move the line below a line [{section}]", section=section))


def _right_form(key: WslKey | None, value: str) -> MessageLike:
    if key is None or key.kind in ("text", "path"):
        return say("correct the value")
    if key.kind == "size":
        return _right_size(key, value)
    if key.kind in _FORMS:
        return Message(_FORMS[key.kind])
    by_name = {choice.lower(): choice for choice in key.choices or ("true", "false")}
    meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(value.lower(), value.lower())
    for near in difflib.get_close_matches(meant, by_name, n=1):
        return _write(key, by_name[near])
    return say("write one of {choices}", choices=tuple(by_name.values()))


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


def _values(entry: Entry, key: WslKey, memory_bytes: int | None, processors: int | None) -> Iterator[Remark]:
    """Yield mistakes in a value that WSL does not warn about, or only when it starts."""
    if key.kind == "size" and isinstance(entry.result, int):
        yield from _odd_size(entry.value, key, entry.result, memory_bytes)
    if key.kind == "path" and any(char in entry.value for char in "\t\n\b"):
        why = say(r"a single backslash turns \t, \n and \b into a tab, a line break, a backspace")
        yield Remark(why, say(r"double every \ in the path"))
    if not entry.value.isascii():
        fix = say("use a path without such characters") if key.kind == "path" else say("use ASCII characters only")
        yield Remark(say("WSL garbles every character that is not ASCII"), fix)
    if key.path == "wsl2.processors" and isinstance(entry.result, int) and 0 < (processors or 0) < entry.result:
        fix = say("write {setting} or less", setting=f"processors={processors}")
        wsl = f"{_PROCESSORS} ({entry.result} > {processors})"
        yield Remark(say("WSL uses all processors that Windows has"), fix, wsl)
    if key.path == "wsl2.kernel" and _NO_KERNEL.search(entry.value):
        why = say("this is no Linux kernel: WSL does not start with it")
        yield Remark(why, say("delete the line, for WSL's own kernel"))
    if key.name == "kernelCommandLine" and "sysctl.vm.overcommit_memory=1" in entry.value.split():
        why = say("with overcommit_memory=1 no allocation ever fails: programs are killed instead")
        yield Remark(why, say("remove sysctl.vm.overcommit_memory=1 from the line"))
    if key.path == "automount.options" and _refuses_all(entry.value):
        fix = say("write fmask=11 in the options: with that mask no Windows program can be started")
        yield Remark(_BLIND, fix)
    if regretted := _REGRETTED.get((key.path, repr(entry.result))):
        yield Remark(*regretted)


def _odd_size(value: str, key: WslKey, result: int, memory_bytes: int | None) -> Iterator[Remark]:
    most_bytes = max((memory_bytes or 0) - WINDOWS_BYTES, _MIN_BYTES)
    if 0 < result < _NO_UNIT_BYTES:
        why = say("a size without a unit is in bytes")
        if key.name == "memory":
            why = say(
                "a size without a unit is in bytes: the virtual machine gets 256 MiB and does not start "
                "(microsoft/WSL#11144)"
            )
        yield Remark(why, _write(key, f"{value}{'MB' if result >= 512 else 'GB'}"))
    elif key.name == "memory" and 0 < result < _MIN_BYTES:
        yield Remark(say("{value} is too little for training", value=value), say("write memory=8GB or more"))
    elif key.name == "memory" and memory_bytes and result > most_bytes:
        why = say(
            "Windows has {total_bytes} and keeps less than {least_bytes} of it: both will swap",
            total_bytes=memory_bytes,
            least_bytes=WINDOWS_BYTES,
        )
        yield Remark(why, say("write {setting} or less", setting=f"memory={most_bytes // GIB}GB"))


def _refuses_all(options: str) -> bool:
    """Return whether these options remove execute permission for everybody; root needs one such bit, too.

    https://github.com/mame/wsl2-ssh-agent/issues/15, https://github.com/microsoft/WSL/issues/13104
    """
    taken = 0
    for digits in re.findall(r"\b[uf]mask=([0-7]{1,4})\b", options):
        taken |= int(digits, 8)
    return taken & 0o111 == 0o111


def _beside(entry: Entry, key: WslKey, parsed: Parsed) -> Iterator[Remark]:
    """Yield the faults of a line's position, and its conflicts with other lines."""
    if key.old_section and entry.written.lower().startswith(f"{key.old_section}."):
        why = say("it has moved to [{section}]; WSL still accepts it here", section=key.section)
        yield Remark(why, say("move the line below a line [{section}]", section=key.section))
    needed, path = _NEEDS.get(key.path), key.path
    # A wish that is written as its default loses nothing.
    if needed and entry.result is not False and (now := _in_force(needed.partition("=")[0], parsed)) != needed:
        wish = say("delete the line, or write {setting} below [{section}]", setting=needed, section="wsl2")
        # Releases drop and take back bridged mode (2.5.4, 2.5.6): microsoft/WSL#12743.
        yield Remark(say("it has no effect with {setting}", setting=now), _DELETE if needed == _BRIDGED else wish)
    if path in ("wsl2.localhostForwarding", "wsl2.firewall") and _in_force("networkingMode", parsed) == _MIRRORED:
        why = say("it has no effect with {setting}", setting=_MIRRORED)
        if path == "wsl2.localhostForwarding":
            yield Remark(why, say("delete the line: localhost works there in both directions"), _FORWARDING)
        elif entry.result is False:
            yield Remark(why, say("delete the line: Windows' firewall always applies there"))
    if path == "wsl2.vmIdleTimeout" and _endless(entry.result) and not _endless(parsed.get(IDLE)):
        why = say("alone it keeps no service running: the distro stops 15 s after its last terminal closes")
        yield Remark(why, say("write instanceIdleTimeout=-1 below [general] instead"))
    if path == "wsl2.kernelModules" and entry.value and not parsed.get("wsl2.kernel"):
        why = say("WSL does not start with modules of your own and its own kernel")
        yield Remark(why, say("name the kernel that they were built with, or delete the line"))


def _in_force(name: str, parsed: Parsed) -> str:
    """Return a setting below [wsl2] as one writes it."""
    has = parsed.get(f"wsl2.{name}")
    return f"{name}={_DEFAULTS[name] if has is None else str(has).lower()}"


def _endless(timeout: Value | None) -> bool:
    return isinstance(timeout, int) and timeout < 0
