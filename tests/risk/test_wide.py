"""The promise on a broad family of made-up machines: see tests/traces/wide.py."""

import pytest

from tests.bench.bench_wide import judged
from tests.traces import wide

SEEDS = range(300, 303)
"""Few, for time's sake: ``python -m tests.bench.bench_wide`` takes many, and tells by scenario."""


@pytest.mark.slow
def test_fatal_runs_of_all_sizes_and_paces_are_warned_of_in_time():
    line = judged("fatal", wide.FATAL, SEEDS, (30.0, 1500.0))
    assert len(line.warning.leads) == len(wide.FATAL) * len(SEEDS)
    assert line.warning.in_time >= 0.9 * len(line.warning.leads), line.warning.late
    assert sum(lead > 0 for lead in line.critical.leads) >= 0.8 * len(line.critical.leads), line.critical.late
    assert line.warning.alarms_before_events <= 1.2 * len(line.warning.leads), line.warning.noisy


@pytest.mark.slow
def test_what_ends_well_there_is_left_in_peace():
    line = judged("harmless", wide.HARMLESS, SEEDS, (30.0, 1500.0))
    assert line.warning.quiet_traces >= 35
    assert line.warning.quiet_with_alarm <= line.warning.quiet_traces / 16, line.warning.noisy
    assert line.critical.quiet_with_alarm == 0, line.critical.noisy


def test_a_draw_is_the_same_each_time():
    for scenario in (wide.leak, wide.saw, wide.workers):
        first, second = (wide.draw(scenario, 7) for _ in range(2))
        assert first.truth() == second.truth()
        assert list(first.observations()) == list(second.observations())
