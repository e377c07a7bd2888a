"""Runs the daemon's own engine over recorded observations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from wslgpud.model import Forecast, Level, Observation, Transition
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.settings import RiskSettings
from wslgpud.words import cause, say

Points = list[tuple[float, float, float | None, Level]]
#: size limit of a truth file; a long one has a few hundred bytes
_MAX_BYTES = 1 << 20


class TruthError(ValueError):
    """A truth file cannot be read; the message names it and the reason."""


@dataclass(slots=True)
class Replay:
    """The engine's output for one trace: changes of level, and by resource the forecast of each sample.

    ``start_wall`` is the wall time of second 0, if known.
    """

    name: str
    changes: list[Transition] = field(default_factory=list)
    forecasts: dict[str, list[tuple[float, Forecast]]] = field(default_factory=dict)
    samples: int = 0
    seconds: float = 0.0
    start_wall: float | None = None

    def points(self) -> dict[str, Points]:
        """Return, by resource, (time, share of headroom, time to exhaustion or None, level) of every sample."""
        return {
            resource: [(t, f.headroom_bytes / f.capacity_bytes, f.eta_seconds, f.level) for t, f in seen]
            for resource, seen in self.forecasts.items()
        }


def trace_name(path: Path) -> str:
    """Return a trace's name: the file name up to its first dot."""
    return path.name.partition(".")[0]


def replay(name: str, observations: Iterable[Observation], settings: RiskSettings | None = None) -> Replay:
    """Run a fresh engine over the observations."""
    engine, result, first = RiskEngine(settings), Replay(name), None
    for observation in observations:
        assessment = engine.observe(observation)
        result.changes.extend(assessment.changes)
        for forecast in assessment.forecasts:
            result.forecasts.setdefault(forecast.resource, []).append((observation.t, forecast))
        first = observation.t if first is None else first
        result.samples += 1
        result.seconds = observation.t - first
    return result


def events_beside(path: Path) -> dict[str, float]:
    """Return when each resource of a trace ran out, from ``NAME.truth.json`` beside it; empty without one.

    Raises:
        TruthError: it exists, but cannot be read.
    """
    beside = path.parent / f"{trace_name(path)}.truth.json"
    try:
        with beside.open("rb") as file:
            rows = json.loads(file.read(_MAX_BYTES))["events"]  # a longer file is cut off and fails to parse
        times = sorted(((str(row["resource"]), float(row["t"])) for row in rows), reverse=True)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        kind = type(error).__name__
        said = say("{path}: not a truth file ({kind}: {error})", path=str(beside), kind=kind, error=cause(error))
        raise TruthError(said) from error
    return dict(times)  # the first event of each resource
