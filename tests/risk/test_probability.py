"""Probabilities behave as such: they grow with time and certainty, and come true as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench import bench_reliability
from tests.bench.bench_reliability import AS_DECIDED, TRACES, came, chances, logarithmic_loss, off_by, said, tenths
from wslgpud.risk.levels import CALIBRATION, HORIZONS, SURE, Danger, probabilities, within

certainties = st.floats(0.0, 1.0)
times = st.floats(0.0, 1e5)


@given(certainties, certainties, times, times, st.floats(0.1, 1e5))
def test_more_certainty_and_more_time_never_make_it_less_likely(one, other, early, late, eta):
    low, high = sorted((one, other))
    short, long = sorted((max(early, 0.1), max(late, 0.1)))

    assert 0.0 <= within(short, low, eta) <= within(long, low, eta) <= 1.0
    assert within(short, low, eta) <= within(short, high, eta)


def test_what_is_certain_or_impossible_stays_so():
    assert within(3600, 1.0, 1.0) == pytest.approx(1.0, abs=1e-3)
    assert within(3600, 0.0, 1.0) == 0.0


def test_a_danger_has_a_probability_for_each_horizon_to_one_hour():
    told = probabilities(Danger("growth", 0.5, 120.0, 10.0))
    assert told == pytest.approx({60: 0.281, 300: 0.544, 900: 0.578, 3600: 0.581}, abs=0.0005)
    assert within(1, 0.9, 0.2) == within(1, 0.9, 0.5) > within(1, 0.9, 0.6), "half a second is the least"
    assert [within(60, certainty, 60.0) for certainty in (0.2, 0.9)] == pytest.approx([0.265, 0.628], abs=0.0005)
    assert (within(3600, 0.0, 1.0), within(3600, 1.0, 1.0)) == pytest.approx((0.0, 1.0))
    assert probabilities(None) == {60: 0.0, 300: 0.0, 900: 0.0, 3600: 0.0}
    assert probabilities(None, known=False) == {}


@pytest.mark.slow
def test_forecast_probabilities_come_true_within_eight_percent():
    rows = [row for path in sorted(TRACES.rglob("*.jsonl.gz")) for row in said(path)]
    weights = np.array([row.weight for row in rows])

    for horizon in HORIZONS:
        true = came(rows, horizon)
        told = chances(rows, horizon, CALIBRATION)
        assert off_by(tenths(told, true, weights)) < 0.085
        sure = told >= SURE
        assert np.average(true[sure], weights=weights[sure]) > SURE
    columns = np.array([row[1:] for row in rows]).T
    assert logarithmic_loss(columns, CALIBRATION) < logarithmic_loss(columns, AS_DECIDED) - 0.01


@pytest.mark.slow
def test_the_command_prints_what_was_said_beside_what_came_true(capsys):
    names = [str(path) for path in sorted(TRACES.glob("*-1.jsonl.gz"))]

    assert bench_reliability.main(names) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{len(names)} recordings")
    assert printed.count("calibrated, held out") == len(HORIZONS)
