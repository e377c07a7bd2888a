"""Steps of time in which history is looked at. Pure."""

from __future__ import annotations

import math

#: steps that fall on the clock's own divisions; those from 60 and from 3600 on are read from the summaries of
#: minutes and of hours
STEPS_SECONDS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
    172800, 604800,
)  # fmt: skip


def step_for(span_seconds: float, points: int) -> int:
    """Return the finest step that gives at most ``points`` points over a span; beyond a week, whole weeks."""
    most, week = max(points, 1), STEPS_SECONDS[-1]
    return next(
        (s for s in STEPS_SECONDS if span_seconds / s <= most), week * math.ceil(span_seconds / week / most)
    )
