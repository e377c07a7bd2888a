"""Changes values in the text of .wslconfig and /etc/wsl.conf, keeping comments, order and unknown keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from wslgpud.probes.wsl_config import WSL_CONF, WSLCONFIG, WslFile, WslKey, parse
from wslgpud.words import MessageError

_LINE_END = re.compile(r"\r?\n")
_TO_ESCAPE = {"\\": r"\\", '"': r"\"", "\b": r"\b", "\n": r"\n", "\t": r"\t"}


class CannotSet(MessageError):
    """A value cannot be written into this file."""


def wanted(settings: Iterable[str], known: Collection[WslFile]) -> dict[WslFile, dict[str, str]]:
    """Return what ``wsl2.memory=24GB`` and the like want of each file. Raises CannotSet: WSL does not know a key."""
    found: dict[WslFile, dict[str, str]] = {}
    for setting in settings:
        path, equals_sign, value = setting.partition("=")
        file = next((one for one in known if path.lower() in one.by_path), None)
        if file is None or not equals_sign:
            raise CannotSet(
                "{setting}: WSL does not know this key in {files}; write it like wsl2.memory=24GB",
                setting=setting,
                files=tuple(one.name for one in known),
            )
        found.setdefault(file, {})[path] = value
    return found


def changed(text: str, values: Mapping[str, str], file: WslFile = WSLCONFIG) -> str:
    """Return the text of a file with these values: in the line that decides the key, else in its section.

    Other lines of these keys, which WSL ignores (a duplicate, one in a wrong section, a malformed one), are removed:
    they would contradict. Values are unescaped: paths have single backslashes.

    Raises:
        KeyError: WSL does not know this key.
        CannotSet: WSL would refuse the value or stops reading the file above it, or the value cannot be represented in
            the file (a lone carriage return).
    """
    if file is WSL_CONF:
        text = text.replace("\r\n", "\n")  # see check.py
    for path, value in values.items():
        key = file.by_path[path.lower()]
        text = _with(_without_contradictions(text, key, file), key, value, file)
        parsed = parse(text, file=file)
        entry = parsed.first(path)
        if entry and entry.state == "refused":
            raise CannotSet(entry.warnings[0])
        if entry is None or entry.value != value:
            stops = [] if file.forgiving else [bad.line for bad in parsed.entries if bad.state == "unreadable"]
            raise CannotSet(
                "{key} cannot be set to {value} in this file[, which WSL reads only up to line {line}]: set it by hand",
                key=path,
                value=value,
                **({"line": stops[0]} if stops else {}),
            )
    return text


def encoded(value: str) -> str:
    """Escape a value for WSL."""
    escaped = "".join(_TO_ESCAPE.get(char, char) for char in value)
    return f'"{escaped}"' if "#" in value or value != value.strip(" \t") else escaped


def _without_contradictions(text: str, key: WslKey, file: WslFile) -> str:
    """Remove each line of a key that does not decide it."""
    for entry in reversed(parse(text, file=file).entries):
        means_it = entry.state in ("unknown", "unreadable") and file.by_name.get(entry.name.lower()) is key
        if means_it or (entry.state == "duplicate" and entry.key is key):
            start = len(text[: entry.begin].rstrip(" \t"))
            whole_line = not start or text[start - 1] == "\n"
            line_end = _LINE_END.match(text, entry.end) if whole_line else None
            text = text[:start] + text[line_end.end() if line_end else entry.end :]
    return text


def _with(text: str, key: WslKey, value: str, file: WslFile) -> str:
    parsed = parse(text, file=file)
    if entry := parsed.first(key.path):
        start, end = entry.span
        return text[:start] + encoded(value) + text[end:]
    newline = "\r\n" if "\r\n" in text or not (text or file is not WSLCONFIG) else "\n"
    line = f"{key.name}={encoded(value)}"
    section = key.section.lower()
    ends = [e.end for e in parsed.entries if e.written.lower().startswith(f"{section}.")]
    if section in parsed.headers:
        at = max([*ends, parsed.headers[section]])
        return f"{text[:at]}{newline}{line}{text[at:]}"
    # A line that ends in a backslash continues in the next: give it an empty one.
    pad = newline * (0 if not text or text.endswith("\n") else 2 if text.endswith("\\") else 1)
    blank = newline if text.strip() else ""
    return f"{text}{pad}{blank}[{key.section}]{newline}{line}{newline}"
