"""Changes values in the text of a .wslconfig; comments, order and unknown keys stay as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping

from wslgpud.advise.wslconfig.keys import BY_PATH, WslconfigKey
from wslgpud.advise.wslconfig.parse import parse
from wslgpud.words import Told, say

_LINE_END = re.compile(r"\r?\n")
_BROKEN_HEADER = re.compile(r"\[[ \t]*([A-Za-z0-9]+)[ \t\]]*(?=#|$)")
_TO_ESCAPE = {"\\": r"\\", '"': r"\"", "\b": r"\b", "\n": r"\n", "\t": r"\t"}


class CannotSet(Told):
    """A value cannot be written into this file."""


def changed(text: str, values: Mapping[str, str]) -> str:
    """Return the text of a .wslconfig with these values: where the key decides already, else in its section.

    Lines of the same keys that WSL ignores (a second one, one in a wrong section, one that it cannot read)
    are taken out: they would contradict. Headers of their sections that WSL skips are written right. Values
    are as one would say them: paths with single backslashes.

    Raises:
        KeyError: WSL knows no such key.
        CannotSet: no text of the file can hold the value (a lone carriage return).
    """
    for path, value in values.items():
        key = BY_PATH[path.lower()]
        text = _without_contradictions(headers_mended(text, key.section.lower()), key)
        text = _with(text, key, value)
        entry = parse(text).first(path)
        if entry is None or entry.value != value:
            raise CannotSet(say("{key} cannot be set to {value} in this file: set it by hand", key=path, value=value))
    return text


def encoded(value: str) -> str:
    """Write a value so that WSL reads it as it is."""
    escaped = "".join(_TO_ESCAPE.get(char, char) for char in value)
    return f'"{escaped}"' if "#" in value or value != value.strip(" \t") else escaped


def headers_mended(text: str, section: str) -> str:
    """Return ``text`` with each header of a section that WSL skips, such as ``[wsl2 ]``, written right."""
    for entry in reversed(parse(text).entries):
        header = _BROKEN_HEADER.match(text, entry.begin, entry.end)
        if header and entry.state == "unreadable" and header[1].lower() == section:
            text = f"{text[: header.start()]}[{header[1]}]{text[header.end() :]}"
    return text


def _without_contradictions(text: str, key: WslconfigKey) -> str:
    """Take out each line that means a key and does not decide about it."""
    name = key.name.lower()
    for entry in reversed(parse(text).entries):
        means_it = entry.state in ("unknown", "unreadable") and entry.name.lower() == name
        if means_it or (entry.state == "duplicate" and entry.key is key):
            start = len(text[: entry.begin].rstrip(" \t"))
            whole_line = not start or text[start - 1] == "\n"
            line_end = _LINE_END.match(text, entry.end) if whole_line else None
            text = text[:start] + text[line_end.end() if line_end else entry.end :]
    return text


def _with(text: str, key: WslconfigKey, value: str) -> str:
    parsed = parse(text)
    if entry := parsed.first(key.path):
        start, end = entry.span
        return text[:start] + encoded(value) + text[end:]
    newline = "\r\n" if "\r\n" in text or not text else "\n"
    line = f"{key.name}={encoded(value)}"
    section = key.section.lower()
    ends = [e.end for e in parsed.entries if e.written.lower().startswith(f"{section}.")]
    if section in parsed.headers:
        at = max([*ends, parsed.headers[section]])
        return f"{text[:at]}{newline}{line}{text[at:]}"
    # A line that ends in a backslash goes on in the next: it gets an empty one to go on in.
    pad = newline * (0 if not text or text.endswith("\n") else 2 if text.endswith("\\") else 1)
    blank = newline if text.strip() else ""
    return f"{text}{pad}{blank}[{key.section}]{newline}{line}{newline}"
