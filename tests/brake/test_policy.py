"""When a job is paused, and when it is resumed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.alerts.ticks import tick
from wslgpud.brake.policy import (
    MAX_ROOM_RATIO,
    PauseState,
    attribution_probability,
    may_save,
    next_step,
    repeats,
    resource_kind,
    should_pause,
    waits_for_zram,
)
from wslgpud.model import Forecast, Level, Reading, Snapshot
from wslgpud.risk.trace import read_trace, replay
from wslgpud.sources import memory
from wslgpud.words import say

MIB, GIB = 1 << 20, 1 << 30
VM_TRACES = Path(__file__).parents[1] / "traces/vm"
NEARLY_OUT = Forecast("ram", Level.CRITICAL, GIB // 2, 16 * GIB, eta_seconds=20.0, cause="growth")


def left(percent: float, eta: float | None = 60.0, **more: object) -> Forecast:
    return replace(NEARLY_OUT, headroom_bytes=int(16 * GIB * percent / 100), eta_seconds=eta, **more)  # type: ignore[arg-type]


def test_a_job_is_paused_when_critical_with_almost_nothing_left() -> None:
    assert should_pause(NEARLY_OUT)


@pytest.mark.parametrize("cause", ["paused", "expected", "limit", "full", "oom", "freed", ""])
def test_no_job_is_paused_without_ongoing_growth(cause: str) -> None:
    assert not should_pause(left(1, cause=cause))


def test_no_job_is_paused_at_a_warning_however_little_is_left() -> None:
    assert not should_pause(left(1, level=Level.WARNING))


@pytest.mark.parametrize(
    ("percent", "eta", "paused"),
    [(4.5, 60.0, True), (4.6, 60.0, False), (15.0, 1.5, True), (15.1, 1.5, False), (15.0, 1.6, False)],
)
def test_with_headroom_only_imminent_exhaustion_pauses_a_job(percent, eta, paused) -> None:
    assert should_pause(left(percent, eta)) is paused
    assert not should_pause(left(10, eta, cause="pressure"))


def test_no_job_is_paused_for_a_resource_of_unknown_size() -> None:
    assert not should_pause(replace(NEARLY_OUT, capacity_bytes=0))


def test_stalls_pause_a_job_only_with_next_to_nothing_left() -> None:
    assert should_pause(left(3, None, cause="pressure"))
    assert not should_pause(left(10, None, cause="pressure"))


def seen(
    t: float, free_bytes: int | None, compressible_bytes: int | None = None, *, stalled_seconds: float | None = 0.0
) -> Snapshot:
    known = (
        Reading(memory.ZRAM_FREE, free_bytes or 0),
        Reading(memory.ZRAM_TOTAL, 512 * MIB),
        Reading(memory.COMPRESSIBLE, compressible_bytes or 0),
        Reading(memory.STALLED_SECONDS, stalled_seconds or 0.0, ("memory",)),
    )
    values = free_bytes, free_bytes, compressible_bytes, stalled_seconds
    return tick(t, *(reading for reading, value in zip(known, values, strict=True) if value is not None))


COUNTDOWN = left(1)


@pytest.mark.parametrize(
    ("forecast", "snapshot", "waits"),
    [
        (COUNTDOWN, seen(1.0, None), False),
        (COUNTDOWN, seen(1.0, 500 * MIB), True),
        (COUNTDOWN, seen(1.0, 500 * MIB, 0), False),
        (COUNTDOWN, seen(1.0, 255 * MIB), False),
        (COUNTDOWN, seen(1.0, 500 * MIB, stalled_seconds=None), False),
        (left(1, resource="cgroup:/a"), seen(1.0, 500 * MIB), False),
        (left(1, None, cause="pressure"), seen(1.0, 500 * MIB), False),
    ],
)
def test_a_countdown_waits_until_it_is_known_what_zram_yields(forecast, snapshot, waits) -> None:
    assert waits_for_zram(forecast, snapshot.value) is waits


@pytest.mark.parametrize(
    ("name", "yields", "acts"),
    [
        ("vm-leak_linear-200s-1024-zram512", 0.0, (147.0, 150.0)),
        ("vm-leak_linear-220s-1024-zram512packs", 0.3, (160.0, 174.0)),
    ],
)
def test_a_leak_that_fills_zram_is_paused_before_the_kill(name: str, yields: float, acts: tuple[float, float]) -> None:
    """What does not compress brings the machine to a standstill with 34 MiB on zram; the next sample is the kill's."""
    zram, observations = {}, []
    for one in read_trace(VM_TRACES / f"{name}.jsonl.gz"):
        assert one.ram is not None
        assert one.swap is not None
        free = one.swap.free
        compressible = int(yields * free) if one.swap.total - free >= 64 * MIB else None
        zram[one.t] = seen(one.t, free, compressible)
        ram = replace(one.ram, compressible=compressible)
        observations.append(replace(one, ram=ram, swap=replace(one.swap, total=0, free=0)))
    points = replay(name, observations).forecasts["ram"]
    acted = [t for t, now in points if should_pause(now) and not waits_for_zram(now, zram[t].value)]

    assert acts[0] < acted[0] < acts[1]


