"""Memory a training keeps with each step: common leaks are found within fifty steps, and there are no false alarms."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.risk.training_metrics import RISES, StepBlock, StepGrowth, step_growth
from wslgpud.training.companion import BLOCKS, READINGS, SCALES, Floors

MIB = 1 << 20
#: what is in use after a step, and the peak in it, by the step; bytes
Program = Callable[[random.Random, int], tuple[float, float]]
#: a model of 350 million parameters with AdamW on a card of 16 GiB
WEIGHTS = 5600 * MIB
WORK = 2200 * MIB


def steady(chance: random.Random, step: int) -> tuple[float, float]:
    return WEIGHTS, WEIGHTS + WORK


def leak(mib: float) -> Program:
    return lambda chance, step: (WEIGHTS + mib * MIB * step, WEIGHTS + mib * MIB * step + WORK)


def varying(chance: random.Random, step: int) -> tuple[float, float]:
    """Batches of varying length, of which the last outputs are held until the next one."""
    length = chance.uniform(0.1, 1.0)
    return WEIGHTS + 400 * MIB * length, WEIGHTS + WORK * length


def varying_and_leaking(chance: random.Random, step: int) -> tuple[float, float]:
    held, peak = varying(chance, step)
    return held + 3 * MIB * step, peak + 3 * MIB * step


def in_turns(chance: random.Random, step: int) -> tuple[float, float]:
    """Two models that are trained in turns."""
    held = WEIGHTS + 900 * MIB * (step % 2)
    return held, held + WORK


def curriculum(chance: random.Random, step: int) -> tuple[float, float]:
    """Sequences that get longer: the last outputs held grow with the work."""
    length = min(1.0, 0.1 + step / 2000)
    return WEIGHTS + 300 * MIB * length, WEIGHTS + 300 * MIB * length + 2 * WORK * length


def collecting(chance: random.Random, step: int) -> tuple[float, float]:
    """An epoch's outputs are collected for its metric, and dropped: each epoch reaches what the one before did."""
    held = WEIGHTS + 5 * MIB * (step % 400)
    return held, held + WORK


def evaluating(chance: random.Random, step: int) -> tuple[float, float]:
    """Every 25 steps an evaluation, after which its outputs are held for a step."""
    held = WEIGHTS + 700 * MIB * (step % 25 == 0)
    return held, held + WORK


def averaging(chance: random.Random, step: int) -> tuple[float, float]:
    """From step 300 on a second copy of the weights."""
    held = WEIGHTS + 1400 * MIB * (step > 300)
    return held, held + WORK


def filling(chance: random.Random, step: int) -> tuple[float, float]:
    """A cache with a bound, filled from step 0 on."""
    held = WEIGHTS + 2 * MIB * min(step, 20)
    return held, held + WORK


def ragged(chance: random.Random, step: int) -> tuple[float, float]:
    """The noise of small tensors."""
    held = WEIGHTS + chance.gauss(0, 3) * MIB
    return held, held + WORK


def warming(chance: random.Random, step: int) -> tuple[float, float]:
    """Workspaces and the optimizer's states come within the first steps."""
    held = WEIGHTS * min(1.0, 0.4 + 0.2 * step)
    return held, held + WORK


def seen(program: Program, steps: int, seed: int = 1) -> Iterator[tuple[int, StepGrowth]]:
    """Yield the steps after which growth is found, and the finding."""
    chance, floors = random.Random(seed), Floors()
    peak = 0.0
    for step in range(1, steps + 1):
        held, most = program(chance, step)
        peak = max(peak, most)
        floors.add(step, int(held), int(peak))
        if growth := step_growth([[StepBlock(*block) for block in blocks] for blocks in floors.scales]):
            yield step, growth


