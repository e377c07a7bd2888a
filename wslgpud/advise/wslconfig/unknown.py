"""Keys that WSL does not know where they stand: what they were meant to be, and what to write instead."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator

from wslgpud.probes.interop import WSL_CONF_PATH
from wslgpud.probes.wsl_config import Entry, Parsed
from wslgpud.probes.wsl_keys import FOLKLORE, REMOVED, WSL_CONF, WSLCONFIG, WslKey
from wslgpud.words import Message, MessageLike, say

#: why a line is wrong, and the fix
Advice = tuple[MessageLike, MessageLike]

#: Key that people write below [automount] -> the option of ``options=`` that does it:
#: https://learn.microsoft.com/windows/wsl/wsl-config#automount-options
_MOUNT_OPTIONS = {name: name for name in ("uid", "gid", "umask", "fmask", "dmask", "metadata", "case")} | {
    "defaultuid": "uid",
    "defaultgid": "gid",
}


def advice(entry: Entry, parsed: Parsed) -> Advice:
    """Return why WSL ignores a key that it does not know there, and the fix, given the whole file."""
    name, file = entry.name.lower(), parsed.file
    if file is WSL_CONF and _mount_option(entry):
        fix = say("write {setting}", setting=f'options="{",".join(_options(parsed))}"')
        return say("it is no key of its own, but one of the options of [automount]"), fix
    if home := _in_other_file(entry, parsed):
        return _moved_to_other_file(home, entry, parsed)
    if gone := _gone(name):
        return gone
    if right := file.by_name.get(name):
        return _moved_to_other_section(right, parsed)
    for near in difflib.get_close_matches(name, file.by_name, n=1, cutoff=0.75):
        right = file.by_name[near]
        fix = say("did you mean {key} (below [{section}])?", key=right.name, section=right.section)
        return say("no version of WSL knows this key"), fix
    return say("no version of WSL knows this key"), say("delete the line")


def _gone(name: str) -> Advice | None:
    """Return what became of a key that no longer does anything, or never did."""
    if name in FOLKLORE:
        return say("guides recommend it, but WSL does not know it"), Message(FOLKLORE[name])
    if name in REMOVED:
        return say("WSL knows it no longer: {version} removed it", version=REMOVED[name]), say("delete the line")
    if name == "sparsevhd":
        why = say("it belongs below [experimental], where current releases ignore it: disks have lost data")
        return why, say("delete the line")
    return None


def _in_other_file(entry: Entry, parsed: Parsed) -> WslKey | None:
    """Return the key of WSL's other file that is meant: of the same section, or the only one of that name."""
    name, other = entry.name.lower(), WSL_CONF if parsed.file is WSLCONFIG else WSLCONFIG
    alone = other.by_name.get(name) if name not in parsed.file.by_name else None
    return other.by_path.get(entry.written.lower()) or alone


def _moved_to_other_file(home: WslKey, entry: Entry, parsed: Parsed) -> Advice:
    to_conf = parsed.file is WSLCONFIG
    # To be pasted into a root shell: it must not contain text of the file.
    command = ["sudo"] * to_conf + ["wslgpud", "wslconfig", "set", f"{home.path}={entry.value}"]
    path = WSL_CONF_PATH if to_conf else WSLCONFIG.name
    why = say("WSL reads it in {path} only, below [{section}]", path=path, section=home.section)
    return why, say("move it there: {command}", command=shlex.join(command))


def _moved_to_other_section(right: WslKey, parsed: Parsed) -> Advice:
    if decides := parsed.first(right.path):
        why = say("it belongs below [{section}], where line {line} has it", section=right.section, line=decides.line)
        return why, say("delete the line")
    why = say(
        "it belongs below [{section}]; until then, {key} is at its default: {default}",
        section=right.section,
        key=right.name,
        default=Message(right.default) if right.default else say("none"),
    )
    return why, say("move the line below a line [{section}]", section=right.section)


def _mount_option(entry: Entry) -> str:
    """Return a key below [automount] as the option that is meant; empty if none is."""
    section, _, name = entry.written.lower().partition(".")
    option = _MOUNT_OPTIONS.get(name, "") if section == "automount" and entry.state == "unknown" else ""
    if option == "metadata":  # a word without a value
        return option
    return f"{option}={entry.value}" if option and entry.value.isalnum() else ""


def _options(parsed: Parsed) -> Iterator[str]:
    """Yield the options that the file has, and those that are written as keys of their own."""
    if has := parsed.get("automount.options"):
        yield str(has)
    yield from filter(None, map(_mount_option, parsed.entries))
