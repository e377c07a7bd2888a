"""The promise on a broad family of made-up machines: see tests/traces/wide.py."""

import importlib.util
import sys

from wslgpud.risk.replay import replay, score_engine
from wslgpud.risk.score import Truth

SEEDS = range(300, 303)
"""Few, for time's sake: ``python tests/bench/bench_wide.py`` takes many, and tells by scenario."""


def wide(traces):
    spec = importlib.util.spec_from_file_location("wide", traces[0].parent / "wide.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def scored(module, scenarios, paces):
    def pairs():
        for scenario in scenarios:
            for seed in SEEDS:
                drawn = module.draw(scenario, seed, paces=paces)
                told = drawn.truth()
                events = {event["resource"]: event["t"] for event in told["events"]}
                truth = Truth(told["name"], events, told["onset"], told["tolerated"])
                yield truth, replay(told["name"], drawn.observations())

    return score_engine("", pairs())


def test_what_ends_badly_on_machines_of_all_sizes_and_paces_is_warned_of_in_time(traces):
    module = wide(traces)
    line = scored(module, module.FATAL, (30.0, 1500.0))
    assert len(line.warning.leads) == len(module.FATAL) * len(SEEDS)
    assert line.warning.in_time >= 0.9 * len(line.warning.leads), line.warning.late
    assert sum(lead > 0 for lead in line.critical.leads) >= 0.8 * len(line.critical.leads), line.critical.late
    assert line.warning.alarms_before_events <= 1.2 * len(line.warning.leads), line.warning.noisy


def test_what_ends_well_there_is_left_in_peace(traces):
    module = wide(traces)
    line = scored(module, module.HARMLESS, (30.0, 1500.0))
    assert line.warning.quiet_traces >= 35
    assert line.warning.quiet_with_alarm <= line.warning.quiet_traces / 16, line.warning.noisy
    assert line.critical.quiet_with_alarm == 0, line.critical.noisy


def test_a_draw_is_the_same_each_time(traces):
    module = wide(traces)
    for scenario in (module.leak, module.saw, module.workers):
        first, second = (module.draw(scenario, 7) for _ in range(2))
        assert first.truth() == second.truth()
        assert list(first.observations()) == list(second.observations())