@pytest.mark.parametrize("mib", [1, 3, 10])
def test_a_leak_of_a_ten_thousandth_is_seen_within_fifty_steps(mib: int) -> None:
    step, growth = next(seen(leak(mib), 100))

    assert step <= 50
    assert growth.step_bytes == pytest.approx(mib * MIB, rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_below_batches_of_varying_length_is_seen_in_time(seed: int) -> None:
    step, growth = next(seen(varying_and_leaking, 1500, seed))

    assert step <= 800
    assert growth.step_bytes == pytest.approx(3 * MIB, rel=0.35)


def test_a_leak_that_goes_on_for_hours_is_known_in_full() -> None:
    *_, (_, growth) = seen(leak(1), 20_000)

    assert growth.grown_bytes > 8_000 * MIB
    assert growth.step_bytes == pytest.approx(MIB, rel=0.01)


HARMLESS = [steady, varying, in_turns, curriculum, evaluating, averaging, filling, ragged, warming]


@pytest.mark.parametrize("program", HARMLESS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_no_leak_is_none(program: Program, seed: int) -> None:
    assert list(seen(program, 6000, seed)) == []


def test_what_an_epoch_collects_and_drops_is_growth_only_once() -> None:
    assert max(step for step, _ in seen(collecting, 4000)) < 400 + 2 * READINGS  # the block after the drop


def test_growth_that_has_ended_is_none() -> None:
    def ends(chance: random.Random, step: int) -> tuple[float, float]:
        return leak(3)(chance, min(step, 200))

    assert max(step for step, _ in seen(ends, 2000)) < 300


RISING = (0, 2, 5, 8, 10, 13, 16)


def growth(
    mib: tuple[float, ...] = RISING,
    *,
    spread: float = 0.0,
    peak: float = 0.0,
    before: tuple[StepBlock, ...] = (),
    coarser: tuple[StepBlock, ...] = (),
) -> StepGrowth | None:
    """Return the growth seen in blocks of ten steps from step 100 on, with these floors and this rise of the peak."""
    floors = [int((1000 + floor) * MIB) for floor in mib]
    peaks = [0] * (len(mib) - 1) + [int(peak * MIB)]
    blocks = [
        StepBlock(100 + 10 * i, floor, floor + int(spread * MIB), peak)
        for i, (floor, peak) in enumerate(zip(floors, peaks, strict=True))
    ]
    return step_growth([[*before, *blocks], list(coarser)])


@pytest.mark.parametrize(
    ("holds", "fails"),
    [
        ({}, {"mib": RISING[1:]}),  # six rises
        ({"mib": (0, 2, 5, 5 + 1 / MIB, 10, 13, 16)}, {"mib": (0, 2, 5, 5, 10, 13, 16)}),  # each of them
        ({}, {"mib": (*RISING[:6], 15.9)}),  # 16 MiB
        ({"mib": (0, 1, 2, 3, 4, 8, 16)}, {"mib": (0, 1, 2, 3, 4, 7.9, 16)}),  # none more than half of it
        ({"spread": 8.0}, {"spread": 8.1}),  # twice as much as comes and goes
        ({"peak": 32.0}, {"peak": 32.1}),  # and half as much as the work grows
        (
            {"before": (StepBlock(90, 0, 1016 * MIB - 1, 0),)},
            {"before": (StepBlock(90, 0, 1016 * MIB, 0),)},  # no more than there was before
        ),
        ({"before": (StepBlock(90, 0, 0, 0),)}, {"coarser": (StepBlock(90, 0, 1016 * MIB, 0),)}),
    ],
)
def test_what_rises_steadily_to_where_it_never_was_is_retained(holds: dict[str, Any], fails: dict[str, Any]) -> None:
    assert growth(**holds) == StepGrowth(16 * MIB / 60, 16 * MIB, 60)
    assert growth(**fails) is None


@pytest.mark.parametrize("steps", [(5, 5, 5, 5, 5, 5, 5), (5, 6, 7, 8, 9, 10, 4), (5, 6, 7, 8, 9, 10, 5)])
def test_blocks_whose_steps_do_not_advance_are_no_growth(steps: tuple[int, ...]) -> None:
    blocks = [StepBlock(step, mib * MIB, mib * MIB, 0) for step, mib in zip(steps, RISING, strict=True)]

    assert step_growth([blocks]) is None
    assert step_growth([[blocks[0], *(block._replace(step=9) for block in blocks[1:])]]) == (4 * MIB, 16 * MIB, 4)


@pytest.mark.parametrize(("mib", "seen"), [(16, True), (8, True), (7.9, False), (32, True), (32.1, False)])
def test_growth_is_traced_back_to_where_its_pace_began(mib: float, *, seen: bool) -> None:
    floor = 1000 * MIB - int(mib * MIB)
    found = growth(coarser=(StepBlock(40, floor, floor, 0),))

    assert found == StepGrowth(16 * MIB / 60, *((int((16 + mib) * MIB), 120) if seen else (16 * MIB, 60)))


def test_memory_freed_since_is_no_longer_retained() -> None:
    freed = StepBlock(170, 900 * MIB, 1015 * MIB, 0)
    high = tuple(StepBlock(100 + 10 * i, (1000 + mib) * MIB, (1000 + mib) * MIB, 0) for i, mib in enumerate(RISING))

    assert step_growth([[], list(high)]) is None
    assert step_growth([[freed], list(high)]) is None
    assert step_growth([[freed._replace(most=1016 * MIB)], list(high)]) is not None


READING = st.integers(0, 1 << 40)


@given(
    st.lists(
        st.lists(st.tuples(READING, READING, READING, READING).map(lambda b: StepBlock(*b)), max_size=8), max_size=6
    )
)
def test_no_claim_is_too_wild_to_be_answered(scales: list[list[StepBlock]]) -> None:
    growth = step_growth(scales)

    assert growth is None or (growth.step_bytes > 0 and growth.grown_bytes > 0 and growth.steps > 0)


@given(st.lists(READING, min_size=1, max_size=400))
def test_blocks_hold_the_minimum_and_maximum_of_what_they_cover(readings: list[int]) -> None:
    floors = Floors()
    for step, used in enumerate(readings, 1):
        floors.add(step, used, 0)

    size = 6
    for blocks in floors.scales:
        assert len(blocks) <= BLOCKS
        for step, least, most, _ in blocks:
            covered = readings[step - size : step]
            assert (least, most) == (min(covered), max(covered))
        size *= 4
    assert len(floors.scales) == SCALES
    assert RISES < BLOCKS
