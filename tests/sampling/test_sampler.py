"""A tick asks every source that is due, and waits for none longer than it may."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest

from tests.sampling.test_assessor import SteppingClock
from tests.support.daemons import PATIENCE_SECONDS, eventually
from wslgpud.config import Config, Sampling
from wslgpud.host import Host, NoData, SourceError
from wslgpud.metrics import MetricSpec
from wslgpud.model import Event, Reading, Sample
from wslgpud.sampling.assessor import SamplingPace
from wslgpud.sampling.sampler import LATENESS, Sampler
from wslgpud.sources import Source

VALUE = MetricSpec("test_value", "gauge", "", "A value.")


def source(
    read: Callable[[], Sample],
    name: str = "test",
    *,
    lane: str = "kernel",
    period: float = 0.0,
    fast: bool = False,
    deadline: float = 60.0,
) -> Source:
    class Made(Source):
        def read(self) -> Sample:
            return read()

    Made.name, Made.lane, Made.period_seconds, Made.fast, Made.deadline_seconds = (name, lane, period, fast, deadline)
    Made.metrics = (VALUE,)
    return Made(Host(), Config())


def counting() -> Callable[[], Sample]:
    count = iter(range(1000))
    return lambda: Sample((Reading(VALUE, next(count)),))


@contextmanager
def sampling(*sources: Source, clock: SteppingClock | None = None, patient: bool = False) -> Iterator[Sampler]:
    sampler = Sampler(sources, clock or SteppingClock(), 1.0, patient=patient)
    yield sampler
    sampler.close()


def test_a_snapshot_holds_what_the_sources_read() -> None:
    with sampling(source(lambda: Sample((Reading(VALUE, 7),)))) as sampler:
        snapshot = sampler.tick()

    assert snapshot.value(VALUE) == 7
    assert snapshot.reports[0].health == "ok"
    assert snapshot.reports[0].fresh


def test_a_failed_source_publishes_nothing_and_affects_no_other() -> None:
    def broken() -> Sample:
        raise SourceError("cannot read /proc/x: Permission denied")

    with sampling(source(broken, "broken"), source(counting(), "good")) as sampler:
        first, second, _ = sampler.tick().reports

    assert (first.health, first.error, first.sample.readings) == (
        "failed",
        "cannot read /proc/x: Permission denied",
        (),
    )
    assert first.failures_total == 1
    assert second.health == "ok"


def test_a_machine_without_the_thing_is_no_failure() -> None:
    def nothing() -> Sample:
        raise NoData("no PSI")

    with sampling(source(nothing)) as sampler:
        report = sampler.tick().reports[0]

    assert (report.health, report.failures_total) == ("absent", 0)


def test_a_bug_in_a_source_is_reported_and_contained() -> None:
    def bug() -> Sample:
        raise ZeroDivisionError("oops")

    with sampling(source(bug)) as sampler:
        report = sampler.tick().reports[0]

    assert report.health == "failed"
    assert "internal error: ZeroDivisionError: oops" in str(report.error)


class Hanging:
    """A driver call that hangs until released, then answers and does not hang again."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.entered = 0

    def __call__(self) -> Sample:
        self.entered += 1
        self.let_go.wait(60)
        return Sample((Reading(VALUE, 1),), events=(Event("woke", 0.0, "woke up"),))


def test_a_hung_source_costs_only_its_own_readings() -> None:
    hanging, clock = Hanging(), SteppingClock()
    stuck = source(hanging, "stuck", lane="driver", deadline=0.0)
    with sampling(stuck, source(counting(), "good"), clock=clock) as sampler:
        for tick in range(3):
            report, good, _ = sampler.tick().reports
            assert (report.health, report.sample.readings, good.sample.readings[0].value) == ("late", (), tick)
            clock.now += 1
        assert hanging.entered == 1
        assert report.failures_total == 1
        hanging.let_go.set()
        while (report := sampler.tick().reports[0]).health == "late":
            clock.now += 1

    assert report.health == "ok"
    assert [event.text for event in report.sample.events] == ["woke up"]


