"""Tests of the scores of the risk engine, see scoring.py."""

import pytest

from tests.bench import bench_score
from tests.bench.bench_score import TRACES
from tests.bench.scoring import (
    BASELINE_NAMES,
    Score,
    Truth,
    TruthError,
    alarms,
    brier,
    interval,
    read_truth,
    reliability,
    run_baseline,
)
from wslgpud.model import Level
from wslgpud.risk.trace import read_trace


def test_the_table_shows_the_engine_beside_the_simple_rules(capsys):
    assert bench_score.main([str(path) for path in sorted(TRACES.glob("*-1.jsonl.gz"))[:4]]) == 0
    out = capsys.readouterr().out
    for name in ("wslgpud without PSI", *BASELINE_NAMES, "Brier"):
        assert name in out


def test_without_a_truth_the_table_says_what_is_missing(tmp_path):
    with pytest.raises(SystemExit, match=r"mine\.jsonl\.gz"):
        bench_score.main([str(tmp_path / "mine.jsonl.gz")])


def test_baselines_fire_where_their_rule_says():
    path = TRACES / "ram-leak_linear-1.jsonl.gz"
    changes = run_baseline("used > 90 %", read_trace(path))
    assert next(level for _, resource, level in changes if resource == "ram") == Level.WARNING
    assert run_baseline("never", read_trace(path)) == []
    assert run_baseline("always", read_trace(path))[0][0] < 1.0
    prealloc = TRACES / "gpu-jax_prealloc-1.jsonl.gz"
    assert run_baseline("predict_linear 1 min -> 2 min", read_trace(prealloc))


def judged(changes, *, event=None, onset=0.0, tolerated=False, at_least=Level.WARNING):
    score = Score()
    truth = Truth("t", {} if event is None else {"ram": event}, onset, tolerated)
    score.add(truth, {"ram": changes}, at_least)
    return score


def test_an_alarm_that_holds_until_the_event_counts_as_right():
    score = judged([(60.0, Level.WARNING)], event=100.0)
    assert score.leads == [40.0]
    assert score.in_time == 1
    assert score.false_alarms == 0


def test_an_alarm_that_ended_well_before_the_event_is_false():
    score = judged([(60.0, Level.WARNING), (80.0, Level.OK)], event=100.0)
    assert score.leads == [0.0]
    assert score.false_alarms == 1


def test_half_of_what_was_possible_is_in_time_when_little_was():
    assert judged([(95.0, Level.WARNING)], event=100.0, onset=91.0).in_time == 1
    assert judged([(96.0, Level.WARNING)], event=100.0, onset=91.0).in_time == 0


def test_a_warning_is_fair_if_growth_stopped_but_critical_is_not():
    changes = [(10.0, Level.WARNING), (20.0, Level.CRITICAL), (30.0, Level.OK)]
    assert judged(changes, tolerated=True).false_alarms == 0
    assert judged(changes, tolerated=True).tolerated_with_alarm == 1
    assert judged(changes, tolerated=True, at_least=Level.CRITICAL).false_alarms == 1


def test_alarms_are_intervals_at_a_level_or_above():
    changes = [(1.0, Level.INFO), (2.0, Level.CRITICAL), (3.0, Level.WARNING), (4.0, Level.OK)]
    assert alarms(changes, Level.WARNING) == [(2.0, 4.0)]
    assert alarms(changes, Level.CRITICAL) == [(2.0, 3.0)]


@pytest.mark.parametrize(
    # Garwood's table, 95 %
    ("count", "least", "most"),
    [(0, 0.0, 3.689), (1, 0.0253, 5.572), (5, 1.623, 11.668), (20, 12.217, 30.888)],
)
def test_how_rare_something_is_has_exact_bounds(count, least, most):
    assert interval(count) == (pytest.approx(least, abs=2e-3), pytest.approx(most, abs=2e-3))


def test_the_brier_score_punishes_certainty_that_was_wrong():
    assert brier([(0.0, 1.0, 30.0)], 60.0) == 0.0
    assert brier([(0.0, 1.0, 90.0)], 60.0) == 1.0
    assert brier([(0.0, 0.5, None)], 60.0) == 0.25
    assert brier([], 60.0) is None


def test_reliability_sets_what_was_said_beside_what_came():
    said = [(0.0, 0.9, 30.0), (0.0, 0.9, None), (0.0, 0.1, None), (0.0, 0.0, None)]
    assert reliability(said, 60.0) == [(pytest.approx(0.1), 0.0, 1), (pytest.approx(0.9), 0.5, 2)]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "x", "events": [{}]}'])
def test_a_truth_that_is_none_is_named(tmp_path, text):
    path = tmp_path / "x.truth.json"
    path.write_text(text)
    with pytest.raises(TruthError, match=r"x\.truth\.json"):
        read_truth(path)
