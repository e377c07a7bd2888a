"""What must hold whatever the input."""

import dataclasses
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.risk.wording import headline_of
from wslgpud.model import (
    CgroupState,
    GpuProcess,
    GpuSample,
    Level,
    Observation,
    ProcessSample,
    PsiState,
    RamState,
    SwapState,
    VmState,
)
from wslgpud.risk.engine import RiskEngine
from wslgpud.words import HEADLINE_CHARACTERS

GIB = 1 << 30
UNHURRIED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
shares = st.floats(0.0, 1.0)


def levels_of(path, interval=1.0, capacity=16 * GIB):
    """Run an engine over a path of used shares; return (time, level) changes."""
    engine, changes = RiskEngine(), []
    for i, used in enumerate(path):
        gpu = GpuSample(0, "u", "card", capacity, round(capacity * used))
        seen = engine.observe(Observation(t=i * interval, gpus=(gpu,)))
        changes += [(i, change.new) for change in seen.changes]
    return changes


def leak(samples, base=0.1):
    return [min(1.0, base + (1.0 - base) * i / samples) for i in range(samples)]


@UNHURRIED
@given(st.floats(0.0, 0.97), st.floats(0.1, 60.0), st.integers(1, 200))
def test_constant_input_with_room_never_alarms(used, interval, samples):
    assert all(level < Level.WARNING for _, level in levels_of([used] * samples, interval))


@UNHURRIED
@given(st.floats(0.971, 1.0), st.floats(0.1, 20.0))
def test_a_card_that_was_always_full_is_a_warning_and_no_more(used, interval):
    found = levels_of([used] * round(120 / interval + 10), interval)
    assert [level for _, level in found] == [Level.WARNING]
    assert found[0][0] * interval <= 20 + interval


@settings(UNHURRIED, max_examples=20)
@given(st.integers(120, 400), st.floats(0.0, 0.5), st.floats(0.971, 1.0), st.integers(60, 200))
def test_a_card_that_fills_slowly_and_stays_full_is_a_warning(seconds, base, top, stays):
    path = [base + (top - base) * i / seconds for i in range(seconds)] + [top] * stays
    ranks = [level for _, level in levels_of(path)]
    assert ranks[-1] >= Level.WARNING
    first = next(i for i, level in enumerate(ranks) if level >= Level.WARNING)
    assert min(ranks[first:]) >= Level.WARNING


paths = st.lists(
    st.tuples(shares, st.integers(1, 60)), min_size=1, max_size=8
)  # (used share to go to, samples that it takes)


@pytest.mark.slow
@UNHURRIED
@given(paths, st.floats(0.0, 0.39), st.booleans(), st.sampled_from([0.5, 1.0, 5.0]), st.sampled_from(["ram", "gpu0"]))
def test_nothing_stays_red_over_free_memory(path, rest, killed, interval, resource):
    """Whatever happened before: all is well after a minute with room again, or at once after a kill."""
    engine, level, used, t = RiskEngine(), Level.OK, 0.2, 0.0

    def see(used, *, kill=False):
        nonlocal t
        t += interval
        gpu = GpuSample(0, "u", "card", 16 * GIB, round(16 * GIB * used))
        ram = RamState(16 * GIB, round(16 * GIB * (1.0 - used)))
        exhausted = (resource,) if kill else ()
        forecasts = engine.observe(Observation(t=t, ram=ram, gpus=(gpu,), exhausted=exhausted)).forecasts
        return next(f.level for f in forecasts if f.resource == resource)

    for goal, samples in path:
        start = used
        for i in range(samples):
            used = start + (goal - start) * (i + 1) / samples
            see(used)
    level = see(rest, kill=killed)
    if killed:
        assert level == Level.OK
    for _ in range(round(60 / interval) + 12):
        level = see(rest)
    assert level == Level.OK


@pytest.mark.slow
@UNHURRIED
@given(st.integers(30, 200), st.floats(0.0, 0.6), st.floats(0.0, 1.0), st.floats(1.01, 3.0))
def test_worse_input_never_lowers_the_level(samples, base, at, factor):
    """From some moment on, one of two leaks goes faster: its level is never below the other's."""
    slow = leak(samples, base)
    turn = max(1, int(at * samples))
    fast = slow[:turn] + [min(1.0, slow[turn - 1] + factor * (u - slow[turn - 1])) for u in slow[turn:]]

    def held(path):
        engine = RiskEngine()
        return [
            engine.observe(Observation(t=float(i), gpus=(GpuSample(0, "u", "c", 1 << 40, int(u * (1 << 40))),)))
            .forecasts[0]
            .level
            for i, u in enumerate(path)
        ]

    # What ends (the fast one is at its limit, and flat there) is judged no more.
    end = next((i for i, u in enumerate(fast) if u >= 1.0), samples)
    worst = Level.OK
    for mild, bad in zip(held(slow)[:end], held(fast)[:end], strict=True):
        worst = max(worst, bad)
        if mild >= Level.WARNING:
            assert worst >= Level.WARNING


@UNHURRIED
@given(st.integers(60, 400), st.floats(0.0, 0.7))
def test_a_level_once_raised_is_not_lowered_while_it_gets_worse(samples, base):
    ranks = [level for _, level in levels_of(leak(samples, base))]
    assert ranks == sorted(ranks)
    assert ranks[-1] >= Level.CRITICAL


