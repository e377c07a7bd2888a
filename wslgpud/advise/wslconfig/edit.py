"""Changes values in the text of a .wslconfig; comments, order and what is unknown stay as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping

from wslgpud.advise.wslconfig.keys import BY_PATH
from wslgpud.advise.wslconfig.parse import parse

_TO_ESCAPE = {"\\": r"\\", '"': r"\"", "\b": r"\b", "\n": r"\n", "\t": r"\t"}


def changed(text: str, values: Mapping[str, str]) -> str:
    """Return ``text`` with these values: where the key decides already, else in its section.

    Args:
        text: a .wslconfig.
        values: ``section.name`` -> value as one would say it (paths with single backslashes).

    Raises:
        KeyError: WSL knows no such key.
        ValueError: no text of the file can hold the value (a lone carriage return).
    """
    for path, value in values.items():
        text = _with(text, path, value)
        entry = parse(text).first(path)
        if entry is None or entry.value != value:
            raise ValueError(f"{path} cannot be set to {value!r} in this file: set it by hand")
    return text


def encoded(value: str) -> str:
    """Write a value so that WSL reads it as it is."""
    escaped = "".join(_TO_ESCAPE.get(char, char) for char in value)
    return f'"{escaped}"' if "#" in value or value != value.strip(" \t") else escaped


def _with(text: str, path: str, value: str) -> str:
    key = BY_PATH[path.lower()]
    parsed = parse(text)
    if entry := parsed.first(path):
        start, end = entry.span
        return text[:start] + encoded(value) + text[end:]
    newline = "\r\n" if "\r\n" in text or not text else "\n"
    line = f"{key.name}={encoded(value)}"
    section = key.section.lower()
    ends = [e.end for e in parsed.entries if e.written.lower().startswith(f"{section}.")]
    if section in parsed.headers:
        at = max([*ends, parsed.headers[section]])
        return f"{text[:at]}{newline}{line}{text[at:]}"
    body = text
    # A line that ends in a backslash goes on in the next: it gets an empty one to go on in.
    body += newline * (0 if not body or body.endswith("\n") else 2 if body.endswith("\\") else 1)
    blank = newline if re.search(r"\S", body) else ""
    return f"{body}{blank}[{key.section}]{newline}{line}{newline}"
