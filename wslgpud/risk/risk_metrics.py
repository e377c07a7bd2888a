"""Forecasts as metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from wslgpud.metrics import CULPRIT_NAMES, RESOURCE_NAMES, gauge, info
from wslgpud.model import Forecast, Level, Reading
from wslgpud.risk.levels import BLIND

#: name of the report that carries them
REPORT = "risk"

_of_resource = partial(gauge, names=(RESOURCE_NAMES,))

LEVEL = _of_resource("risk_level", "Level of risk: 0 ok, 1 info, 2 warning, 3 critical, 4 emergency.", "resource")
HEADROOM = _of_resource(
    "headroom_bytes", "Memory that can still be allocated: RAM with swap, VRAM below its real ceiling.", "resource"
)
CAPACITY = _of_resource("headroom_capacity_bytes", "Headroom if nothing were used.", "resource")
CONSUMPTION = _of_resource(
    "consumption_bytes_per_second", "Rate at which the headroom shrinks (negative: it grows).", "resource"
)
TIME_LEFT = _of_resource(
    "time_to_exhaustion_seconds",
    "Time until the headroom is gone at the current rate: early, middle and late end of the range. Absent while "
    "nothing points to exhaustion.",
    "resource",
    "estimate",
)
PROBABILITY = _of_resource(
    "exhaustion_probability_ratio",
    "Probability that the headroom is gone within this many seconds.",
    "resource",
    "within_seconds",
    decimals=3,
)
CULPRIT = info(  # stored as changes of level
    "risk_culprit",
    "Culprit, as far as known, and the evidence of exhaustion; absent without any.",
    "resource",
    "who",
    "kind",
    "cause",
    names=(RESOURCE_NAMES, CULPRIT_NAMES),
)
AGE = _of_resource(
    "risk_forecast_age_seconds",
    "Age of the forecast's sample; above 0 while no new one comes: then the headroom is not known.",
    "resource",
    stored=False,  # a late source is recorded in the database anyway
)
LEARNED = gauge(
    "learned_ceiling_bytes",
    "Most VRAM that could be allocated: an allocation failed there (seen), or probably did; absent until then.",
    "resource",
    "certainty",
)

METRICS = (LEVEL, HEADROOM, CAPACITY, CONSUMPTION, TIME_LEFT, PROBABILITY, CULPRIT, AGE, LEARNED)


def readings(forecasts: Iterable[Forecast]) -> Iterator[Reading]:
    """Turn forecasts into readings; unknown values are omitted."""
    for f in forecasts:
        labels = (f.resource,)
        yield Reading(LEVEL, int(f.level), labels)
        yield Reading(AGE, round(f.age_seconds, 1), labels)
        if f.cause == BLIND:
            continue
        yield Reading(HEADROOM, f.headroom_bytes, labels)
        yield Reading(CAPACITY, f.capacity_bytes, labels)
        if f.capacity_learned:
            yield Reading(LEARNED, f.capacity_bytes, (f.resource, f.capacity_learned))
        if f.rate_bytes_per_second is not None:
            yield Reading(CONSUMPTION, round(f.rate_bytes_per_second), labels)
        etas = {"early": f.eta_early_seconds, "middle": f.eta_seconds, "late": f.eta_late_seconds}
        for estimate, seconds in etas.items():
            if seconds is not None:
                yield Reading(TIME_LEFT, round(seconds), (f.resource, estimate))
        if f.level > Level.OK and f.who:
            yield Reading(CULPRIT, 1, (f.resource, str(f.who), f.who_kind, f.cause))
        for within, probability in f.probabilities.items():
            yield Reading(PROBABILITY, round(probability, 3), (f.resource, str(within)))
