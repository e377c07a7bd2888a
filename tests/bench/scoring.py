"""Scores of warnings: alarms compared with the events that followed, also for simple rules used elsewhere.

An alarm is an interval at warning or above. It is right if the first out-of-memory event of its resource falls inside
it or at most 10 s after its end. It is in time if it began 15 s before (a critical, which means seconds left, act now:
5 s), or half of the time possible if that is less (counted from the truth's "onset"). It is false otherwise, unless
memory in the trace climbed close to the limit and stopped by itself ("tolerated"): a mere warning is fair there.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from wslgpud.model import Level, Observation
from wslgpud.risk.headroom import rooms
from wslgpud.risk.levels import HORIZONS
from wslgpud.risk.scarcity import PressureMeter
from wslgpud.risk.settings import RiskSettings
from wslgpud.risk.trace import Replay, read_trace, replay, trace_name

GRACE_SECONDS = 10.0
NEEDED_SECONDS = {Level.WARNING: 15.0, Level.CRITICAL: 5.0}
MAX_LEAD_SECONDS = 300.0

Changes = Mapping[str, Sequence[tuple[float, Level]]]


@dataclass(frozen=True, slots=True)
class Truth:
    """The events of a trace: the first of each resource, and when it became foreseeable.

    ``tolerated``: a warning is fair, ``brink``: a critical as well; ``onsets`` holds the resources with their own.
    """

    name: str
    events: Mapping[str, float]
    onset: float = 0.0
    tolerated: bool = False
    brink: bool = False
    onsets: Mapping[str, float] = field(default_factory=dict)

    def needed(self, resource: str, level: Level = Level.WARNING) -> float:
        """Return the lead in seconds with which an alarm of that level counts as in time."""
        onset = self.onsets.get(resource, self.onset)
        return min(NEEDED_SECONDS[level], 0.5 * (self.events[resource] - onset))


class TruthError(ValueError):
    """A truth file cannot be read; the message names it and the reason."""


def read_truth(path: Path) -> Truth:
    """Read ``NAME.truth.json``.

    Raises:
        TruthError: the file is not what it should be.
    """
    try:
        raw = json.loads(path.read_bytes())
        events: dict[str, float] = {}
        for event in raw["events"]:
            resource, t = str(event["resource"]), float(event["t"])
            events[resource] = min(t, events.get(resource, math.inf))
        return Truth(
            str(raw["name"]),
            events,
            float(raw.get("onset", 0.0)),
            bool(raw.get("tolerated", False)),
            bool(raw.get("brink", False)),
            {str(event["resource"]): float(event["onset"]) for event in raw["events"] if "onset" in event},
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TruthError(f"{path}: not a truth file ({type(error).__name__}: {error})") from error


def alarms(changes: Sequence[tuple[float, Level]], at_least: Level) -> list[tuple[float, float]]:
    """Turn changes of level in order into intervals (start, end) at ``at_least`` or above."""
    found, start = [], None
    for t, level in changes:
        if level >= at_least and start is None:
            start = t
        elif level < at_least and start is not None:
            found.append((start, t))
            start = None
    if start is not None:
        found.append((start, math.inf))
    return found


@dataclass(slots=True)
class Score:
    """Sums over traces at one threshold of level; leads in seconds, 0 for a missed event."""

    leads: list[float] = field(default_factory=list)
    in_time: int = 0
    quiet_traces: int = 0
    quiet_with_alarm: int = 0
    tolerated_traces: int = 0
    tolerated_with_alarm: int = 0
    false_alarms: int = 0
    alarms_before_events: int = 0
    late: list[str] = field(default_factory=list)
    noisy: list[str] = field(default_factory=list)

    def add(self, truth: Truth, changes: Changes, at_least: Level) -> None:
        """Judge one trace."""
        false = 0
        for resource in sorted(set(changes) | set(truth.events)):
            raised = alarms(changes.get(resource, ()), at_least)
            if resource in truth.events:
                false += self._add_event(truth, resource, raised, at_least)
            else:
                false += len(raised)
        if truth.tolerated:
            self.tolerated_traces += 1
            self.tolerated_with_alarm += bool(false)
            if at_least == Level.WARNING or truth.brink:
                return
        elif not truth.events:
            self.quiet_traces += 1
            self.quiet_with_alarm += bool(false)
        self.false_alarms += false
        if false:
            self.noisy.append(truth.name)

    def _add_event(self, truth: Truth, resource: str, raised: Sequence[tuple[float, float]], at_least: Level) -> int:
        """Judge the alarms before an event; return how many were false."""
        event, needed, lead, false = truth.events[resource], truth.needed(resource, at_least), 0.0, 0
        for start, end in raised:
            if start >= event:
                continue
            self.alarms_before_events += 1
            if event <= end + GRACE_SECONDS:
                lead = max(lead, min(MAX_LEAD_SECONDS, event - start))
            else:
                false += 1
        self.leads.append(lead)
        if lead >= needed:
            self.in_time += 1
        else:
            self.late.append(f"{truth.name} ({lead:.1f} of {needed:.1f} s)")
        return false

    def share_at(self, seconds: float) -> float | None:
        """Return the share of events with a warning at least ``seconds`` before."""
        return sum(lead >= seconds for lead in self.leads) / len(self.leads) if self.leads else None

    @property
    def median_lead(self) -> float | None:
        """Median lead in seconds, missed events as 0."""
        return statistics.median(self.leads) if self.leads else None


def interval(count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return exact confidence limits for the expected number of rare events, given that ``count`` were observed.

    Garwood, F. (1936): Fiducial limits for the Poisson distribution. Biometrika 28, https://doi.org/10.2307/2333958
    """
    tail = (1 - confidence) / 2

    def at_most(seen: int, expected: float) -> float:
        return math.fsum(math.exp(k * math.log(expected) - expected - math.lgamma(k + 1)) for k in range(seen + 1))

    def where(falls: Callable[[float], bool]) -> float:
        low, high = 1e-9, 10.0 * (count + 10)
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if falls(middle) else (low, middle)
        return low

    least = where(lambda expected: 1 - at_most(count - 1, expected) < tail) if count else 0.0
    return least, where(lambda expected: at_most(count, expected) > tail)


