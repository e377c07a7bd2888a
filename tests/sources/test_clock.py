"""A wall clock that jumps is noticed, counted and told; one that is corrected is not."""

from __future__ import annotations

import pytest

from wslgpud.config import Config, Sampling
from wslgpud.host import Host
from wslgpud.sources.cpu import ClockSource


class Hands:
    """A clock whose hands the test moves."""

    def __init__(self) -> None:
        self.wall_seconds = 1_790_000_000.0
        self.mono_seconds = 50.0

    def wall(self) -> float:
        return self.wall_seconds

    def mono(self) -> float:
        return self.mono_seconds

    def pass_by(self, wall: float, mono: float) -> None:
        self.wall_seconds += wall
        self.mono_seconds += mono


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def source(hands) -> ClockSource:
    source = ClockSource(Host(clock=hands), Config())
    source.read()
    return source


def test_eight_hours_of_sleep_are_one_jump(source, hands, values):
    hands.pass_by(wall=8 * 3600, mono=1)
    sample = source.read()
    assert values(sample) == {"clock_jumps_total": 1, "clock_last_jump_seconds": 28799.0}
    (event,) = sample.events
    assert (event.kind, event.wall, event.fields["seconds"]) == ("clock_jump", hands.wall(), 28799.0)
    assert str(event.message) == "the clock jumped forward by 8 h"
    hands.pass_by(wall=1, mono=1)
    assert source.read().events == ()


def test_a_clock_set_back_is_a_jump_too(source, hands):
    hands.pass_by(wall=-600, mono=1)
    (event,) = source.read().events
    assert event.fields["seconds"] == -601
    assert str(event.message) == "the clock jumped back by 10 min"


def test_a_jump_is_told_to_the_millisecond(source, hands, values):
    hands.pass_by(wall=8.0625, mono=1)
    assert values(source.read())["clock_last_jump_seconds"] == 7.062


def test_late_ticks_and_small_corrections_are_no_clock_jumps(source, hands, values):
    for wall, mono in ((45, 45), (1.4, 1), (0.6, 1), (3, 1), (1, 3)):
        hands.pass_by(wall, mono)
        assert values(source.read()) == {"clock_jumps_total": 0}


@pytest.mark.parametrize(("interval", "jump"), [(1.0, 2.0), (0.25, 1.0)])
def test_a_jump_exceeds_both_two_intervals_and_one_second(hands, interval, jump):
    source = ClockSource(Host(clock=hands), Config(sampling=Sampling(interval_seconds=interval)))
    source.read()
    hands.pass_by(wall=jump + 1, mono=1)
    assert not source.read().events
    hands.pass_by(wall=jump + 1.001, mono=1)
    (event,) = source.read().events
    assert event.fields["seconds"] == pytest.approx(jump + 0.001, abs=1e-6)
