"""Staircases and stacks: which rises are steps, which steps belong together, and when the next will not fit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wslgpud.risk.levels import Danger
from wslgpud.risk.staircases import StepLedger, _Step


def fed(*used: float) -> list[tuple[float, float, float, float]]:
    """Return the steps found in what is in use, second by second; a step has at least a sixteenth."""
    ledger = StepLedger(1 / 16)
    for t, share in enumerate(used):
        ledger.feed(float(t), share / 64)
    return [(step.began, step.ended, 64 * step.size, 64 * step.height) for step in ledger._steps]


@pytest.mark.parametrize(
    ("used", "steps"),
    [
        ([0, 0, 4, 4], []),  # it may go on
        ([0, 0, 4, 4, 4], [(1, 2, 4, 4)]),
        ([0, 0, 3, 3, 3], []),
        ([0, 2, 4, 4, 4], [(0, 2, 4, 4)]),
        ([0, 1.9, 3.8, 5.7, 7.6, 7.6, 7.6], []),  # a slope
        ([0, 4, 4, 8, 8, 8], [(0, 3, 8, 8)]),  # a pause within it
        ([0, 4, 4, 4, 8, 8, 8], [(0, 1, 4, 4), (3, 4, 4, 8)]),
        ([0, 4, 5, 6, 6, 6], [(0, 1, 5, 5)]),
        ([0, 4, 4, 4, 0, 0, 0], [(0, 1, 4, 4)]),
        ([0, 6, 6, 6, 0.1, 0.1, 0.1], [(0, 1, 6, 6)]),
        ([0, 6, 6, 6, 0, 0, 0], []),  # a fall
        ([0, 6, 0, 6, 6, 6], [(2, 3, 6, 6)]),
        ([8, 8, 8, 8], []),
    ],
)
def test_a_step_is_a_rise_of_some_size_between_two_plateaus(
    used: Sequence[float], steps: list[tuple[float, float, float, float]]
) -> None:
    assert fed(*used) == steps


def test_the_last_eight_steps_are_kept() -> None:
    assert len(fed(*(4 * (t // 3) for t in range(40)))) == 8


def ledger(gaps: Sequence[float], sizes: Sequence[float], creep: float = 0.0) -> tuple[StepLedger, float, float]:
    """Return steps of a second each that began so many seconds apart, the end of the last, and what it reached."""
    found, began, height = StepLedger(0.02), 100.0, 0.0
    for gap, size in zip((0.0, *gaps), sizes, strict=True):
        began, height = began + gap, height + size + creep * bool(gap)
        found._steps.append(_Step(began, began + 1.0, size, height))
    return found, began + 1.0, height


def staircase(
    gaps: Sequence[float],
    sizes: Sequence[float],
    left: float,
    *,
    still: float = 5.0,
    creep: float = 0.0,
    up: float = 0.0,
) -> Danger | None:
    found, ended, reached = ledger(gaps, sizes, creep)
    lift = 1.0 - left - up - reached
    for i, step in enumerate(found._steps):
        found._steps[i] = step._replace(height=step.height + lift)
    return found.danger(ended + still, left, lambda height, since: 1.0)


TENS, ALIKE = (10, 10, 10), (0.1,) * 4
LATER: dict[str, object] = {"gaps": (40, 10, 10, 10), "sizes": (0.1,) * 5}
DOUBLING: dict[str, object] = {"sizes": (0.1, 0.1, 0.2, 0.4), "still": 15.0}


@pytest.mark.parametrize(
    ("gaps", "sizes", "left", "probability", "eta", "window", "still", "following"),
    [
        (TENS, ALIKE, 0.35, 3 / 6.5, 30.0, 10.0, 100.0, 0.1),
        ((10,) * 5, (0.1,) * 6, 0.35, 0.5 / 0.85, 30.0, 10.0, 150.0, 0.1),
        ((10,) * 5, (0.1,) * 6, 0.15, 5 / 6.5, 10.0, 10.0, 150.0, 0.1),
        (TENS, ALIKE, 0.05, 3 / 3.5, 5.0, 10.0, 100.0, 0.1),
        ((8, 10, 12), ALIKE, 0.35, 3 / 6.5, 30.0, 10.0, 100.0, 0.1),
        # steps that grow: by as much again, but not beyond 2.5 times
        (TENS, (0.03, 0.04, 0.06, 0.09), 0.3, 0.22 / 0.52, 10 * (1 + 0.165 / 0.2025) - 5, 10.0, 100.0, 0.135),
        (TENS, (0.01, 0.01, 0.03, 0.1), 0.3, 0.15 / 0.45, 10 * 1.08 - 5, 10.0, 100.0, 0.25),
        (TENS, (0.1, 0.1, 0.1, 0.12), 0.13, 3 / (3 + 1 + 0.01 / 0.12), 10 * (1 + 0.01 / 0.12) - 5, 10.0, 100.0, 0.12),
    ],
)
def test_a_staircase_goes_on_as_it_came(
    gaps: Sequence[float],
    sizes: Sequence[float],
    left: float,
    probability: float,
    eta: float,
    window: float,
    still: float,
    following: float,
) -> None:
    danger = staircase(gaps, sizes, left)

    assert danger is not None
    assert danger.cause == "steps"
    assert danger[1:4] == pytest.approx((probability, eta, window))
    assert danger.early_seconds == pytest.approx(max(eta, window))
    assert (danger.still_seconds, danger.next_step, danger.last_step) == pytest.approx((still, following, sizes[-1]))


def test_a_buffer_that_doubles_takes_twice_as_long_each_time() -> None:
    danger = staircase((10, 20, 40), (0.025, 0.05, 0.1, 0.2), 0.5, still=10.0)

    assert danger is not None
    assert danger[1:4] == pytest.approx((0.375 / 0.875, 80 * 1.125 - 10, 80.0))
    assert (danger.still_seconds, danger.next_step) == pytest.approx((800.0, 0.4))


@pytest.mark.parametrize(
    ("holds", "fails"),
    [
        ({}, {"gaps": (10, 10), "sizes": (0.1,) * 3}),  # how many steps
        ({"still": 2.0}, {"still": 1.9}),  # between a fifth of a wait and three
        ({"still": 30.0}, {"still": 30.1}),
        (LATER | {"still": 2.0}, LATER | {"still": 1.9}),  # of the last three
        ({"gaps": (10, 10, 22)}, {"gaps": (10, 10, 22.1)}),  # about equal waits
        ({"sizes": (0.1, 0.1, 0.1, 0.061)}, {"sizes": (0.1, 0.1, 0.1, 0.059)}),  # about equal sizes
        ({"sizes": (0.1, 0.1, 0.1, 0.349)}, {"sizes": (0.1, 0.1, 0.1, 0.351)}),
        ({"creep": 0.029}, {"creep": 0.031}),  # between them next to nothing grows
        ({"up": 0.349}, {"up": 0.351}),  # what has come on top
        (DOUBLING | {"gaps": (10, 20, 59)}, DOUBLING | {"gaps": (10, 20, 61)}),
    ],
)
def test_steps_that_are_alike_in_time_and_size_are_a_staircase(
    holds: dict[str, object], fails: dict[str, object]
) -> None:
    plain: dict[str, object] = {"gaps": TENS, "sizes": ALIKE, "left": 0.3}

    assert staircase(**(plain | holds)) is not None  # type: ignore[arg-type]
    assert staircase(**(plain | fails)) is None  # type: ignore[arg-type]


def test_earlier_steps_count_as_far_as_their_waits_are_alike() -> None:
    def still(*gaps: float) -> float:
        danger = staircase((*gaps, 10, 10, 10), (0.1,) * (4 + len(gaps)), 0.3)
        assert danger is not None
        return danger.still_seconds / 10

    assert [still(10), still(21.9), still(22.1), still(4.6), still(4.5)] == [12.5, 12.5, 10, 12.5, 10]
    assert still(10, 30, 10) == 12.5, "not beyond the first that is not"


def test_its_certainty_is_that_of_a_climb_since_its_first_step() -> None:
    found, ended, height = ledger((10, 10, 10), ALIKE)
    asked: list[tuple[float, float]] = []

    def belief(height: float, since: float) -> float:
        asked.append((height, since))
        return 0.5

    danger = found.danger(ended + 5.0, 1.0 - height, belief)
    assert danger is not None
    assert danger.probability == pytest.approx(0.5 * 3 / 9)
    assert asked[0] == pytest.approx((0.4, 100.0))

    piled, ended, height = ledger((7, 8, 2, 9), (0.05, 0.2, 0.16, 0.21, 0.18))
    danger = piled.danger(ended + 2.0, 1.0 - height, belief)
    assert danger is not None
    assert danger.probability == 0.25
    assert asked[1] == pytest.approx((0.8, 107.0))


def stack(
    gaps: Sequence[float] = (8, 2, 9),
    sizes: Sequence[float] = (0.2, 0.16, 0.21, 0.18),
    left: float = 0.19,
    *,
    still: float = 2.0,
    up: float = 0.0,
) -> Danger | None:
    found, ended, _ = ledger(gaps, sizes)
    found._steps[-1] = found._steps[-1]._replace(height=1.0 - left - up)
    return found.danger(ended + still, left, lambda height, since: 1.0)


def test_another_block_is_expected_after_the_usual_wait() -> None:
    usual = stack()
    assert usual is not None
    assert usual.cause == "steps"
    assert usual[1:5] == pytest.approx((0.5, 19 / 3 - 2, 19 / 3, 19 / 3))
    assert (usual.still_seconds, usual.next_step, usual.last_step) == pytest.approx((10 * 19 / 3, 0.2, 0.18))
    late = stack(still=20.0)
    assert late is not None
    assert late.eta_seconds == 0.0
    many = stack((8, 2, 9, 8, 2, 9), (0.2, 0.16, 0.21, 0.18, 0.2, 0.2, 0.2))
    assert many is not None
    assert many.still_seconds == pytest.approx(2.5 * 7 * 19 / 3)


@pytest.mark.parametrize(
    ("holds", "fails"),
    [
        ({"left": 0.199}, {"left": 0.2}),  # another one fits
        ({"sizes": (0.3, 0.3, 0.3, 0.3), "left": 0.249}, {"sizes": (0.3, 0.3, 0.3, 0.3), "left": 0.25}),
        ({"sizes": (0.2, 0.04, 0.21, 0.18)}, {"sizes": (0.2, 0.039, 0.21, 0.18)}),
        ({"still": 27.0}, {"still": 27.1}),
        ({"up": 0.039}, {"up": 0.041}),
        ({}, {"gaps": (8, 2), "sizes": (0.2, 0.2, 0.2)}),
    ],
)
def test_large_blocks_are_a_stack_while_another_does_not_fit(
    holds: dict[str, object], fails: dict[str, object]
) -> None:
    assert stack(**holds) is not None  # type: ignore[arg-type]
    assert stack(**fails) is None  # type: ignore[arg-type]


def test_the_next_step_is_like_the_last_two_or_it_is_not() -> None:
    found = [staircase(TENS, (0.1, 0.1, before, 0.1), 0.3) for before in (0.081, 0.124, 0.079, 0.126)]
    assert [danger and danger.alike for danger in found] == [True, True, False, False]


def test_while_a_rise_goes_on_there_is_neither() -> None:
    for gaps, sizes in ((TENS, (0.2,) * 4), ((7, 8, 2, 9), (0.05, 0.2, 0.16, 0.21, 0.18))):
        found, ended, height = ledger(gaps, sizes)
        assert found.danger(ended + 2.0, 0.19, lambda *_: 1.0) is not None
        found.feed(ended + 2.0, height)
        found.feed(ended + 3.0, height + 0.05)
        assert found.danger(ended + 3.0, 0.15, lambda *_: 1.0) is None
