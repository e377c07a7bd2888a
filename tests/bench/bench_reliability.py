"""Are the probabilities of forecasts reliable? Forecasts and outcomes by tenths, before and after calibration.

    python -m tests.bench.bench_reliability [--fit] [FILE or FOLDER]...

Every recording has the same weight, whatever its length. "Held out": each family of recordings (those of one program)
uses a calibration fitted without it. ``--fit`` prints the one fitted to all, for ``wslgpud/risk/levels.py``.
Default: all of ``tests/traces``.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from tests.bench.scoring import truth_beside
from wslgpud.risk import engine
from wslgpud.risk.levels import CALIBRATION, HORIZONS, Calibration, Danger, within
from wslgpud.risk.trace import read_trace, replay

TRACES = Path(__file__).parents[1] / "traces"
#: the engine's uncalibrated certainty, with the spread of times used before
AS_DECIDED = Calibration(0.0, 1.0, 0.6, 0.0)
#: forecasts without a danger are not judged
LEAST = 0.01
_FINEST = 0.02
#: forecasts of a recording that a fit sees
_FITTED = 20
#: the error function between -5 and 5, where it differs from -1 and 1
_ERF_AT = np.linspace(-5.0, 5.0, 4001)
_ERF = np.array([math.erf(x) for x in _ERF_AT])

Vector = NDArray[np.float64]


class Said(NamedTuple):
    """One forecast: its inputs, and the seconds until exhaustion (infinity: it did not happen)."""

    family: str
    weight: float
    certainty: float
    eta_seconds: float
    came_seconds: float


def family(name: str) -> str:
    """Return the program of a recording: its name without prefix and number."""
    return re.sub(r"^(ram|gpu|real|vm)-", "", re.sub(r"[-_]?\d+$", "", name))


def said(path: Path) -> Iterator[Said]:
    """Yield each forecast of a danger in a recording before its event."""
    truth = truth_beside(path)
    if truth is None:
        sys.exit(f"no .truth.json beside {path}")

    def as_it_is(danger: Danger | None, *, known: bool = True) -> dict[int, float]:
        return {0: danger.probability, 1: danger.eta_seconds} if danger is not None else {}

    with mock.patch.object(engine, "probabilities", as_it_is):
        forecasts = replay(truth.name, read_trace(path)).forecasts
    rows = [
        (f.probabilities[0], f.probabilities[1], math.inf if event is None else event - t)
        for resource, each in forecasts.items()
        for t, f in each
        for event in [truth.events.get(resource)]
        if f.probabilities and f.probabilities[0] > LEAST / 2 and (event is None or t < event)
    ]
    yield from (Said(family(truth.name), 1.0 / len(rows), *row) for row in rows)


def chances(rows: Sequence[Said], seconds: float, calibration: Calibration) -> Vector:
    return np.array([within(seconds, row.certainty, row.eta_seconds, calibration) for row in rows])


def came(rows: Sequence[Said], seconds: float) -> Vector:
    return np.array([row.came_seconds <= seconds for row in rows], float)


def logarithmic_loss(columns: Vector, calibration: Calibration) -> float:
    """Return the mean logarithmic loss over all horizons, 0 is best; ``columns``: those of `Said` without family."""
    weights, certainty, eta, ended = columns
    losses = []
    for horizon in HORIZONS:
        # ``within`` of the product, for all at once
        against = np.exp(-calibration.offset) * np.power((1.0 - certainty) / certainty, calibration.slope)
        deviation = (np.log(horizon / np.maximum(eta, 0.5)) + calibration.sooner) / calibration.spread
        chance = 0.5 * (1.0 + np.interp(deviation / math.sqrt(2.0), _ERF_AT, _ERF)) / (1.0 + against)
        chance = np.clip(chance, 1e-4, 1.0 - 1e-4)
        right = np.where(ended <= horizon, chance, 1.0 - chance)
        losses.append(-np.average(np.log(right), weights=weights))
    return float(np.mean(losses))


def fitted(rows: Sequence[Said], start: Calibration = CALIBRATION) -> Calibration:
    """Return the calibration with the least loss, by coordinate search over its four parameters."""
    best, step = start, 0.2
    columns = np.array([row[1:] for row in rows]).T
    least = logarithmic_loss(columns, best)
    while step > _FINEST:
        moved = False
        for number, sign in itertools.product(range(4), (step, -step)):
            values = list(best)
            values[number] += sign
            tried = Calibration(*values)
            if min(tried.slope, tried.spread) > 0.1 and (loss := logarithmic_loss(columns, tried)) < least - 1e-6:
                best, least, moved = tried, loss, True
        step = step if moved else step / 2
    return best


def tenths(said: Vector, true: Vector, weights: Vector) -> dict[int, tuple[float, float, float]]:
    """Return the mean forecast, the observed frequency and the weight for each tenth of the probabilities."""
    meant = said > LEAST
    said, true, weights = said[meant], true[meant], weights[meant]
    where = np.minimum(9, (said * 10).astype(int))
    return {
        int(tenth): (
            float(np.average(said[where == tenth], weights=weights[where == tenth])),
            float(np.average(true[where == tenth], weights=weights[where == tenth])),
            float(weights[where == tenth].sum()),
        )
        for tenth in np.unique(where)
    }


def off_by(found: Mapping[int, tuple[float, float, float]]) -> float:
    """Return the mean distance between forecast and observed frequency (calibration error)."""
    return sum(abs(said - true) * weight for said, true, weight in found.values()) / sum(
        w for _, _, w in found.values()
    )


def line(name: str, found: Mapping[int, tuple[float, float, float]]) -> str:
    cells = (f"{found[n][0]:4.0%} > {found[n][1]:4.0%}" if n in found else f"{'':>11}" for n in range(10))
    return f"{name:<24} {off_by(found):5.1%}  " + "  ".join(cells)


def main(arguments: Sequence[str]) -> int:
    named = [Path(argument) for argument in arguments if argument != "--fit"] or [TRACES]
    paths = [path for one in named for path in (sorted(one.rglob("*.jsonl.gz")) if one.is_dir() else [one])]
    each = [list(said(path)) for path in paths]
    rows = [row for one in each for row in one]
    thinned = (one[:: max(1, len(one) // _FITTED)] for one in each)
    few = [row._replace(weight=1.0 / len(one)) for one in thinned for row in one]
    families = sorted({row.family for row in rows})
    print(f"{len(paths)} recordings, {len(families)} families with a danger in sight, {len(rows)} forecasts of it\n")
    folds = [[row for row in rows if row.family == name] for name in families]
    learned = [fitted([row for row in few if row.family != name]) for name in families]
    shuffled = [row for fold in folds for row in fold]
    weights = np.array([row.weight for row in shuffled])
    print(f"{'':<24} {'off by':>6}  said > came true, by tenths")
    for horizon in HORIZONS:
        true = came(shuffled, horizon)
        held_out = np.concatenate([chances(*both) for both in zip(folds, itertools.repeat(horizon), learned)])
        print(f"within {horizon} s")
        print(line("  as the engine decides", tenths(chances(shuffled, horizon, AS_DECIDED), true, weights)))
        print(line("  calibrated", tenths(chances(shuffled, horizon, CALIBRATION), true, weights)))
        print(line("  calibrated, held out", tenths(held_out, true, weights)))
    if "--fit" in arguments:
        print("\n" + repr(fitted(few)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