def test_one_thread_reads_all_lanes_while_none_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wslgpud.sampling.sampler.TURN_SECONDS", PATIENCE_SECONDS)
    readers: set[int] = set()

    def read() -> Sample:
        readers.add(threading.get_ident())
        return Sample()

    with sampling(*(source(read, lane, lane=lane) for lane in "abc")) as sampler:
        for _ in range(5):
            sampler.tick()
            eventually(lambda: sampler._idle, "the end of the work")

    assert len(readers) == 1


def test_lanes_behind_a_hung_one_are_read_in_the_same_tick() -> None:
    hanging, clock = Hanging(), SteppingClock()
    stuck = [source(hanging, lane, lane=lane, deadline=0.0) for lane in ("driver", "drive")]
    good = source(counting(), "memory"), source(counting(), "disk", lane="disk")
    with sampling(good[0], *stuck, good[1], clock=clock) as sampler:
        seen = [report.health for report in sampler.tick().reports[:4]]
        hanging.let_go.set()

    assert seen == ["ok", "late", "late", "ok"]


def test_of_a_recorded_machine_all_is_told_however_late() -> None:
    with sampling(source(counting(), deadline=0.0), patient=True) as sampler:
        told = [sampler.tick().value(VALUE) for _ in range(50)]

    assert told == list(range(50))


def test_a_slow_source_holds_up_no_tick_and_is_not_late_too_soon() -> None:
    hanging, clock = Hanging(), SteppingClock()
    reads = iter([lambda: Sample((Reading(VALUE, 0),)), hanging])
    slow = source(lambda: next(reads)(), "slow", lane="drive", period=2.0, deadline=60.0)  # noqa: PLW0108 - each read is another
    with sampling(slow, clock=clock) as sampler:
        seen = [sampler.tick()]
        for _ in range(3):
            clock.now += 2
            seen.append(sampler.tick())
        clock.now += 60
        seen.append(sampler.tick())
        hanging.let_go.set()
        while not (last := sampler.tick()).reports[0].fresh:
            pass

    assert [s.reports[0].health for s in seen] == ["ok", "ok", "ok", "ok", "late"]
    assert [s.value(VALUE) for s in seen] == [0, 0, 0, 0, None]
    assert [s.mono - s.reports[0].mono for s in seen[:4]] == [0, 2, 4, 6]
    assert (last.reports[0].health, last.value(VALUE)) == ("ok", 1)


def test_a_slow_source_keeps_its_aging_value_between_two_reads() -> None:
    clock = SteppingClock()
    with sampling(source(counting(), period=5.0), clock=clock) as sampler:
        seen = []
        for _ in range(7):
            snapshot = sampler.tick()
            report = snapshot.reports[0]
            seen.append((snapshot.value(VALUE), snapshot.mono - report.mono, report.fresh))
            clock.now += 1

    assert seen == [
        (0, 0, True),
        (0, 1, False),
        (0, 2, False),
        (0, 3, False),
        (0, 4, False),
        (1, 0, True),
        (1, 1, False),
    ]


def test_an_event_is_seen_in_one_snapshot_only() -> None:
    clock = SteppingClock()
    event = Event("clock_jump", 0.0, "the clock jumped")
    with sampling(source(lambda: Sample(events=(event,)), period=5.0), clock=clock) as sampler:
        first = sampler.tick().events
        clock.now += 1
        second = sampler.tick().events

    assert (first, second) == ((event,), ())


def test_an_extra_tick_reads_only_what_is_cheap_and_needed() -> None:
    with sampling(source(counting(), "cheap", fast=True), source(counting(), "dear")) as sampler:
        sampler.tick()
        cheap, dear, _ = sampler.tick(fast=True).reports

    assert cheap.sample.readings[0].value == 1
    assert (dear.sample.readings[0].value, dear.fresh) == (0, False)


