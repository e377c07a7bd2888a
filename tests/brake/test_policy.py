"""When a job is paused, and when it goes on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.brake.policy import (
    MOST_ROOM_RATIO,
    PauseState,
    attribution_probability,
    may_save,
    next_step,
    repeats,
    resource_kind,
    should_pause,
)
from wslgpud.model import Forecast, Level
from wslgpud.words import say

GIB = 1 << 30
NEARLY_OUT = Forecast("ram", Level.CRITICAL, GIB // 2, 16 * GIB, eta_seconds=20.0, cause="growth")


def left(percent: float, eta: float | None = 60.0, **more: object) -> Forecast:
    return replace(NEARLY_OUT, headroom_bytes=round(16 * GIB * percent / 100), eta_seconds=eta, **more)  # type: ignore[arg-type]


def test_a_critical_with_next_to_nothing_left_is_acted_upon() -> None:
    assert should_pause(NEARLY_OUT)


@pytest.mark.parametrize("cause", ["paused", "expected", "limit", "full", "oom", "freed", ""])
def test_what_does_not_grow_now_is_not(cause: str) -> None:
    assert not should_pause(left(1, cause=cause))


def test_a_warning_is_not_however_little_is_left() -> None:
    assert not should_pause(left(1, level=Level.WARNING))


def test_with_room_to_spare_only_what_is_through_within_a_second_or_two() -> None:
    assert not should_pause(left(10, 8.0))
    assert should_pause(left(10, 1.2))
    assert not should_pause(left(20, 1.2))
    assert not should_pause(left(10, 1.2, cause="pressure"))


def test_stalls_with_next_to_nothing_left_are() -> None:
    assert should_pause(left(3, None, cause="pressure"))
    assert not should_pause(left(10, None, cause="pressure"))


def test_of_a_guess_its_chance_is_known_and_of_nobody_nothing() -> None:
    guess = say("probably {who}, {chance_ratio}", who="python (pid 7)", chance_ratio=0.91)

    assert attribution_probability(replace(NEARLY_OUT, who="python (pid 7)", who_kind="process", who_pid=7)) == 1.0
    assert attribution_probability(replace(NEARLY_OUT, who=guess, who_kind="guess", who_pid=7)) == 0.91
    assert attribution_probability(replace(NEARLY_OUT, who="newest", who_kind="guess", who_pid=7)) == 0.0
    assert attribution_probability(NEARLY_OUT) == 0.0


def test_resources_have_the_kinds_of_the_configuration() -> None:
    assert [resource_kind(name) for name in ("ram", "gpu0", "gpu11", "cgroup:/gpu", "windows")] == [
        "ram",
        "gpu",
        "gpu",
        "cgroup",
        "windows",
    ]


HOLD = PauseState(100.0, GIB // 2, 16 * GIB)


def test_a_job_is_held_until_there_is_room_for_it_that_stays() -> None:
    hold, step = next_step(HOLD, 101.0, GIB, 3600, "stay")
    assert step == "hold"
    hold, step = next_step(hold, 102.0, 4 * GIB, 3600, "stay")
    assert step == "hold"
    hold, step = next_step(hold, 105.0, GIB, 3600, "stay")
    hold, step = next_step(hold, 110.0, 4 * GIB, 3600, "stay")
    assert step == "hold"
    assert next_step(hold, 115.0, 4 * GIB, 3600, "stay")[1] == "room"


def test_unknown_is_no_room() -> None:
    hold, _ = next_step(HOLD, 102.0, 4 * GIB, 3600, "stay")
    assert next_step(hold, 200.0, None, 3600, "stay")[0].room_since_t is None


def test_who_takes_much_waits_for_room_for_a_minute_of_it() -> None:
    assert replace(HOLD, rate_bytes_per_second=50 << 20).needed_bytes == GIB // 2 + 60 * (50 << 20)


def test_each_time_it_takes_twice_the_room_and_twice_the_patience() -> None:
    again = replace(HOLD, repeats=1)

    assert again.needed_bytes - HOLD.left_bytes == 2 * (HOLD.needed_bytes - HOLD.left_bytes)
    assert again.steady_seconds == 2 * HOLD.steady_seconds


def test_one_that_is_to_end_may_run_for_it_while_half_is_left_of_what_was_when_it_was_paused() -> None:
    assert may_save(HOLD, GIB // 2)
    assert may_save(HOLD, GIB // 4)
    assert not may_save(HOLD, GIB // 4 - 1)
    assert may_save(HOLD, None)


def test_and_while_it_cannot_take_the_rest_from_one_sample_to_the_next() -> None:
    fast = replace(HOLD, rate_bytes_per_second=GIB)

    assert may_save(fast, GIB // 3)
    assert not may_save(fast, GIB // 4)


@pytest.mark.parametrize(("way", "step"), [("stay", "hold"), ("resume", "time"), ("stop", "stop")])
def test_after_the_time_to_decide_it_is_as_configured(way, step) -> None:
    assert next_step(HOLD, 100.0 + 3599, GIB, 3600, way)[1] == "hold"
    assert next_step(HOLD, 100.0 + 3600, GIB, 3600, way)[1] == step


def test_who_ran_for_an_hour_is_as_good_as_new() -> None:
    assert repeats(3, 100.0, 200.0) == 4
    assert repeats(3, 100.0, 5000.0) == 0
    assert repeats(0, -math.inf, 5000.0) == 0


sizes = st.integers(0, 64 * GIB)


@given(sizes, sizes, st.floats(0, 1e11), st.integers(0, 40))
def test_more_than_was_left_is_waited_for_and_never_more_than_can_be(left_bytes, capacity, taking, again) -> None:
    hold = PauseState(0.0, min(left_bytes, capacity), capacity, taking, again)

    assert hold.left_bytes <= hold.needed_bytes <= max(MOST_ROOM_RATIO * capacity, hold.left_bytes + 0.08 * capacity)
    assert hold.needed_bytes <= replace(hold, repeats=again + 1).needed_bytes
    assert hold.steady_seconds <= 5 * 64


@given(st.lists(st.tuples(st.floats(0.1, 30), sizes), max_size=40), st.integers(0, 6))
def test_stop_and_go_never_flutters(path, again) -> None:
    """However room comes and goes, a job goes on only after its patience in which there was room all the time."""
    hold, t, roomy = PauseState(0.0, GIB, 64 * GIB, repeats=again), 0.0, None
    for seconds, left_now in path:
        t += seconds
        hold, step = next_step(hold, t, left_now, 1e9, "stay")
        roomy = None if left_now < hold.needed_bytes else t if roomy is None else roomy
        assert (step == "room") is (roomy is not None and t - roomy >= hold.steady_seconds)
