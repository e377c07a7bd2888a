"""What is wrong with a .wslconfig, with the fix: WSL's own warnings, and what WSL keeps silent about."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import NamedTuple

from wslgpud.advise.wslconfig.keys import BY_NAME, FOLKLORE, Key
from wslgpud.advise.wslconfig.parse import Entry, Parsed
from wslgpud.units import size as shown

GIB = 1 << 30
#: less than this in a file is a forgotten unit: nobody means kilobytes
_NO_UNIT_BYTES = 1 << 24

#: name and value -> why nobody should want it, and the fix
_REGRETTED = {
    ("sparseVhd", "True"): (
        "current releases ignore it: sparse disks have lost data",
        "delete the line; to get space back: wsl --shutdown, then Optimize-VHD or diskpart's compact vdisk",
    ),
    ("vmIdleTimeout", "60000"): (
        "it is the default, and no release of memory (that is autoMemoryReclaim)",
        "delete the line",
    ),
    ("autoMemoryReclaim", "'Gradual'"): (
        "up to WSL 2.9.4 it also pushes the memory of idle programs to swap",
        "write autoMemoryReclaim=dropCache, the default",
    ),
    ("safeMode", "True"): (
        "no GPU, no swap, no network, no systemd",
        "delete the line once the distro is mended",
    ),
    ("gpuSupport", "False"): ("the virtual machine has no GPU", "delete the line"),
    ("swap", "0"): ("without swap the first shortage of memory kills", "write swap=8GB or more"),
}


class Remark(NamedTuple):
    """One thing about a line: ``wsl`` is what WSL prints (nothing where it keeps silent)."""

    line: int
    wsl: str
    why: str
    fix: str


def remarks(
    parsed: Parsed, host_memory_bytes: int | None = None, host_processors: int | None = None
) -> list[Remark]:
    """Return all there is to say, in the order of the lines.

    Args:
        parsed: the file.
        host_memory_bytes: Windows' RAM, where known.
        host_processors: Windows' logical processors, where known.
    """
    said = {(w.line, w.text) for w in parsed.warnings}
    found: list[Remark] = []
    for entry in parsed.entries:
        own = [w.text for w in parsed.warnings if w.line == entry.line and f"'{entry.written}'" in w.text]
        said -= {(entry.line, text) for text in own}
        found += _about(entry, own[0] if own else "", host_memory_bytes)
        found += _beyond(entry, host_processors)
    found += [Remark(line, text, *_unreadable(text)) for line, text in said]
    return sorted(found)


def _about(entry: Entry, wsl: str, host_memory_bytes: int | None) -> Iterator[Remark]:
    if entry.state == "unknown":
        yield Remark(entry.line, wsl, *_unknown(entry))
    elif entry.state == "duplicate":
        yield Remark(
            entry.line,
            wsl,
            "WSL takes the first of equal keys and ignores this line",
            "delete one of the two",
        )
    elif entry.state == "refused" or wsl:
        yield Remark(entry.line, wsl, "WSL ignores the line and takes its default", _right_form(entry))
    elif entry.key is not None:
        for why, fix in _silent(entry, entry.key, host_memory_bytes):
            yield Remark(entry.line, "", why, fix)


def _beyond(entry: Entry, host_processors: int | None) -> Iterator[Remark]:
    """Say what WSL says, when it starts, of more processors than there are."""
    wanted = entry.result
    if entry.key is None or entry.key.name != "processors" or not isinstance(wanted, int):
        return
    if host_processors and wanted > host_processors:
        text = "cannot exceed the number of logical processors on the system"
        wsl = f"wsl2.processors {text} ({wanted} > {host_processors})"
        yield Remark(
            entry.line, wsl, "WSL takes all there are", f"write processors={host_processors} or less"
        )


def _unknown(entry: Entry) -> tuple[str, str]:
    section, _, name = entry.written.rpartition(".")
    if name.lower() in FOLKLORE:
        return "guides recommend it, WSL does not know it", FOLKLORE[name.lower()]
    if name.lower() == "sparsevhd":
        return (
            "it belongs below [experimental], and current releases ignore it there: disks have lost data",
            "delete the line",
        )
    if right := BY_NAME.get(name.lower()):
        why = f"it belongs below [{right.section}]" + ("" if section else ", and stands below no section")
        fix = f"move the line below a line [{right.section}]"
        return why + f"; until then {right.name} is at its default, {right.default or 'empty'}", fix
    near = difflib.get_close_matches(name.lower(), BY_NAME, n=1, cutoff=0.75)
    if near:
        right = BY_NAME[near[0]]
        return "no WSL knows this key", f"did you mean {right.name} (below [{right.section}])?"
    return "no WSL knows this key", "delete the line"


def _right_form(entry: Entry) -> str:
    key = entry.key
    value = entry.value
    if key is None or key.kind in ("text", "path"):
        return "correct the value"
    if key.kind == "bool":
        meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(value.lower())
        return f"write {key.name}={meant or 'true or false'}"
    if key.kind == "size":
        return _right_size(key.name, value)
    if key.kind == "choice":
        near = difflib.get_close_matches(value.lower(), [c.lower() for c in key.choices], n=1)
        choice = next((c for c in key.choices if near and c.lower() == near[0]), None)
        return f"write {key.name}={choice}" if choice else f"write one of {', '.join(key.choices)}"
    return {
        "integer": "write a whole number",
        "ports": "write ports from 1 to 65535, joined by commas",
        "address": "write an IPv4 address",
    }.get(key.kind, "write an address like 01:23:45:67:89:ab")


def _right_size(name: str, value: str) -> str:
    plain = value.replace(" ", "").upper().replace("IB", "B").replace(",", ".")
    number = plain.rstrip("BKMGT")
    unit = plain[len(number) :]
    try:
        count = float(number)
        whole = int(count)
    except (ValueError, OverflowError):
        return f"write {name}=8GB" + (f" (or {name}=0 for none)" if name == "swap" else "")
    if count != whole and unit[:1] in "TGM":
        smaller = {"T": "GB", "G": "MB", "M": "KB"}[unit[:1]]
        return f"write {name}={round(count * 1024)}{smaller} (whole numbers only)"
    return f"write {name}={whole}{unit or 'GB'} (upper case, no space, no fraction)"


def _silent(entry: Entry, key: Key, host_memory_bytes: int | None) -> Iterator[tuple[str, str]]:
    """Return what WSL does not warn of."""
    result = entry.result
    if key.kind == "size" and isinstance(result, int):
        if 0 < result < _NO_UNIT_BYTES:
            text = f"{result} bytes: a size without a unit counts bytes"
            meant = f"{entry.value}MB" if result >= 512 else f"{entry.value}GB"
            if key.name == "memory":
                text += "; the virtual machine gets 256 MB and does not start (microsoft/WSL#11144)"
            yield text, f"write {key.name}={meant}"
        elif key.name == "memory" and result < 2 * GIB:
            yield f"{shown(result)} is too little for training", f"write {key.name}=8GB or more"
        elif key.name == "memory" and host_memory_bytes and result > host_memory_bytes - 4 * GIB:
            yield (
                f"Windows has {shown(host_memory_bytes)} and keeps less than 4 GB: both will swap",
                f"write {key.name}={max(host_memory_bytes // GIB - 4, 2)}GB or less",
            )
    if key.kind == "path" and any(char in entry.value for char in "\t\n\b"):
        yield (
            r"a single backslash makes \t, \n and \b a tab, a line end, a backspace",
            r"double every \ of the path",
        )
    if not entry.value.isascii():
        yield "WSL mangles every character that is not ASCII", "use a path without such characters"
    yield from _meaning(entry, key)


def _meaning(entry: Entry, key: Key) -> Iterator[tuple[str, str]]:
    result = entry.result
    if key.name == "vmIdleTimeout" and isinstance(result, int) and result < 0:
        yield (
            "alone it keeps no service running: the distro is stopped 15 s after the last terminal",
            "write instanceIdleTimeout=-1 below [general] instead",
        )
    elif key.name == "kernelCommandLine" and "sysctl.vm.overcommit_memory=1" in entry.value.split():
        yield (
            "with overcommit_memory=1 no allocation ever fails: programs are killed instead of told",
            "take sysctl.vm.overcommit_memory=1 out of the line",
        )
    elif (remark := _REGRETTED.get((key.name, repr(result)))) is not None:
        yield remark
    if key.old_section and entry.written.lower().startswith(f"{key.old_section}."):
        yield f"it has moved to [{key.section}]; WSL still takes it here", f"move it below [{key.section}]"


def _unreadable(text: str) -> tuple[str, str]:
    """Say what a line that WSL skips wants."""
    if text.startswith("Invalid key name"):
        return "WSL skips the line", "comments begin with # (never with ;), keys with a letter"
    if text.startswith("Invalid escaped character"):
        return "WSL skips the whole line", r"double every backslash: C:\\Users\\me\\swap.vhdx"
    if text.startswith("Expected '='"):
        return "WSL skips the line", "write key=value"
    if text.startswith(("Expected ']'", "Invalid section", "Expected ' '")):
        return "WSL skips the header, so what follows lands in the wrong section", "write it like [wsl2]"
    return "WSL skips the line", 'close the "'
