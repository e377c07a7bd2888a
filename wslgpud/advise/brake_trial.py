"""A dry run of the brake: its rule over this machine's own history, and how that ended without it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

from wslgpud.alerts.incidents import Incident, grouped, story
from wslgpud.alerts.messages import outcome
from wslgpud.brake.policy import attribution_probability, resource_kind, should_pause, waits_for_zram
from wslgpud.config import BrakeSettings
from wslgpud.metrics import MetricSpec
from wslgpud.model import MEMORY, Forecast, Level, Number
from wslgpud.risk.engine import RiskEngine
from wslgpud.sampling.observation import OLDEST_SECONDS, observations
from wslgpud.store import Reader
from wslgpud.words import say
from wslgpud.words.moments import iso

#: history shown to the engine before an incident, as it judges growth by the past, and the longest part examined
BEFORE_SECONDS, MAX_SECONDS = 900.0, 6 * 3600.0


def pauses(reader: Reader, walls: tuple[float, float], settings: BrakeSettings) -> Iterator[dict[str, Any]]:
    """Yield when a job would have been paused in a part of the history, which one, and how it ended, with messages.

    Only critical incidents are examined: the brake requires that and more. The history does not show a program's owner,
    nor whether it is exempt from pausing.
    """
    start, end = walls
    for incident in sorted(grouped(reader.changes()), key=lambda one: one.id):
        asked = story(incident.rule) == MEMORY and resource_kind(incident.resource) in settings.resources
        if not asked or incident.worst < Level.CRITICAL or not start <= incident.opened_wall <= end:
            continue
        if (found := _first(reader, incident, end)) is not None:
            wall, forecast = found
            sure = (
                attribution_probability(forecast) >= settings.act_on_likelihood
                or resource_kind(incident.resource) != "gpu"
            )
            yield {
                "incident": incident.id,
                "at": iso(wall),
                "resource": incident.resource,
                "who": forecast.who if sure else "",
                "left_bytes": forecast.headroom_bytes,
                "capacity_bytes": forecast.capacity_bytes,
                "outcome": outcome(incident) or say("killed for lack of memory"),
            }


def _first(reader: Reader, incident: Incident, end: float) -> tuple[float, Forecast] | None:
    """Return when the brake would first have acted in an incident, and on which forecast."""
    engine, begin = RiskEngine(), incident.opened_wall - BEFORE_SECONDS
    until = min(end, incident.closed_wall or end, incident.opened_wall + MAX_SECONDS)
    value = _recorded(reader, begin, until)
    for seen in observations(reader, begin, until):
        for forecast in engine.observe(seen).forecasts:
            due = forecast.resource == incident.resource and should_pause(forecast)
            if due and not waits_for_zram(forecast, partial(value, seen.t)):
                return seen.t, forecast
    return None


def _recorded(reader: Reader, start_wall: float, end_wall: float) -> Callable[..., Number | None]:
    """Return a function that returns the value of a series at a moment, if it was known then."""
    columns = cache(partial(reader.columns, start_wall=start_wall, end_wall=end_wall))
    refs = {(ref.metric, ref.labels): ref for ref in reader.series()}

    def value(wall: float, spec: MetricSpec, *labels: str) -> Number | None:
        ref = refs.get((spec.name, tuple(zip(spec.labels, labels, strict=True))))
        walls, values = columns(ref) if ref else ([], [])
        place = bisect_right(walls, wall) - 1
        return values[place] if place >= 0 and wall - walls[place] <= OLDEST_SECONDS else None

    return value