MessageLike = tuple[float, float, float | None]
"""(time, probability of exhaustion within some horizon, time of the event or None)."""


def _came(said: MessageLike, horizon: float) -> bool:
    t, _, event = said
    return event is not None and 0 <= event - t <= horizon


def brier(forecasts: Iterable[MessageLike], horizon: float) -> float | None:
    """Return the Brier score for a horizon in seconds (0 is best; 0.25 is a coin toss)."""
    errors = [(said[1] - _came(said, horizon)) ** 2 for said in forecasts]
    return statistics.fmean(errors) if errors else None


def reliability(forecasts: Iterable[MessageLike], horizon: float) -> list[tuple[float, float, int]]:
    """Return (mean forecast, observed frequency, samples) for each fifth of the probabilities above 0."""
    fifths: list[list[tuple[float, bool]]] = [[] for _ in range(5)]
    for said in forecasts:
        if said[1] > 0.0:
            fifths[min(4, int(5 * said[1]))].append((said[1], _came(said, horizon)))
    return [
        (statistics.fmean(p for p, _ in fifth), statistics.fmean(came for _, came in fifth), len(fifth))
        for fifth in fifths
        if fifth
    ]


# Simple rules used elsewhere, as baselines. Their sources are in
# ``wslgpud/risk/README.md``. Each is implemented as its authors intended; none knows what grows, or whether
# it fits.

Rule = Callable[[float, float, float], bool]
"""(seconds, share of headroom, PSI full over 10 s) -> alarm."""


def _used_above(limit: float) -> Callable[[], Rule]:
    def make() -> Rule:
        return lambda _t, share, _full: 1.0 - share > limit

    return make


def _psi_full(limit: float, seconds: float) -> Callable[[], Rule]:
    def make() -> Rule:
        since: list[float] = []

        def rule(t: float, _share: float, full: float) -> bool:
            if full <= limit:
                since.clear()
                return False
            if not since:
                since.append(t)
            return t - since[0] >= seconds

        return rule

    return make


def _predict_linear(window: float, ahead: float, below: float) -> Callable[[], Rule]:
    """Least squares over ``window`` seconds, like Prometheus' function of that name."""

    def make() -> Rule:
        seen: deque[tuple[float, float]] = deque()

        def rule(t: float, share: float, _full: float) -> bool:
            seen.append((t, share))
            while t - seen[0][0] > window:
                seen.popleft()
            if len(seen) < 2 or share >= below:
                return False
            n = len(seen)
            mean_t = sum(x for x, _ in seen) / n
            mean_s = sum(y for _, y in seen) / n
            spread = sum((x - mean_t) ** 2 for x, _ in seen)
            if spread <= 0:
                return False
            slope = sum((x - mean_t) * (y - mean_s) for x, y in seen) / spread
            return mean_s + slope * (t + ahead - mean_t) < 0

        return rule

    return make


