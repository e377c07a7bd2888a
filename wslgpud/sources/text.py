"""Parses the kernel's text files: anything but a plain number is unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable

from wslgpud.metrics import MetricSpec
from wslgpud.model import Number, Reading

#: Longer numbers are garbage or the kernel's words for "unlimited", and would not fit the database.
_LONGEST = 18


def whole(word: str | None) -> int | None:
    """Return ``word`` as a count, or None when it is anything but a few decimal digits."""
    # int() would also take "-1", "1_000" and digits of other scripts.
    if word is None or len(word) > _LONGEST or not word.isascii() or not word.isdigit():
        return None
    return int(word)


def decimal(word: str | None) -> float | None:
    """Return ``word`` as a finite number that is not negative, or None."""
    if word is None or len(word) > _LONGEST:
        return None
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def table(text: str) -> dict[str, str]:
    """Return a file of ``name value`` lines as a dictionary (colons and kB of /proc/meminfo fall away)."""
    # The quickest way known: 12 us for the 190 lines of /proc/vmstat, against 45 us line by line.
    # A broken line shifts names into the place of values, where ``whole`` refuses them.
    words = text.replace(" kB", "").replace(":", "").split()
    return dict(zip(words[::2], words[1::2], strict=False))


def readings(known: Iterable[tuple[MetricSpec, Number | None]], *labels: str) -> list[Reading]:
    """Return readings, all under the same labels, of the values that are known."""
    return [Reading(spec, value, labels) for spec, value in known if value is not None]