def test_a_guess_has_its_probability_and_no_guess_has_zero() -> None:
    guess = say("probably {who}, {chance_ratio}", who="python (pid 7)", chance_ratio=0.91)

    assert attribution_probability(replace(NEARLY_OUT, who="python (pid 7)", who_kind="process", who_pid=7)) == 1.0
    assert attribution_probability(replace(NEARLY_OUT, who=guess, who_kind="guess", who_pid=7)) == 0.91
    assert attribution_probability(replace(NEARLY_OUT, who="newest", who_kind="guess", who_pid=7)) == 0.0
    assert attribution_probability(NEARLY_OUT) == 0.0


def test_resources_map_to_the_kinds_in_the_configuration() -> None:
    assert [resource_kind(name) for name in ("ram", "gpu0", "gpu11", "cgroup:/gpu", "windows")] == [
        "ram",
        "gpu",
        "gpu",
        "cgroup",
        "windows",
    ]


HOLD = PauseState(100.0, GIB // 2, 16 * GIB)


def test_a_job_stays_paused_until_headroom_has_lasted() -> None:
    hold, step = next_step(HOLD, 101.0, GIB, 3600, "stay")
    assert step == "hold"
    hold, step = next_step(hold, 102.0, 4 * GIB, 3600, "stay")
    assert step == "hold"
    hold, step = next_step(hold, 105.0, GIB, 3600, "stay")
    hold, step = next_step(hold, 110.0, 4 * GIB, 3600, "stay")
    assert step == "hold"
    assert next_step(hold, 115.0, 4 * GIB, 3600, "stay")[1] == "room"


def test_unknown_headroom_counts_as_none() -> None:
    hold, _ = next_step(HOLD, 102.0, 4 * GIB, 3600, "stay")
    assert next_step(hold, 200.0, None, 3600, "stay")[0].room_since_t is None


@pytest.mark.parametrize(
    ("rate_mib", "repeats", "more"),
    [
        (0, 0, 0.08 * 16 * GIB),
        (50, 0, 60 * 50 * MIB),
        (1000, 0, 4 * GIB),  # a quarter of the resource
        (0, 1, 2 * 0.08 * 16 * GIB),
        (0, 2, 4 * 0.08 * 16 * GIB),
        (0, 3, 0.6 * 16 * GIB - GIB // 2),  # 60 % of the resource are free
    ],
)
def test_required_headroom_depends_on_size_growth_and_repeats(rate_mib, repeats, more) -> None:
    hold = replace(HOLD, rate_bytes_per_second=rate_mib * MIB, repeats=repeats)

    assert hold.needed_bytes == pytest.approx(GIB // 2 + more, abs=1)


def test_each_repeated_pause_doubles_the_wait_up_to_six_times() -> None:
    assert [replace(HOLD, repeats=again).steady_seconds for again in (0, 1, 6, 7)] == [5, 10, 320, 320]


def test_a_job_resumes_as_soon_as_the_headroom_required_is_there() -> None:
    needed = math.ceil(HOLD.needed_bytes)

    assert next_step(HOLD, 102.0, needed - 1, 3600, "stay")[0].room_since_t is None
    assert next_step(HOLD, 102.0, needed, 3600, "stay")[0].room_since_t == 102.0


def test_a_paused_job_may_save_while_half_its_headroom_is_left() -> None:
    assert may_save(HOLD, GIB // 2)
    assert may_save(HOLD, GIB // 4)
    assert not may_save(HOLD, GIB // 4 - 1)
    assert may_save(HOLD, None)


def test_a_job_may_save_only_if_the_rest_outlasts_a_sample() -> None:
    fast = replace(HOLD, rate_bytes_per_second=GIB)

    assert may_save(fast, math.ceil(0.3 * GIB))
    assert not may_save(fast, math.floor(0.3 * GIB))


@pytest.mark.parametrize(("way", "step"), [("stay", "hold"), ("resume", "time"), ("stop", "stop")])
def test_after_hold_applies_after_hold_seconds(way, step) -> None:
    assert next_step(HOLD, 100.0 + 3599, GIB, 3600, way)[1] == "hold"
    assert next_step(HOLD, 100.0 + 3600, GIB, 3600, way)[1] == step


def test_repeats_are_forgotten_after_an_hour() -> None:
    assert repeats(3, 100.0, 3700.0) == 4
    assert repeats(3, 100.0, 3701.0) == 0
    assert repeats(0, -math.inf, 5000.0) == 0


sizes = st.integers(0, 64 * GIB)


@given(sizes, sizes, st.floats(0, 1e11), st.integers(0, 40))
def test_required_headroom_can_always_be_reached(left_bytes, capacity, taking, again) -> None:
    hold = PauseState(0.0, min(left_bytes, capacity), capacity, taking, again)

    assert hold.left_bytes <= hold.needed_bytes <= max(MAX_ROOM_RATIO * capacity, hold.left_bytes + 0.08 * capacity)
    assert hold.needed_bytes <= replace(hold, repeats=again + 1).needed_bytes
    assert hold.steady_seconds <= 5 * 64


@given(st.lists(st.tuples(st.floats(0.1, 30), sizes), max_size=40), st.integers(0, 6))
def test_hysteresis_prevents_flapping(path, again) -> None:
    """A job is resumed only after enough headroom without interruption for ``steady_seconds``."""
    hold, t, roomy = PauseState(0.0, GIB, 64 * GIB, repeats=again), 0.0, None
    for seconds, left_now in path:
        t += seconds
        hold, step = next_step(hold, t, left_now, 1e9, "stay")
        roomy = None if left_now < hold.needed_bytes else t if roomy is None else roomy
        assert (step == "room") is (roomy is not None and t - roomy >= hold.steady_seconds)
