"""Moments as people type them."""

from __future__ import annotations

import re
from datetime import datetime

from wslgpud.cli.common import Fault

_LENGTH = r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|m|h|d|w)"
_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def moment(text: str, now: float) -> float:
    """Return a moment in seconds since the epoch.

    ``90min``, ``24h``, ``7d`` are so long before ``now``; anything else is a date with or without a time
    (``2026-11-21``, ``2026-11-21 03:00``), in local time unless it says otherwise.

    Raises:
        Fault: it is neither.
    """
    if ago := re.fullmatch(_LENGTH, text.strip()):
        return now - float(ago[1]) * _UNITS[ago[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise Fault(f"{text!r} is no moment: write 24h, 90min, 7d, or 2026-11-21 03:00") from error


def seconds(text: str) -> float:
    """Return a length of time in seconds: ``10s``, ``5min``, ``1h``, ``1d``.

    Raises:
        Fault: it is none.
    """
    found = re.fullmatch(_LENGTH, text.strip())
    if found is None or not float(found[1]):
        raise Fault(f"{text!r} is no length of time: write 10s, 5min, 1h or 1d")
    return float(found[1]) * _UNITS[found[2]]
