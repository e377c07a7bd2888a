"""Run the daemon's own engine over recorded observations, and judge it where the truth is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from wslgpud.model import Level, Observation
from wslgpud.risk.baselines import BASELINE_NAMES, run_baseline
from wslgpud.risk.engine import HORIZONS, LevelChange, RiskEngine
from wslgpud.risk.score import Said, Score, Truth, brier, read_truth, reliability
from wslgpud.risk.settings import RiskSettings
from wslgpud.risk.trace import read_trace
from wslgpud.words import template

Points = list[tuple[float, float, float | None, Level]]


@dataclass(slots=True)
class Replay:
    """What the engine made of one trace.

    ``points`` holds, per resource, (time, share of headroom, time to exhaustion or None, level) of every
    sample; ``odds`` (time, probability within each horizon). ``start_wall`` is when second 0 was, if
    that is known.
    """

    name: str
    changes: list[LevelChange] = field(default_factory=list)
    points: dict[str, Points] = field(default_factory=dict)
    odds: dict[str, list[tuple[float, dict[int, float]]]] = field(default_factory=dict)
    samples: int = 0
    seconds: float = 0.0
    start_wall: float | None = None

    def levels(self) -> dict[str, list[tuple[float, Level]]]:
        """Return the changes of level per resource, as the score wants them."""
        found: dict[str, list[tuple[float, Level]]] = {}
        for change in self.changes:
            found.setdefault(change.resource, []).append((change.t, change.new))
        return found


def trace_name(path: Path) -> str:
    """Return a trace's name: the file's up to its first dot."""
    return path.name.split(".", 1)[0]


def replay(name: str, observations: Iterable[Observation], settings: RiskSettings | None = None) -> Replay:
    """Run a fresh engine over the observations."""
    engine, result, first = RiskEngine(settings), Replay(name), None
    for observation in observations:
        assessment = engine.observe(observation)
        result.changes.extend(assessment.changes)
        for forecast in assessment.forecasts:
            share = forecast.headroom_bytes / max(1, forecast.capacity_bytes)
            point = (observation.t, share, forecast.eta_seconds, forecast.level)
            result.points.setdefault(forecast.resource, []).append(point)
            result.odds.setdefault(forecast.resource, []).append(
                (observation.t, dict(forecast.probabilities))
            )
        first = observation.t if first is None else first
        result.samples += 1
        result.seconds = observation.t - first
    return result


def without_psi(observations: Iterable[Observation]) -> Iterator[Observation]:
    """Take PSI away, as on WSL2's default kernel."""
    for observation in observations:
        yield replace(observation, psi={})


@dataclass(slots=True)
class Line:
    """One detector's scores over a set of traces."""

    name: str
    warning: Score = field(default_factory=Score)
    critical: Score = field(default_factory=Score)
    calibration: dict[int, float] = field(default_factory=dict)
    reliability: dict[int, list[tuple[float, float, int]]] = field(default_factory=dict)


def truth_beside(path: Path) -> Truth | None:
    """Return the truth that lies beside a trace (``NAME.truth.json``), or None.

    Raises:
        TruthError: there is one, but it cannot be read.
    """
    beside = path.parent / f"{trace_name(path)}.truth.json"
    return read_truth(beside) if beside.exists() else None


def score_engine(name: str, pairs: Iterable[tuple[Truth, Replay]]) -> Line:
    """Judge replays of the engine."""
    line = Line(name)
    seen: dict[int, list[Said]] = {horizon: [] for horizon in HORIZONS}
    for truth, result in pairs:
        line.warning.add(truth, result.levels(), Level.WARNING)
        line.critical.add(truth, result.levels(), Level.CRITICAL)
        for resource, odds in result.odds.items():
            event = truth.events.get(resource)
            for t, chances in odds:
                if event is None or t < event:
                    for horizon, chance in chances.items():
                        seen[horizon].append((t, chance, event))
    for horizon, forecasts in seen.items():
        error = brier(forecasts, horizon)
        if error is not None:
            line.calibration[horizon] = error
        line.reliability[horizon] = reliability(forecasts, horizon)
    return line


def score_all(
    traces: list[tuple[Path, Truth]],
    settings: RiskSettings | None = None,
    *,
    baselines: Iterable[str] = BASELINE_NAMES,
    read: Callable[[Path], Iterator[Observation]] = read_trace,
) -> list[Line]:
    """Score the engine with and without PSI, and every baseline, over the same traces."""
    lines = [
        score_engine(
            "wslgpud", ((truth, replay(truth.name, read(path), settings)) for path, truth in traces)
        ),
        score_engine(
            template("wslgpud without PSI"),
            ((truth, replay(truth.name, without_psi(read(path)), settings)) for path, truth in traces),
        ),
    ]
    for name in baselines:
        line = Line(name)
        for path, truth in traces:
            levels: dict[str, list[tuple[float, Level]]] = {}
            for t, resource, level in run_baseline(name, read(path)):
                levels.setdefault(resource, []).append((t, level))
            line.warning.add(truth, levels, Level.WARNING)
        lines.append(line)
    return lines
