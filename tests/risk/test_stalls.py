"""Pressure: the share of the last ten seconds lost to memory, and whether the last moment was."""

from __future__ import annotations

import pytest

from wslgpud.model import Level, Observation, PsiState, RamState, VmState
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.scarcity import Pressure, PressureMeter


def pressed(*seen: Observation) -> Pressure:
    meter, found = PressureMeter(), Pressure()
    for one in seen:
        found = meter.push(one)
    return found


def lost(t: float, seconds: float | None, avg10: float | None = None, *, gap_expected: bool = False) -> Observation:
    """Return what PSI says: all tasks have lost so many seconds since the start."""
    total = None if seconds is None else round(seconds * 1e6)
    memory = PsiState(full_total_us=total, full_avg10=avg10)
    return Observation(t=t, psi={"memory": memory}, gap_expected=gap_expected)


@pytest.mark.parametrize(
    ("seen", "full"),
    [
        ([lost(0, 5)], 0.0),
        ([lost(0, 5), lost(1, 5.5)], 0.1),  # a second is no ten bad ones
        ([lost(0, 5), lost(6, 8)], 0.5),
        ([lost(0, 0), lost(1, 9), lost(11, 10)], 0.1),
        ([lost(0, 0), lost(1, 9), lost(10.9, 9)], 9 / 10.9),
        ([lost(0, 5), lost(5, 11)], 1.0),
        ([lost(0, 5), lost(5, 4)], 0.0),  # counted from the start again
        ([lost(0, None, 20.0), lost(1, None, 30.0)], 0.3),
        ([lost(0, None, 20.0), lost(1, None, 130.0)], 1.0),
        ([lost(0, None, 20.0), lost(1, 1, 30.0)], 0.3),
        ([lost(0, 0), Observation(t=1.0), lost(2, 1)], 0.2),
        ([lost(0, 0), lost(100, 5, gap_expected=True)], 0.0),
        ([lost(0, 0), lost(100, 5, gap_expected=True), lost(105, 6)], 0.2),
    ],
)
def test_pressure_is_the_share_of_ten_seconds_all_tasks_lost(seen: list[Observation], full: float) -> None:
    assert pressed(*seen).full == pytest.approx(full)


@pytest.mark.parametrize(
    ("seen", "stalled"),
    [
        ([lost(0, 0), lost(1, 0.1)], False),
        ([lost(0, 0), lost(1, 0.101)], True),
        ([lost(0, 0), lost(1, 0.9), lost(2, 0.9)], False),
        ([lost(0, 0), lost(0, 0.9)], False),
        ([lost(0, 0), lost(0.1, 0), lost(0.3, 0.025)], False),  # readings this close count together
        ([lost(0, 0), lost(0.2, 0), lost(0.4, 0.025)], True),
    ],
)
def test_a_moment_is_a_stall_if_more_than_a_tenth_of_it_is_lost(seen: list[Observation], *, stalled: bool) -> None:
    assert pressed(*seen).stalled is stalled


def counted(t: float = 0.0, full_total_us: int | None = None, **counters: int) -> Observation:
    psi = {} if full_total_us is None else {"memory": PsiState(full_total_us=full_total_us)}
    return Observation(t=t, vm=VmState(**counters), psi=psi)


@pytest.mark.parametrize(
    ("before", "now", "full"),
    [
        ({"alloc_stalls_total": 100}, {"alloc_stalls_total": 350}, 0.1),
        ({"major_faults_total": 0}, {"major_faults_total": 2500}, 0.1),
        (
            {"alloc_stalls_total": 0, "major_faults_total": 0},
            {"alloc_stalls_total": 250, "major_faults_total": 2500},
            0.2,
        ),
        ({"alloc_stalls_total": 0}, {"alloc_stalls_total": 10_000}, 1.0),
        ({}, {"alloc_stalls_total": 10_000}, 0.0),
        *[
            (
                {"steal_pages_total": 0, "refault_pages_total": 0},
                {"steal_pages_total": steal, "refault_pages_total": re},
                f,
            )
            for steal, re, f in ((20_000, 6000, 0.3), (19_990, 6000, 0.0), (20_000, 5990, 0.0), (200_000, 60_000, 0.3))
        ],
    ],
)
def test_without_psi_it_is_estimated_from_what_reclaim_costs(
    before: dict[str, int], now: dict[str, int], full: float
) -> None:
    assert pressed(counted(**before), counted(10.0, **now)).full == pytest.approx(full)


def test_without_psi_an_allocation_waiting_for_memory_is_a_stall() -> None:
    for name in ("alloc_stalls_total", "direct_scan_pages_total"):
        assert pressed(counted(**{name: 5}), counted(1.0, **{name: 6})).stalled
        assert not pressed(counted(**{name: 5}), counted(1.0, **{name: 5})).stalled
        assert not pressed(counted(0.0, 0, **{name: 5}), counted(1.0, 0, **{name: 6})).stalled
    assert not pressed(counted(major_faults_total=5), counted(1.0, major_faults_total=6)).stalled


@pytest.mark.parametrize(("available", "level"), [(99, Level.WARNING), (100, Level.OK)])
def test_stalls_count_only_below_a_tenth_of_available_ram(available: int, level: Level) -> None:
    engine = RiskEngine()
    for t in range(11):
        psi = {"memory": PsiState(full_total_us=300_000 * t)}
        seen = engine.observe(Observation(t=float(t), ram=RamState(1000, available), psi=psi))

    assert [forecast.level for forecast in seen.forecasts] == [level]


@pytest.mark.parametrize(("age", "held"), [(90.0, 1), (91.0, 0)])
def test_a_forecast_is_held_for_90_seconds_without_samples(age: float, held: int) -> None:
    engine = RiskEngine()
    for t in range(11):
        engine.observe(Observation(t=float(t), ram=RamState(1000, 500)))

    assert len(engine.observe(Observation(t=10.0 + age)).forecasts) == held
