"""What is wrong with a .wslconfig, with the fix: WSL's own warnings, and what WSL keeps silent about."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import NamedTuple

from wslgpud.advise.wslconfig.keys import BY_NAME, FOLKLORE, Key
from wslgpud.advise.wslconfig.parse import Entry, Parsed
from wslgpud.words import Message, Said, say, template

GIB = 1 << 30
#: less than this in a file is a forgotten unit: nobody means kilobytes
_NO_UNIT_BYTES = 1 << 24

#: name and value -> why nobody should want it, and the fix
_REGRETTED = {
    ("sparseVhd", "True"): (
        template("current releases ignore it: sparse disks have lost data"),
        template(
            "delete the line; to reclaim space: wsl --shutdown, then Optimize-VHD or diskpart's compact vdisk"
        ),
    ),
    ("vmIdleTimeout", "60000"): (
        template("it is the default and frees no memory (autoMemoryReclaim does)"),
        template("delete the line"),
    ),
    ("autoMemoryReclaim", "'Gradual'"): (
        template("up to WSL 2.9.4 it also pushes the memory of idle programs to swap"),
        template("write autoMemoryReclaim=dropCache, the default"),
    ),
    ("safeMode", "True"): (
        template("no GPU, no swap, no network, no systemd"),
        template("delete the line once the distro is repaired"),
    ),
    ("gpuSupport", "False"): (template("the virtual machine has no GPU"), template("delete the line")),
    ("swap", "0"): (
        template("without swap the first shortage of memory kills programs"),
        template("write swap=8GB or more"),
    ),
}


class Remark(NamedTuple):
    """One thing about a line: ``wsl`` is what WSL prints (nothing where it keeps silent)."""

    line: int
    wsl: str
    why: Said
    fix: Said


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
    return sorted(found, key=lambda remark: (remark.line, remark.wsl))


def _about(entry: Entry, wsl: str, host_memory_bytes: int | None) -> Iterator[Remark]:
    if entry.state == "unknown":
        yield Remark(entry.line, wsl, *_unknown(entry))
    elif entry.state == "duplicate":
        yield Remark(
            entry.line,
            wsl,
            say("WSL takes the first of two lines with the same key and ignores this one"),
            say("delete one of them"),
        )
    elif entry.state == "refused" or wsl:
        yield Remark(entry.line, wsl, say("WSL ignores the line and uses its default"), _right_form(entry))
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
            entry.line,
            wsl,
            say("WSL uses all processors that Windows has"),
            say("write {setting} or less", setting=f"processors={host_processors}"),
        )


def _unknown(entry: Entry) -> tuple[Said, Said]:
    name = entry.name.lower()
    if name in FOLKLORE:
        return say("guides recommend it, but WSL does not know it"), Message(FOLKLORE[name])
    if name == "sparsevhd":
        why = say("it belongs below [experimental], where current releases ignore it: disks have lost data")
        return why, say("delete the line")
    if right := BY_NAME.get(name):
        return (
            say(
                "it belongs below [{section}]; until it stands there, {key} is at its default: {default}",
                section=right.section,
                key=right.name,
                default=Message(right.default) if right.default else say("none"),
            ),
            say("move the line below a line [{section}]", section=right.section),
        )
    near = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.75)
    if near:
        right = BY_NAME[near[0]]
        return (
            say("no WSL knows this key"),
            say("did you mean {key} (below [{section}])?", key=right.name, section=right.section),
        )
    return say("no WSL knows this key"), say("delete the line")


def _right_form(entry: Entry) -> Said:
    key = entry.key
    value = entry.value
    if key is None or key.kind in ("text", "path"):
        return say("correct the value")
    if key.kind == "bool":
        meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(value.lower())
        return _write(key, meant) if meant else _one_of(("true", "false"))
    if key.kind == "size":
        return _right_size(key, value)
    if key.kind == "choice":
        near = difflib.get_close_matches(value.lower(), [c.lower() for c in key.choices], n=1)
        choice = next((c for c in key.choices if near and c.lower() == near[0]), None)
        return _write(key, choice) if choice else _one_of(key.choices)
    return {
        "integer": say("write a whole number"),
        "ports": say("write ports from 1 to 65535, separated by commas"),
        "address": say("write an IPv4 address"),
    }.get(key.kind, say("write an address like 01:23:45:67:89:ab"))


def _write(key: Key, value: str) -> Message:
    return say("write {setting}", setting=f"{key.name}={value}")


def _one_of(choices: tuple[str, ...]) -> Message:
    return say("write one of {choices}", choices=choices)


def _right_size(key: Key, value: str) -> Said:
    plain = value.replace(" ", "").upper().replace("IB", "B").replace(",", ".")
    number = plain.rstrip("BKMGT")
    unit = plain[len(number) :]
    try:
        count = float(number)
        whole = int(count)
    except (ValueError, OverflowError):
        if key.name == "swap":
            return say("write swap=8GB (or swap=0 for none)")
        return _write(key, "8GB")
    if count != whole and unit[:1] in "TGM":
        smaller = {"T": "GB", "G": "MB", "M": "KB"}[unit[:1]]
        written = f"{key.name}={round(count * 1024)}{smaller}"
        return say("write {setting} (whole numbers only)", setting=written)
    return say(
        "write {setting} (upper case, no space, no fraction)", setting=f"{key.name}={whole}{unit or 'GB'}"
    )


def _silent(entry: Entry, key: Key, host_memory_bytes: int | None) -> Iterator[tuple[Said, Said]]:
    """Return what WSL does not warn of."""
    result = entry.result
    if key.kind == "size" and isinstance(result, int):
        yield from _odd_sizes(entry, key, result, host_memory_bytes)
    if key.kind == "path" and any(char in entry.value for char in "\t\n\b"):
        yield (
            say(r"a single backslash turns \t, \n and \b into a tab, a line break, a backspace"),
            say(r"double every \ in the path"),
        )
    if not entry.value.isascii():
        yield (
            say("WSL garbles every character that is not ASCII"),
            say("use a path without such characters"),
        )
    yield from _meaning(entry, key)


def _odd_sizes(
    entry: Entry, key: Key, result: int, host_memory_bytes: int | None
) -> Iterator[tuple[Said, Said]]:
    if 0 < result < _NO_UNIT_BYTES:
        meant = _write(key, f"{entry.value}{'MB' if result >= 512 else 'GB'}")
        if key.name == "memory":
            yield (
                say(
                    "a size without a unit is in bytes: the virtual machine gets 256 MiB and does not start "
                    "(microsoft/WSL#11144)"
                ),
                meant,
            )
        else:
            yield say("a size without a unit is in bytes"), meant
    elif key.name == "memory" and result < 2 * GIB:
        yield say("{value} is too little for training", value=entry.value), say("write memory=8GB or more")
    elif key.name == "memory" and host_memory_bytes and result > host_memory_bytes - 4 * GIB:
        most = f"memory={max(host_memory_bytes // GIB - 4, 2)}GB"
        yield (
            say(
                "Windows has {total_bytes} and keeps less than {least_bytes} of it: both will swap",
                total_bytes=host_memory_bytes,
                least_bytes=4 * GIB,
            ),
            say("write {setting} or less", setting=most),
        )


def _meaning(entry: Entry, key: Key) -> Iterator[tuple[Said, Said]]:
    result = entry.result
    if key.name == "vmIdleTimeout" and isinstance(result, int) and result < 0:
        yield (
            say("alone it keeps no service running: the distro stops 15 s after its last terminal closes"),
            say("write instanceIdleTimeout=-1 below [general] instead"),
        )
    elif key.name == "kernelCommandLine" and "sysctl.vm.overcommit_memory=1" in entry.value.split():
        yield (
            say("with overcommit_memory=1 no allocation ever fails: programs are killed instead"),
            say("remove sysctl.vm.overcommit_memory=1 from the line"),
        )
    elif (remark := _REGRETTED.get((key.name, repr(result)))) is not None:
        yield Message(remark[0]), Message(remark[1])
    if key.old_section and entry.written.lower().startswith(f"{key.old_section}."):
        yield (
            say("it has moved to [{section}]; WSL still accepts it here", section=key.section),
            say("move the line below a line [{section}]", section=key.section),
        )


def _unreadable(text: str) -> tuple[Said, Said]:
    """Say what a line that WSL skips wants."""
    skips = say("WSL skips the line")
    if text.startswith("Invalid key name"):
        return skips, say("start comments with # (never with ;) and keys with a letter")
    if text.startswith("Invalid escaped character"):
        return skips, say(r"double every backslash: C:\\Users\\me\\swap.vhdx")
    if text.startswith("Expected '='"):
        return skips, say("write key=value")
    if text.startswith(("Expected ']'", "Invalid section", "Expected ' '")):
        why = say("WSL skips the header, so the lines below it land in the wrong section")
        return why, say("write it like [wsl2]")
    return skips, say('close the "')
