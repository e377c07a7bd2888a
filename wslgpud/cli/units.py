"""Figures for people: bytes, rates, times."""

from __future__ import annotations

_STEPS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """Write a number of bytes with three significant figures: ``15.4 GiB``."""
    value, step = float(count), 0
    while abs(value) >= 1000 and step < len(_STEPS) - 1:
        value, step = value / 1024, step + 1
    digits = 0 if step == 0 or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f} {_STEPS[step]}"


def duration(seconds: float) -> str:
    """Write a time as people say it: ``40 s``, ``4 min``, ``3 h``, ``2 days``."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (unit == "min" and seconds >= 90):
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
