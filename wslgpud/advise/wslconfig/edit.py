"""Changes values in the text of .wslconfig and /etc/wsl.conf: comments, order and unknown keys stay as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping

from wslgpud.probes.wsl_config import parse
from wslgpud.probes.wsl_keys import WSLCONFIG, WslFile, WslKey
from wslgpud.words import MessageError

_LINE_END = re.compile(r"\r?\n")
#: a header that is not written right, or with a setting behind it
_BROKEN_HEADER = re.compile(
    r"\[[ \t]*([A-Za-z][A-Za-z0-9]*)(?:[ \t\]]*(?=#|$)|[ \t\]]+(?=([A-Za-z][A-Za-z0-9]*)[ \t]*=))"
)
_NAME = re.compile(r"[A-Za-z]+")
_TO_ESCAPE = {"\\": r"\\", '"': r"\"", "\b": r"\b", "\n": r"\n", "\t": r"\t"}


class CannotSet(MessageError):
    """A value cannot be written into this file."""


def changed(text: str, values: Mapping[str, str], file: WslFile = WSLCONFIG) -> str:
    """Return the text of a file with these values: where the key decides already, else in its section.

    Lines of the same keys that WSL ignores (a second one, one in a wrong section, one that it cannot read)
    are taken out: they would contradict. Headers of their sections that WSL cannot read are written right, and
    what would end the file for WSL above them becomes a comment. Values are as one would say them: paths with
    single backslashes.

    Raises:
        KeyError: WSL knows no such key.
        CannotSet: no text of the file can hold the value (a lone carriage return).
    """
    for path, value in values.items():
        key = file.by_path[path.lower()]
        text = _without_contradictions(readable(text, key.section.lower(), file), key, file)
        text = _with(text, key, value, file)
        entry = parse(text, file=file).first(path)
        if entry is None or entry.value != value:
            raise CannotSet("{key} cannot be set to {value} in this file: set it by hand", key=path, value=value)
    return text


def encoded(value: str) -> str:
    """Write a value so that WSL reads it as it is."""
    escaped = "".join(_TO_ESCAPE.get(char, char) for char in value)
    return f'"{escaped}"' if "#" in value or value != value.strip(" \t") else escaped


def readable(text: str, section: str, file: WslFile = WSLCONFIG) -> str:
    """Return ``text`` with each header of a section that WSL cannot read, such as ``[wsl2 ]``, written right.

    Where such a line ends the file for WSL all headers are, and each other line becomes a comment.
    """
    if not file.forgiving:
        text = text.replace("\r\n", "\n")  # see check.py
    newline = "\r\n" if "\r\n" in text else "\n"
    while True:
        parsed = parse(text, file=file)
        bad = [entry for entry in parsed.entries + parsed.lost if entry.state == "unreadable"]
        for entry in reversed(bad):
            header = _BROKEN_HEADER.match(text, entry.begin, entry.end)
            if header and (header[1].lower() == section or not file.forgiving):
                below = newline if header[2] else ""
                text = f"{text[: header.start()]}[{header[1]}]{below}{text[header.end() :]}"
            elif not file.forgiving:
                # What stands below a header must not fall to the section above it.
                name = "".join(_NAME.findall(entry.value.partition("]")[0])) if entry.value.startswith("[") else ""
                instead = f"[{name or 'unknown'}] " if entry.value.startswith("[") else ""
                text = f"{text[: entry.begin]}{instead}# {text[entry.begin :]}"
        # What a backslash had made one line is two now, of which WSL may not read the second either.
        if file.forgiving or not bad:
            return text


def _without_contradictions(text: str, key: WslKey, file: WslFile) -> str:
    """Take out each line that means a key and does not decide about it."""
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
    # A line that ends in a backslash goes on in the next: it gets an empty one to go on in.
    pad = newline * (0 if not text or text.endswith("\n") else 2 if text.endswith("\\") else 1)
    blank = newline if text.strip() else ""
    return f"{text}{pad}{blank}[{key.section}]{newline}{line}{newline}"
