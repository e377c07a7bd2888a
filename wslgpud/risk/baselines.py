"""The simple rules that others use, as detectors to compare with: observation in, level per resource out.

Where each comes from is told in ``risk/README.md``. Every one is as good as its authors meant it; none
knows what grows, nor whether it fits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from wslgpud.model import Level, Observation
from wslgpud.risk.headroom import rooms
from wslgpud.risk.pressure import PressureMeter
from wslgpud.words import template

Change = tuple[float, str, Level]
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
    """Least squares over ``window`` seconds, as Prometheus' function of that name does it."""

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
    template("always"): lambda: lambda _t, _share, _full: True,
    template("never"): lambda: lambda _t, _share, _full: False,
    template("used > 90 %"): _used_above(0.90),
    template("used > 95 %"): _used_above(0.95),
    template("PSI full 60 % for 30 s"): _psi_full(0.60, 30.0),
    template("predict_linear 1 min -> 2 min"): _predict_linear(60.0, 120.0, 1.1),
    template("predict_linear 5 min -> 10 min"): _predict_linear(300.0, 600.0, 1.1),
    template("predict_linear 30 s -> 60 s, < 30 % free"): _predict_linear(30.0, 60.0, 0.3),
}


def _ten_ten(observation: Observation) -> bool:
    """Tell whether both RAM and swap are below 10 %, as earlyoom has it (no swap counts as none free)."""
    ram, swap = observation.ram, observation.swap
    if ram is None or ram.available > 0.10 * ram.total:
        return False
    return swap is None or swap.free <= 0.10 * swap.total


def run_baseline(name: str, observations: Iterator[Observation]) -> list[Change]:
    """Return the changes of level that a baseline makes of a trace: ok and warning."""
    rules: dict[str, Rule] = {}
    levels: dict[str, Level] = {}
    changes: list[Change] = []
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


EARLYOOM = template("earlyoom's 10 % / 10 %")
BASELINE_NAMES = (*list(BASELINES)[:4], EARLYOOM, *list(BASELINES)[4:])
