"""Probability of exhaustion within a given time, as shown to users. Pure.

The engine decides by its certainty that a danger continues to its end, which ranks dangers well but is no probability.
This module calibrates it into one, verified on recordings that it was not fitted to: ``python -m
tests.bench.bench_reliability``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from wslgpud.risk.levels import Danger

#: seconds
HORIZONS = (60, 300, 900, 3600)


class Calibration(NamedTuple):
    """Maps the log-odds of the certainty to ``offset`` + ``slope`` x log-odds (Platt, 1999).

    The time to exhaustion is log-normal: its logarithm has the standard deviation ``spread``, around that of the
    engine's middle estimate minus ``sooner``.
    """

    offset: float
    slope: float
    spread: float
    sooner: float


CALIBRATION = Calibration(0.325, 0.65, 1.025, 0.65)
#: From here on a probability comes true as often as it says, on recordings that it was not fitted to; below it, as
#: often whatever it says: words say all that is known.
SURE, EVEN = 0.7, 0.5


def probabilities(danger: Danger | None, *, known: bool = True) -> dict[int, float]:
    """Return the probability of exhaustion within each horizon (seconds); empty with too few samples."""
    if danger is None:
        return dict.fromkeys(HORIZONS, 0.0) if known else {}
    return {horizon: within(horizon, danger.probability, danger.eta_seconds) for horizon in HORIZONS}


def within(seconds: float, certainty: float, eta_seconds: float, as_fitted: Calibration = CALIBRATION) -> float:
    """Return the probability that a danger of this certainty and middle estimate ends within ``seconds``."""
    offset, slope, spread, sooner = as_fitted
    odds_against = (1.0 - certainty) / certainty if certainty > 0.0 else math.inf
    comes = 1.0 / (1.0 + math.exp(-offset) * math.pow(odds_against, slope))
    deviation = (math.log(seconds / max(eta_seconds, 0.5)) + sooner) / spread
    return comes * 0.5 * (1.0 + math.erf(deviation / math.sqrt(2.0)))
