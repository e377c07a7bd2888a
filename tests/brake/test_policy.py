"""When a job is paused, and when it is resumed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.alerts.ticks import tick
from wslgpud.brake.policy import (
    MAX_ROOM_RATIO,
    PauseState,
    attribution_probability,
    is_untried,
    may_save,
    next_step,
    repeats,
    resource_kind,
    should_pause,
)
from wslgpud.model import Forecast, Level, Reading
from wslgpud.sources import memory
from wslgpud.words import say

MIB, GIB = 1 << 20, 1 << 30
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


@pytest.mark.parametrize(
    ("free_mib", "compressible_mib", "untried"),
    [(None, None, False), (64, None, True), (63, None, False), (64, 0, False)],
)
def test_zram_is_untried_until_it_is_known_what_it_yields(free_mib, compressible_mib, untried) -> None:
    known = ((memory.ZRAM_FREE, free_mib), (memory.COMPRESSIBLE, compressible_mib))
    readings = [Reading(spec, mib * MIB) for spec, mib in known if mib is not None]

    assert is_untried(tick(1.0, *readings)) is untried


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
