"""Notation common to all languages: sizes, and foreign names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: a cgroup is identified by the end of its path
MAX_PATH = 24


def size(count: float) -> str:
    """Format bytes like torch, nvidia-smi and ``free``: ``310 MiB``, ``3.1 GiB``."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= scale * (1 - 1 / 2048):  # would round to 1024 of the smaller unit
            value = count / scale
            return f"{value:.1f} {unit}" if value < 10 and unit != "MiB" else f"{value:.0f} {unit}"
    return f"{max(0.0, count) / 1024:.0f} KiB"


def printable(text: str, layout: str = "", instead: str = "\N{REPLACEMENT CHARACTER}") -> str:
    """Return foreign text, safe to print: without characters that a terminal interprets or hides.

    These are control characters (C0, DEL, C1), bidirectional marks, zero-width characters, line and paragraph
    separators, lone surrogates. ``layout`` lists characters to keep, ``instead`` replaces the others.
    """
    rest = text
    for kept in layout:
        rest = rest.replace(kept, "")
    if rest.isprintable():  # nearly always, and a hundred times faster than checking each
        return text
    return "".join(c if c.isprintable() or c in layout else instead for c in text)


def one_line(text: str, max_characters: int = 200) -> str:
    """Return foreign text for a single line of a log, a database or a message.

    Characters that control terminals, break lines or cannot be encoded become spaces.
    """
    line = " ".join(printable(text[: 4 * max_characters], instead=" ").split())
    return line if len(line) <= max_characters else line[: max_characters - 1] + "…"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name that was probably meant; empty if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), cutoff=cutoff)), "")


def resource_path(path: str) -> str:
    """Return a cgroup's path; of a long one only the last component, which identifies it and leaves room."""
    path = printable(path)
    name = path[path.rstrip("/").rfind("/") :]
    return path if len(path) <= MAX_PATH else f"…{name[1 - MAX_PATH :]}"


def amount(value: float, unit: str, *, rate: bool = False) -> str:
    """Format a value with its unit; ``rate`` means per second."""
    if unit == "bytes_per_second":
        return amount(value, "bytes", rate=True)
    if rate:
        return f"{value:.1%}" if unit == "seconds" else f"{amount(value, unit)}/s"
    if unit == "bytes":
        return f"-{size(-value)}" if value < 0 else size(value)
    if unit == "ratio":
        return f"{value:.1%}"
    if unit == "hertz":
        return f"{value / 1e9:.2f} GHz" if value >= 1e9 else f"{value / 1e6:.0f} MHz"
    digits = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
    short = {"celsius": "°C", "watts": "W", "joules": "J", "seconds": "s", "GiB": "GiB", "GB/s": "GB/s"}.get(unit, "")
    return f"{digits} {short}".rstrip()