BASELINES: dict[str, Callable[[], Rule]] = {
    "always": lambda: lambda _t, _share, _full: True,
    "never": lambda: lambda _t, _share, _full: False,
    "used > 90 %": _used_above(0.90),
    "used > 95 %": _used_above(0.95),
    "PSI full 60 % for 30 s": _psi_full(0.60, 30.0),
    "predict_linear 1 min -> 2 min": _predict_linear(60.0, 120.0, 1.1),
    "predict_linear 5 min -> 10 min": _predict_linear(300.0, 600.0, 1.1),
    "predict_linear 30 s -> 60 s, < 30 % free": _predict_linear(30.0, 60.0, 0.3),
}


def _ten_ten(observation: Observation) -> bool:
    """Return whether both RAM and swap are below 10 %, like earlyoom (no swap counts as none free)."""
    ram, swap = observation.ram, observation.swap
    if ram is None or ram.available > 0.10 * ram.total:
        return False
    return swap is None or swap.free <= 0.10 * swap.total


def run_baseline(name: str, observations: Iterator[Observation]) -> list[tuple[float, str, Level]]:
    """Return a baseline's changes of level (ok and warning) in a trace."""
    rules: dict[str, Rule] = {}
    levels: dict[str, Level] = {}
    changes: list[tuple[float, str, Level]] = []
    meter = PressureMeter()
    for observation in observations:
        full = meter.push(observation).full
        for room in rooms(observation, {}):
            if name == EARLYOOM:
                alarm = _ten_ten(observation) if room.resource == "ram" else room.share < 0.10
            else:
                rule = rules.setdefault(room.resource, BASELINES[name]())
                alarm = rule(observation.t, room.share, full if room.resource == "ram" else 0.0)
            level = Level.WARNING if alarm else Level.OK
            if level != levels.get(room.resource, Level.OK):
                changes.append((observation.t, room.resource, level))
            levels[room.resource] = level
    return changes


EARLYOOM = "earlyoom's 10 % / 10 %"
BASELINE_NAMES = (*list(BASELINES)[:4], EARLYOOM, *list(BASELINES)[4:])


def without_psi(observations: Iterable[Observation]) -> Iterator[Observation]:
    """Remove PSI, as on WSL2's default kernel."""
    for observation in observations:
        yield replace(observation, psi={})


@dataclass(slots=True)
class Line:
    """A detector's scores over a set of traces."""

    name: str
    warning: Score = field(default_factory=Score)
    critical: Score = field(default_factory=Score)
    #: silent recordings, and the alarms in them
    quiet_seconds: float = 0.0
    quiet_alarms: int = 0
    calibration: dict[int, float] = field(default_factory=dict)
    reliability: dict[int, list[tuple[float, float, int]]] = field(default_factory=dict)


def truth_beside(path: Path) -> Truth | None:
    """Return the truth of a trace (``NAME.truth.json`` beside it), or None.

    Raises:
        TruthError: there is one, but it cannot be read.
    """
    beside = path.parent / f"{trace_name(path)}.truth.json"
    return read_truth(beside) if beside.exists() else None


def score_engine(name: str, pairs: Iterable[tuple[Truth, Replay]]) -> Line:
    """Judge replays of the engine."""
    line = Line(name)
    seen: dict[int, list[MessageLike]] = {horizon: [] for horizon in HORIZONS}
    for truth, result in pairs:
        levels: dict[str, list[tuple[float, Level]]] = {}
        for change in result.changes:
            levels.setdefault(change.resource, []).append((change.mono, change.new))
        before = line.warning.false_alarms
        line.warning.add(truth, levels, Level.WARNING)
        line.critical.add(truth, levels, Level.CRITICAL)
        if not truth.events and not truth.tolerated:
            line.quiet_seconds += result.seconds
            line.quiet_alarms += line.warning.false_alarms - before
        for resource, forecasts in result.forecasts.items():
            event = truth.events.get(resource)
            for t, forecast in forecasts:
                if event is None or t < event:
                    for horizon, chance in forecast.probabilities.items():
                        seen[horizon].append((t, chance, event))
    for horizon, said in seen.items():
        error = brier(said, horizon)
        if error is not None:
            line.calibration[horizon] = error
        line.reliability[horizon] = reliability(said, horizon)
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
        score_engine("wslgpud", ((truth, replay(truth.name, read(path), settings)) for path, truth in traces)),
        score_engine(
            "wslgpud without PSI",
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
