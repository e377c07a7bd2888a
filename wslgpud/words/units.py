"""Notation that is the same in every language: sizes, and names that others chose."""

from __future__ import annotations

#: a cgroup is known by the end of its path
LONGEST_PATH = 24


def size(count: float) -> str:
    """Write bytes as torch, nvidia-smi and ``free`` do: ``310 MiB``, ``3.1 GiB``."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= scale * (1 - 1 / 2048):  # what rounds to 1024 of the unit below
            value = count / scale
            return f"{value:.1f} {unit}" if value < 10 and unit != "MiB" else f"{value:.0f} {unit}"
    return f"{max(0.0, count) / 1024:.0f} KiB"


def printable(text: str, layout: str = "", instead: str = "\N{REPLACEMENT CHARACTER}") -> str:
    """Return text that others chose, harmless to print: without what a terminal obeys or hides.

    These are control characters (C0, DEL, C1), marks that turn the direction of writing, zero-width ones,
    separators of lines and paragraphs, lone surrogates. ``layout`` names characters that stay all the
    same, ``instead`` takes the place of the others.
    """
    rest = text
    for kept in layout:
        rest = rest.replace(kept, "")
    if rest.isprintable():  # nearly always, and a hundred times as quick as to look at each
        return text
    return "".join(c if c.isprintable() or c in layout else instead for c in text)


def one_line(text: str, most: int = 200) -> str:
    """Return foreign text fit for one line of a log, a database or a message.

    Whatever controls terminals, breaks lines or cannot be encoded becomes a space; ``most`` is in characters.
    """
    line = " ".join(printable(text[: 4 * most], instead=" ").split())
    return line if len(line) <= most else line[: most - 1] + "…"


def resource_path(path: str) -> str:
    """Return a cgroup's path; of a long one its own name, which tells most and leaves room for the rest."""
    path = printable(path)
    name = path[path.rstrip("/").rfind("/") :]
    return path if len(path) <= LONGEST_PATH else f"…{name[1 - LONGEST_PATH :]}"
