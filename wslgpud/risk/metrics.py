"""What the forecasts look like as metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wslgpud.metrics import CULPRIT_NAMES, RESOURCE_NAMES, MetricSpec
from wslgpud.model import Forecast, Level, Reading

_RESOURCE = ("resource",)
_NAMES = (RESOURCE_NAMES,)

LEVEL = MetricSpec(
    "risk_level",
    "gauge",
    "",
    "How bad it is: 0 ok, 1 info, 2 warning, 3 critical, 4 emergency.",
    _RESOURCE,
    names=_NAMES,
)
HEADROOM = MetricSpec(
    "headroom_bytes",
    "gauge",
    "bytes",
    "Memory that can still be taken before allocations fail: RAM with swap, VRAM below its real ceiling.",
    _RESOURCE,
    names=_NAMES,
)
CAPACITY = MetricSpec(
    "headroom_capacity_bytes",
    "gauge",
    "bytes",
    "What the headroom would be if nothing were used.",
    _RESOURCE,
    names=_NAMES,
)
CONSUMPTION = MetricSpec(
    "consumption_bytes_per_second",
    "gauge",
    "bytes_per_second",
    "Rate at which the headroom shrinks (negative: it grows).",
    _RESOURCE,
    names=_NAMES,
)
TIME_LEFT = MetricSpec(
    "time_to_exhaustion_seconds",
    "gauge",
    "seconds",
    "Time until the headroom is gone if it goes on like this: early, middle and late end of the range. "
    "Absent while nothing points to exhaustion.",
    ("resource", "estimate"),
    names=_NAMES,
)
PROBABILITY = MetricSpec(
    "exhaustion_probability_ratio",
    "gauge",
    "ratio",
    "Probability that the headroom is gone within so many seconds.",
    ("resource", "within_seconds"),
    decimals=3,
    names=_NAMES,
)
CULPRIT = MetricSpec(
    "risk_culprit",
    "info",
    "",
    "Who takes the memory, as far as is known, and what points to exhaustion; absent while nothing does.",
    ("resource", "who", "kind", "cause"),
    stored=False,  # the changes of level keep it
    names=(RESOURCE_NAMES, CULPRIT_NAMES),
)

AGE = MetricSpec(
    "risk_forecast_age_seconds",
    "gauge",
    "seconds",
    "Age of the sample that the forecast rests on; above 0 while no new one comes and the last one is held.",
    _RESOURCE,
    decimals=1,
    stored=False,  # a source that is late says so in the database itself
    names=_NAMES,
)
LEARNED = MetricSpec(
    "learned_ceiling_bytes",
    "gauge",
    "bytes",
    "Most VRAM that could be had: an allocation failed there (seen), or probably did; absent until then.",
    ("resource", "certainty"),
)

METRICS = (LEVEL, HEADROOM, CAPACITY, CONSUMPTION, TIME_LEFT, PROBABILITY, CULPRIT, AGE, LEARNED)


def readings(forecasts: Iterable[Forecast]) -> Iterator[Reading]:
    """Turn forecasts into readings; what a forecast does not know is left out."""
    for forecast in forecasts:
        labels = (forecast.resource,)
        yield Reading(LEVEL, int(forecast.level), labels)
        yield Reading(HEADROOM, forecast.headroom_bytes, labels)
        yield Reading(CAPACITY, forecast.capacity_bytes, labels)
        yield Reading(AGE, round(forecast.age_seconds, 1), labels)
        if forecast.capacity_learned:
            learned = (forecast.resource, forecast.capacity_learned)
            yield Reading(LEARNED, forecast.capacity_bytes, learned)
        if forecast.rate_bytes_per_second is not None:
            yield Reading(CONSUMPTION, round(forecast.rate_bytes_per_second), labels)
        for estimate, seconds in (
            ("early", forecast.eta_early_seconds),
            ("middle", forecast.eta_seconds),
            ("late", forecast.eta_late_seconds),
        ):
            if seconds is not None:
                yield Reading(TIME_LEFT, round(seconds), (forecast.resource, estimate))
        if forecast.level > Level.OK and forecast.who:
            culprit = (forecast.resource, str(forecast.who), forecast.who_kind, forecast.cause)
            yield Reading(CULPRIT, 1, culprit)
        for within, probability in forecast.probabilities.items():
            yield Reading(PROBABILITY, round(probability, 3), (forecast.resource, str(within)))