def test_an_extra_tick_tells_its_sources_so() -> None:
    cheap = source(lambda: Sample((Reading(VALUE, int(cheap.brief)),)), "cheap", fast=True)
    with sampling(cheap) as sampler:
        seen = [sampler.tick(fast=fast).value(VALUE) for fast in (False, True, False)]

    assert seen == [0, 1, 0]


def test_a_tick_that_comes_late_says_by_how_much() -> None:
    clock = SteppingClock()
    with sampling(source(counting()), clock=clock) as sampler:
        sampler.tick()
        clock.now += 4.5
        snapshot = sampler.tick()

    assert snapshot.lateness_seconds == pytest.approx(3.5)
    assert snapshot.value(LATENESS) == pytest.approx(3.5)


def test_an_early_tick_is_not_late_and_ticks_count_from_one() -> None:
    clock = SteppingClock()
    with sampling(source(counting()), clock=clock) as sampler:
        first = sampler.tick()
        clock.now += 0.5
        second = sampler.tick()

    assert (first.lateness_seconds, second.lateness_seconds) == (0.0, 0.0)
    assert (first.sequence, second.sequence) == (1, 2)


def test_a_source_is_read_at_most_half_an_interval_early() -> None:
    clock = SteppingClock()
    with sampling(source(counting(), period=5.0), clock=clock) as sampler:
        sampler.tick()
        clock.now += 4.375
        early = sampler.tick().reports[0].fresh
        clock.now += 0.125
        due = sampler.tick().reports[0].fresh

    assert (early, due) == (False, True)


def test_each_change_of_a_source_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def fail(error: Exception) -> Sample:
        raise error

    caplog.set_level("INFO", "wslgpud.sampling")
    good, gone, bug = Sample(), SourceError("gone"), ZeroDivisionError("oops")
    turns: list[Sample | Exception] = [
        good,
        gone,
        gone,
        SourceError("worse"),
        good,
        good,
        bug,
        bug,
        NoData("none"),
        good,
    ]
    left = iter(turns)

    def read() -> Sample:
        turn = next(left)
        return turn if isinstance(turn, Sample) else fail(turn)

    with sampling(source(read)) as sampler:
        said = []
        for _ in turns:
            caplog.clear()
            sampler.tick()
            said.append(caplog.messages.copy())

    reported = "source test failed; please report this"
    assert said == [
        [],
        ["source test: gone"],
        [],
        ["source test: worse"],
        ["source test answers again"],
        [],
        [reported, "source test: internal error: ZeroDivisionError: oops"],
        [],
        [],
        [],
    ]


class TestPace:
    settings: ClassVar[Sampling] = Sampling(interval_seconds=1.0, fastest_seconds=0.1)

    def delays(self, *headrooms: int) -> list[float]:
        pace = SamplingPace(self.settings)
        return [round(pace.next_delay(float(t), {"ram": left}), 2) for t, left in enumerate(headrooms)]

    def test_calm_memory_is_sampled_at_the_ordinary_pace(self) -> None:
        assert self.delays(8_000, 8_000, 8_000) == [1.0, 1.0, 1.0]

    def test_memory_that_is_given_back_does_not_hurry_anybody(self) -> None:
        assert self.delays(1_000, 2_000, 3_000) == [1.0, 1.0, 1.0]

    def test_memory_gone_in_ten_seconds_is_sampled_twice_a_second(self) -> None:
        assert self.delays(12, 11, 10)[-1] == 0.5

    def test_the_pace_has_a_floor(self) -> None:
        assert self.delays(10_000, 1_000, 10)[-1] == 0.1
        assert self.delays(10_000, 1_000, -10)[-1] == 0.1

    def test_a_fall_counts_for_five_seconds(self) -> None:
        assert self.delays(16_000, *[8_000] * 6)[-2:] == [0.25, 1.0]

    def test_a_full_machine_that_stands_still_is_not_polled_faster(self) -> None:
        assert self.delays(10, 10, 10, 10) == [1.0, 1.0, 1.0, 1.0]