@pytest.mark.slow
@UNHURRIED
@given(st.integers(60, 300), st.floats(0.0, 0.7), st.sampled_from([1, 4, 16, 80, 1024]))
def test_the_scale_of_memory_does_not_matter(samples, base, gib):
    path = [round(used * 4096) / 4096 for used in leak(samples, base)]  # no byte is rounded
    assert levels_of(path, capacity=gib * GIB) == levels_of(path, capacity=16 * GIB)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.floats(120.0, 300.0), st.floats(0.0, 0.6), st.sampled_from([0.1, 0.25, 0.5, 2.0, 5.0]))
def test_the_sampling_interval_hardly_matters(span, base, interval):
    def first(dt):
        path = leak(int(span / dt), base)
        return next(i * dt for i, level in levels_of(path, dt) if level >= Level.WARNING)

    assert abs(first(interval) - first(1.0)) <= max(0.05 * span, 3 * interval)


numbers = st.one_of(st.none(), st.integers(0, 1 << 45))
big = st.integers(0, 1 << 45)


def record(kind, **fixed):
    fields = {f.name: numbers for f in dataclasses.fields(kind) if f.name not in fixed}
    return st.builds(kind, **fixed, **fields)


observations = st.builds(
    Observation,
    t=st.just(0.0),
    ram=st.none() | record(RamState, total=big, available=big),
    swap=st.none() | record(SwapState, total=big, free=big),
    vm=st.none() | record(VmState),
    psi=st.dictionaries(
        st.sampled_from(["memory", "io"]),
        st.builds(PsiState, numbers, numbers, st.none() | st.floats(0, 100), st.none() | st.floats(0, 100)),
    ),
    gpus=st.lists(
        st.builds(
            GpuSample,
            index=st.integers(0, 2),
            uuid=st.sampled_from(["", "u", "v"]),
            name=st.just("card"),
            total_bytes=numbers,
            used_bytes=numbers,
            free_bytes=numbers,
            reserved_bytes=numbers,
            processes=st.lists(st.builds(GpuProcess, st.integers(1, 5), st.just("p"), numbers), max_size=3).map(tuple),
        ),
        max_size=3,
        unique_by=lambda gpu: gpu.index,
    ).map(tuple),
    processes=st.lists(
        st.builds(ProcessSample, st.integers(1, 9), st.integers(0, 3), st.text(max_size=5), big, big), max_size=5
    ).map(tuple),
    cgroups=st.lists(
        record(CgroupState, path=st.sampled_from(["/a", "/b"]), limit=big, current=big),
        max_size=2,
        unique_by=lambda group: group.path,
    ).map(tuple),
    wsl=st.booleans(),
    gap_expected=st.booleans(),
    exhausted=st.sets(st.sampled_from(["ram", "gpu", "gpu0", "cgroup:/a"])).map(tuple),
    late=st.sets(st.sampled_from(["ram", "gpu", "cgroup", "windows"])).map(tuple),
    windows=st.none() | record(RamState, total=big, available=big),
)


@pytest.mark.slow
@UNHURRIED
@given(st.lists(st.tuples(observations, st.floats(0.0, 4000.0)), max_size=30))
def test_any_input_survives_and_every_result_is_sane(stream):
    engine, t, levels = RiskEngine(), 0.0, {}
    for observation, pause in stream:
        t += pause
        assessment = engine.observe(dataclasses.replace(observation, t=t))
        for change in assessment.changes:
            assert levels.get(change.resource, Level.OK) == change.old != change.new
            assert len(headline_of(change)) <= HEADLINE_CHARACTERS
            levels[change.resource] = change.new
        for forecast in assessment.forecasts:
            assert levels.get(forecast.resource, Level.OK) == forecast.level
            assert forecast.headroom_bytes >= 0
            assert forecast.capacity_bytes > 0
            assert all(0.0 <= p <= 1.0 for p in forecast.probabilities.values())
            times = (forecast.eta_early_seconds, forecast.eta_seconds, forecast.eta_late_seconds)
            assert all(x is None or (math.isfinite(x) and x >= 0) for x in times)
            if None not in times:
                assert times[0] <= times[1] <= times[2]
            assert forecast.rate_bytes_per_second is None or math.isfinite(forecast.rate_bytes_per_second)


@UNHURRIED
@given(st.data())
def test_any_missing_field_leaves_the_alarm_where_it_was(data):
    """A leak is told whatever of the optional fields the machine does not have."""
    optional = ["free", "cached", "buffers", "dirty", "shmem", "anon", "slab_reclaimable", "committed"]
    missing = data.draw(st.sets(st.sampled_from(optional)))
    parts = data.draw(st.sets(st.sampled_from(["vm", "psi", "swap", "processes"])))
    engine, level = RiskEngine(), Level.OK
    for i in range(120):
        used = i / 120
        ram = RamState(16 * GIB, int(16 * GIB * (1 - used)), **{k: None if k in missing else GIB for k in optional})
        whole = {
            "vm": VmState(i, 0, i, i),
            "psi": {"memory": PsiState(0, 0, 0.0, 0.0)},
            "swap": SwapState(0, 0),
            "processes": (ProcessSample(1, 1, "p", int(16 * GIB * used), 0),),
        }
        known = {key: value for key, value in whole.items() if key not in parts}
        forecasts = engine.observe(Observation(t=float(i), ram=ram, **known)).forecasts
        level = max(level, forecasts[0].level)
    assert level >= Level.CRITICAL
