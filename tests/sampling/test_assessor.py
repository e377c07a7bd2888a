"""The pace changes with the machine, and neither readings nor lateness suffer from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wslgpud.config import Config
from wslgpud.host import RecordedHost
from wslgpud.model import Snapshot
from wslgpud.risk.engine import Assessment, RiskEngine
from wslgpud.risk.headroom import Failure
from wslgpud.sampling.assessor import Assessor
from wslgpud.sampling.sampler import INTERVAL

HOSTS = Path(__file__).parent.parent / "hosts"


class SteppingClock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def wall(self) -> float:
        return self.now + 1e9

    def mono(self) -> float:
        return self.now


class Watched:
    """A calm machine and the assessor that looks at it."""

    def __init__(self, assessor: Assessor, clock: SteppingClock) -> None:
        self.assessor, self.clock = assessor, clock

    def next_tick(self, *, planned_seconds: float | None = None, watched: bool = True) -> Snapshot:
        """Let the time until the next tick pass, as planned by the assessor or, if told, by the test."""
        if planned_seconds is not None:
            self.assessor.delay_seconds = planned_seconds
        self.clock.now += self.assessor.delay_seconds
        return self.assessor.tick(watched=watched)[0]


@contextmanager
def watching(machine: str = "bare-linux") -> Iterator[Watched]:
    clock = SteppingClock()
    assessor = Assessor(Config(), RecordedHost(HOSTS / machine, clock))
    try:
        assessor.tick()
        yield Watched(assessor, clock)
    finally:
        assessor.close()


def is_fresh(state: Snapshot, source: str) -> bool:
    return next(report.fresh for report in state.reports if report.name == source)


def test_a_pace_that_eases_is_not_taken_for_a_stalled_machine() -> None:
    with watching() as machine:
        hurried = machine.next_tick(planned_seconds=0.125)
        eased = machine.next_tick()

    assert (hurried.lateness_seconds, eased.lateness_seconds) == (0.0, 0.0)
    # A snapshot has the time to the next tick; the metric is the time that was planned before this one.
    assert hurried.interval_seconds == 1.0
    assert [state.value(INTERVAL) for state in (hurried, eased)] == [0.125, 1.0]


def test_who_hurries_gets_the_next_sample_soon_and_only_that_one() -> None:
    with watching() as machine:
        machine.assessor.hurry()
        seen = [machine.next_tick().value(INTERVAL) for _ in range(2)]

    assert seen == [Config().sampling.fastest_seconds, 1.0]


@pytest.mark.parametrize("seconds", [0.8, 0.7])
def test_a_slightly_quicker_pace_reads_no_source_more_rarely(seconds: float) -> None:
    with watching() as machine:
        seen = [is_fresh(machine.next_tick(planned_seconds=seconds), "cpu") for _ in range(4)]

    assert seen == [True] * 4


def test_ten_ticks_a_second_read_the_dear_sources_once_a_second() -> None:
    with watching() as machine:
        seen = [is_fresh(machine.next_tick(planned_seconds=0.1), "cpu") for _ in range(30)]

    assert sum(seen) == 3


def test_each_resource_that_quickens_the_pace_is_read_at_it() -> None:
    with watching("cgroup-limit") as machine:
        state = machine.next_tick(planned_seconds=0.1)

    resources = {forecast.resource.partition(":")[0] for forecast in state.forecasts}
    assert resources == {"ram", "gpu0", "cgroup"}
    assert all(is_fresh(state, source) for source in ("memory", "gpu", "cgroups"))
    assert not is_fresh(state, "cpu")


def test_an_engine_bug_costs_neither_samples_nor_next_forecast(monkeypatch, caplog):
    assessor = Assessor(Config(), RecordedHost(HOSTS / "wsl2-idle"))
    healthy = RiskEngine.observe
    monkeypatch.setattr(RiskEngine, "observe", lambda *_: 1 / 0)
    broken, transitions = assessor.tick()
    said = [message for message in caplog.messages if "please report this" in message]
    assessor.tick()
    monkeypatch.setattr(RiskEngine, "observe", healthy)
    mended, _ = assessor.tick()
    assessor.close()

    reports = [next(r for r in s.reports if r.name == "risk") for s in (broken, mended)]
    assert (broken.forecasts, transitions, broken.observation.ram is not None) == ((), (), True)
    assert [(r.health, r.failures_total) for r in reports] == [("failed", 1), ("ok", 2)]
    assert [r.last_success_wall is None for r in reports] == [True, False]
    assert [message for message in caplog.messages if "please report this" in message] == said
    assert len(said) == 1, "at once, and once"
    assert "training" not in {r.name for r in mended.reports}
    assert "internal error: ZeroDivisionError" in str(reports[0].error)
    assert mended.forecasts


def test_an_engine_that_fails_is_reported_with_its_last_success(monkeypatch: pytest.MonkeyPatch) -> None:
    with watching() as machine:
        worked = machine.clock.wall()
        monkeypatch.setattr(RiskEngine, "observe", lambda *_: 1 / 0)
        report = next(one for one in machine.next_tick().reports if one.name == "risk")

    assert (report.health, report.last_success_wall) == ("failed", worked)


def test_probable_vram_exhaustion_is_an_event_naming_who_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = tuple(Failure("gpu0", "GPU-1", 15 << 30, program) for program in ("train.py", ""))
    monkeypatch.setattr(RiskEngine, "observe", lambda *_: Assessment((), (), failures))
    with watching() as machine:
        events = [event for event in machine.next_tick().events if event.kind == "vram_exhausted"]

    failed = "an allocation on GPU 0 has probably failed at 15 GiB"
    assert [str(event.message) for event in events] == [
        f"{failed}: train.py ended right after use had grown to that",
        f"{failed}: much of it was freed right after use had grown to that",
    ]
