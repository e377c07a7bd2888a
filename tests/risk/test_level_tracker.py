"""One resource from sample to sample: its rate, its gaps, and which circumstances are a danger."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest

from wslgpud.model import Level
from wslgpud.risk.headroom import Room
from wslgpud.risk.level_tracker import Circumstances, LevelTracker, ResourceState
from wslgpud.risk.levels import Danger
from wslgpud.risk.scarcity import Pressure
from wslgpud.risk.settings import RiskSettings

OK, INFO, WARNING, CRITICAL, EMERGENCY = Level
SIZE = 100_000
NOTHING = Circumstances()
STALLED = Pressure(stalled=True)


def update(
    tracker: LevelTracker, t: float, left: float, around: Circumstances = NOTHING, hits: int | None = None
) -> ResourceState:
    """Take a sample with this share left."""
    return tracker.update(t, Room("ram", "ram", round(left * SIZE), SIZE, swap=True, limit_hits=hits), around)


def at_rest(left: float = 0.2, until: int = 10, every: float = 1.0) -> LevelTracker:
    """Return a tracker after samples of a resource at rest."""
    tracker = LevelTracker(RiskSettings(), SIZE)
    for i in range(until + 1):
        update(tracker, i * every, left)
    return tracker


def test_a_countdown_runs_down_while_the_estimate_agrees() -> None:
    tracker = LevelTracker(RiskSettings(), SIZE)
    shown = [
        tracker.countdown(float(t), eta, 0.7 * eta, 1.4 * eta)
        for t, eta in enumerate(40.0 - t + (3.0 if t % 2 else -3.0) for t in range(20))
    ]

    assert all(0.3 <= before - after <= 1.7 for before, after in pairwise(shown))
    assert tracker.countdown(20.0, 4.0, 3.0, 6.0) == 4.0, "a real change is shown at once"
    assert tracker.countdown(60.0, 50.0, 1.0, 90.0) == 50.0, "after a gap nothing is kept"


def test_the_rate_is_the_loss_over_about_a_minute() -> None:
    tracker = LevelTracker(RiskSettings(), SIZE)
    assert tracker.rate is None
    update(tracker, 0.0, 0.9)
    assert tracker.rate is None
    for t in range(1, 301):
        update(tracker, float(t), 0.9 - 0.001 * max(0, t - 270))

    assert tracker.rate == pytest.approx(0.001 * SIZE * 30 / 65)


def test_a_sample_is_overdue_after_6_intervals_or_3_seconds() -> None:
    for every, usual in ((0.1, 3.0), (0.5, 3.0), (1.0, 6.0), (10.0, 60.0)):
        tracker = at_rest(every=every)
        assert tracker.gap(tracker.t + usual - 0.01) == 0.0
        assert tracker.gap(tracker.t + usual + 0.01) == pytest.approx(usual + 0.01)
    assert at_rest(until=0).gap(1000.0) == 0.0, "nothing is usual yet"
    assert LevelTracker(RiskSettings(), SIZE).gap(1000.0) == 0.0


def test_the_usual_interval_adapts_to_a_new_one_by_a_fifth() -> None:
    tracker = at_rest()
    update(tracker, 12.0, 0.2)

    assert tracker.gap(12.0 + 7.21) == pytest.approx(7.21)
    assert tracker.gap(12.0 + 7.19) == 0.0


@pytest.mark.parametrize(
    ("around", "left", "level"),
    [
        (Circumstances(pressure=Pressure(0.2)), 0.34, WARNING),
        (Circumstances(pressure=Pressure(0.19)), 0.34, OK),
        (Circumstances(pressure=Pressure(0.4)), 0.34, CRITICAL),
        (Circumstances(pressure=Pressure(0.39)), 0.34, WARNING),
        (Circumstances(pressure=Pressure(1.0)), 0.35, OK),
        (Circumstances(exhausted="killed"), 0.29, CRITICAL),
        (Circumstances(exhausted="killed"), 0.3, OK),
        (Circumstances(wanted_bytes=44_999), 0.5, OK),
        (Circumstances(wanted_bytes=45_000), 0.5, INFO),
        (Circumstances(wanted_bytes=51_000), 0.5, INFO),
        (Circumstances(wanted_bytes=51_001), 0.5, WARNING),
        (Circumstances(wanted_bytes=1999), 0.0, OK),
        (Circumstances(wanted_bytes=2000), 0.0, WARNING),
    ],
)
def test_stalls_kills_and_commands_that_need_more_are_dangers(around: Circumstances, left: float, level: Level) -> None:
    state = update(at_rest(left), 11.0, left, around)

    assert state.level == level
    assert (state.early_seconds is None) == (state.danger is None or state.danger.cause == "expected")


@pytest.mark.parametrize(
    ("around", "danger"),
    [
        (Circumstances(exhausted="killed"), Danger("oom", 1.0, 0.0, 0.0)),
        (Circumstances(pressure=Pressure(0.2)), Danger("pressure", 0.6, 60.0, 10.0)),
        (Circumstances(pressure=Pressure(0.4)), Danger("pressure", 0.95, 60.0, 10.0)),
        (Circumstances(wanted_bytes=20_000), Danger("expected", 0.3, 900.0, 10.0)),
        (Circumstances(wanted_bytes=30_000), Danger("expected", 0.6, 900.0, 10.0)),
    ],
)
def test_how_certain_each_danger_is_and_how_far_away(around: Circumstances, danger: Danger) -> None:
    assert update(at_rest(), 11.0, 0.2, around).danger == danger


@pytest.mark.parametrize(
    ("late", "around", "level"),
    [
        (6.1, Circumstances(pressure=STALLED), WARNING),
        (6.0, Circumstances(pressure=STALLED), OK),
        (6.1, NOTHING, OK),
        (6.1, Circumstances(pressure=STALLED, gap_expected=True), OK),
    ],
)
def test_a_late_sample_from_a_stalled_machine_is_a_stall(late: float, around: Circumstances, level: Level) -> None:
    assert update(at_rest(), 10.0 + late, 0.2, around).level == level
    assert update(at_rest(0.36), 10.0 + late, 0.36, around).level == OK


def test_a_stall_during_an_alarm_is_critical() -> None:
    tracker = at_rest()
    update(tracker, 11.0, 0.2, Circumstances(pressure=Pressure(0.3)))

    assert update(tracker, 17.1, 0.2, Circumstances(pressure=STALLED)).level == CRITICAL


@pytest.mark.parametrize(
    ("late", "pressure", "left", "level"),
    [(6.1, STALLED, 0.2, WARNING), (6.1, STALLED, 0.36, OK), (6.0, STALLED, 0.2, OK), (6.1, Pressure(), 0.2, OK)],
)
def test_a_sample_that_does_not_come_at_all_is_a_stall_as_well(
    late: float, pressure: Pressure, left: float, level: Level
) -> None:
    assert at_rest(left).miss(10.0 + late, pressure) == level


def test_in_an_alarm_a_missing_sample_alone_is_a_stall() -> None:
    tracker = at_rest()
    assert update(tracker, 11.0, 0.2, Circumstances(wanted_bytes=20_000)).level == INFO
    assert tracker.miss(17.2, Pressure()) == WARNING
    assert tracker.miss(18.2, Pressure()) == WARNING, "it was none before the samples ceased"


def hitting(hits: Iterable[tuple[float, int | None]], left: float = 0.08) -> Level:
    tracker, level = LevelTracker(RiskSettings(), SIZE), OK
    for t, count in hits:
        level = update(tracker, t, left, hits=count).level
    return level


def test_a_group_hitting_its_limit_each_second_raises_a_warning() -> None:
    assert hitting([(0.0, 7), (5.0, 12)]) == WARNING
    assert hitting([(0.0, 7), (5.0, 12)], left=0.085) == OK
    assert hitting([(0.0, 7), (4.9, 20)]) == OK, "it may not last"
    assert hitting([(0.0, 7), (5.0, 11)]) == OK
    assert hitting([(0.0, 0), (1.0, 11), (10.0, 11)]) == WARNING
    assert hitting([(0.0, 1000), (1.0, 1012), (11.0, 1012)]) == OK, "of the last ten seconds"
    assert hitting([(0.0, 50), (5.0, 5), (8.0, 20)]) == OK, "another group of its name"
    assert hitting([(0.0, 50), (5.0, 5), (10.0, 10)]) == WARNING
    assert hitting([(0.0, None), (5.0, None)]) == OK


@pytest.mark.parametrize("every", [0.1, 0.25, 0.5, 1.0, 5.0])
def test_a_group_at_its_limit_gets_a_warning_at_any_sample_rate(every: float) -> None:
    times = [every * n for n in range(round(60 / every) + 1)]

    assert hitting([(t, round(1.1 * t)) for t in times]) == WARNING
    assert hitting([(t, round(0.8 * t)) for t in times]) == OK


def climbing(swap: bool, every: float = 0.5, until: float = 0.2, of: str = "gpu0") -> ResourceState:
    """Return the state after half of the resource was taken at two per cent a second."""
    tracker, samples = LevelTracker(RiskSettings().of(of), SIZE), round(25 / every)
    for i in range(samples):
        room = Room("ram", "ram", round((until + 0.02 * every * (samples - i)) * SIZE), SIZE, swap=swap)
        tracker.update(i * every, room, NOTHING)
    return tracker.update(25.0, Room("ram", "ram", round(until * SIZE), SIZE, swap=swap), NOTHING)


def test_growth_has_a_middle_estimate_between_early_and_late() -> None:
    state = climbing(swap=True)
    assert state.danger is not None
    assert state.early_seconds is not None
    assert state.late_seconds is not None

    assert (state.level, state.danger.cause) == (WARNING, "growth")
    assert state.danger.eta_seconds == pytest.approx(0.2 / 0.02)
    assert (state.early_seconds, state.late_seconds) == pytest.approx((7.0, 16.0))


def test_the_early_estimate_follows_faster_growth_at_once() -> None:
    tracker, estimates = LevelTracker(RiskSettings(), SIZE), {}
    for t in range(220):
        state = update(tracker, float(t), 0.9 - 0.001 * min(t, 200) - 0.02 * max(0, t - 200))
        if state.danger is not None:
            estimates[t] = (state.early_seconds, state.danger.eta_seconds, state.late_seconds)

    assert min(estimates) == 211
    assert estimates[211] == pytest.approx((24.0, 137.61, 220.18), abs=0.005)
    assert estimates[214] == pytest.approx((21.0, 33.43, 174.12), abs=0.005)
    assert estimates[219] == pytest.approx((13.96, 19.95, 107.13), abs=0.005)


def test_on_a_card_or_with_rare_samples_warnings_come_earlier() -> None:
    def warned(*, swap: bool, every: float, of: str) -> float:
        return max(left / 200 for left in range(40, 80) if climbing(swap, every, left / 200, of).level >= WARNING)

    kinds = (("ram", True), ("cgroup:/build", False), ("gpu0", False))
    assert [warned(swap=swap, every=every, of=of) for of, swap in kinds for every in (0.5, 2.5)] == [
        *[0.25, 0.265],  # half of what is lost in the two seconds beyond half a second
        *[0.265, 0.30],  # all of it
        *[0.285, 0.315],  # and for a card 2.5 % more
    ]


@pytest.mark.parametrize(("every", "left"), [(0.5, 0.209), (2.5, 0.213), (5.5, 0.219), (20.0, 0.219)])
def test_loss_until_the_next_sample_counts_for_5_seconds_at_most(every: float, left: float) -> None:
    def level(end: float) -> Level:
        tracker = LevelTracker(RiskSettings(), SIZE)
        for n in range(round(200 / every), -1, -1):
            room = Room("gpu0", "GPU-1", round((end + 0.002 * every * n) * SIZE), SIZE)
            state = tracker.update(-n * every, room, NOTHING)
        return state.level

    assert (level(left), level(left + 0.001)) == (WARNING, INFO)


def test_an_alarm_ended_by_a_kill_reports_it_for_ten_minutes() -> None:
    tracker = at_rest(0.05)
    assert update(tracker, 11.0, 0.05, Circumstances(exhausted="killed")).level == CRITICAL

    assert update(tracker, 26.0, 0.29).level == CRITICAL
    for t, cause in ((26.0, "killed"), (300.0, "killed"), (610.9, "killed"), (611.0, None)):
        state = update(tracker, t, 0.7)
        assert state.level == OK
        assert (state.reported.cause if state.reported else None) == cause
        assert state.reported is None or state.reported.window_seconds == t - 11.0


def test_memory_that_is_back_long_after_a_kill_has_to_stay() -> None:
    tracker = at_rest(0.05)
    update(tracker, 11.0, 0.05, Circumstances(exhausted="killed"))

    assert update(tracker, 26.1, 0.7).level == CRITICAL


def test_what_was_learned_is_kept_for_a_resource_of_that_size() -> None:
    tracker = LevelTracker(RiskSettings(), SIZE)
    for t in range(60):
        update(tracker, float(t), 0.8 - 0.5 * (t % 20) / 19)
    document = tracker.document()
    assert document["capacity_bytes"] == SIZE
    assert len(document["peaks"]) >= 2

    def recalled(size: float) -> bool:
        other = LevelTracker(RiskSettings(), round(size))
        other.recall(0.0, document, 10.0)
        return bool(other.document())

    assert [recalled(size * SIZE) for size in (0.98, 0.995, 1.0, 1.005, 1.02)] == [False, True, True, True, False]
    assert at_rest().document() == {}


@pytest.mark.parametrize(
    ("lost", "gap_expected", "window"),
    [(0.012, False, 4.0), (0.013, False, 132.0), (0.05, False, 132.0), (0.05, True, 4.0)],
)
def test_growth_goes_on_through_a_gap_but_not_through_a_suspend(
    lost: float, *, gap_expected: bool, window: float
) -> None:
    tracker = LevelTracker(RiskSettings(), SIZE)
    for t in range(101):
        update(tracker, float(t), 0.9 - 0.004 * t)
    state = update(tracker, 160.0, 0.5 - lost, Circumstances(gap_expected=gap_expected))
    for t in range(1, 5):
        state = update(tracker, 160.0 + t, 0.5 - lost - 0.004 * t)

    assert state.danger is not None
    assert state.danger.window_seconds == pytest.approx(window, abs=4.0)


@pytest.mark.parametrize(("gap_expected", "level"), [(True, WARNING), (False, OK)])
def test_an_alarm_outlasts_a_suspend_of_its_machine(*, gap_expected: bool, level: Level) -> None:
    tracker = at_rest()
    update(tracker, 11.0, 0.2, Circumstances(pressure=Pressure(0.3)))

    assert update(tracker, 2000.0, 0.2, Circumstances(gap_expected=gap_expected)).level == level


@pytest.mark.parametrize(("swing", "lasts"), [(0.35, 90), (0.0, 61)])
def test_a_sawtooth_alarm_does_not_end_between_two_teeth(swing: float, lasts: int) -> None:
    tracker = LevelTracker(RiskSettings(), SIZE)
    for t in range(500):
        update(tracker, float(t), 0.95 - swing * (t % 100) / 99)
    assert update(tracker, 500.0, 0.2, Circumstances(pressure=Pressure(0.3))).level == WARNING

    after = range(501, 700)
    ended = next(t for t in after if update(tracker, float(t), 0.45).level < WARNING)
    assert ended - 500 == lasts
