"""Two speeds: while nothing moves, only what can end a training within seconds is read at every tick."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wslgpud.model import Forecast, Level, Observation

#: while all is calm, only what can end a training within seconds is read at every tick, the rest this often
CALM_SECONDS = 5.0
#: calm ends once a resource's headroom has moved by this share of its capacity since everything was read
MOVED_RATIO = 0.01
#: nothing is calm with less than this share of a resource left: stalls may come without a movement
CALM_HEADROOM_RATIO = 0.15


@dataclass(frozen=True)
class Scene:
    """What must stay as it is for calm to last: headroom by resource, and the programs on the cards."""

    headroom_bytes: Mapping[str, int]
    programs: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, observation: Observation, forecasts: Iterable[Forecast]) -> Scene:
        programs = frozenset((gpu.index, process.pid) for gpu in observation.gpus for process in gpu.processes)
        return cls({forecast.resource: forecast.headroom_bytes for forecast in forecasts}, programs)


def is_calm(scene: Scene, before: Scene, forecasts: Sequence[Forecast]) -> bool:
    """Return whether nothing has happened since ``before`` that could lead to a warning."""
    return (
        scene.programs == before.programs
        and bool(forecasts)
        and all(
            forecast.level == Level.OK
            and forecast.eta_seconds is None
            and forecast.headroom_bytes >= CALM_HEADROOM_RATIO * forecast.capacity_bytes
            and forecast.resource in before.headroom_bytes
            and abs(forecast.headroom_bytes - before.headroom_bytes[forecast.resource])
            < MOVED_RATIO * forecast.capacity_bytes
            for forecast in forecasts
        )
    )
