"""Jumps are told from growth: where one begins, what belongs to it, when it was a ramp, and when it is given back."""

from __future__ import annotations

import pytest

from wslgpud.risk.growth import NONE, REMEMBERED, Jumps, Shift

LEAST = 0.05
FLAT_START = (0.1,) * 5


def after(*shares: float) -> tuple[Jumps, Shift]:
    """Show one sample per block; return the detector and its last answer."""
    jumps, shift = Jumps(LEAST), NONE
    for share in shares:
        shift = jumps.update(share, new_block=True)
    return jumps, shift


def last(*shares: float) -> Shift:
    return after(*shares)[1]


def is_jump(shift: Shift, by: float, *, began_before: bool = False) -> bool:
    return shift == Shift(pytest.approx(by), fresh=True, began_before=began_before)


def test_a_rise_of_the_minimum_size_out_of_nothing_is_a_jump() -> None:
    assert is_jump(last(*FLAT_START, 0.151), 0.051)
    assert last(*FLAT_START, 0.149) == NONE
    assert last(0.9) == NONE  # nobody knows what was before the first sample


def test_a_rise_of_three_times_the_ones_before_is_a_jump() -> None:
    assert is_jump(last(*FLAT_START, 0.12, 0.14, 0.201), 0.061)
    assert last(*FLAT_START, 0.12, 0.14, 0.199) == NONE


def test_a_jump_caught_in_its_middle_began_in_the_block_before() -> None:
    assert is_jump(last(*FLAT_START, 0.12, 0.20), 0.10, began_before=True)
    assert is_jump(last(*FLAT_START, 0.11, 0.139, 0.239), 0.10)
    assert is_jump(last(*FLAT_START, 0.11, 0.141, 0.24), 0.13, began_before=True)


def test_the_sample_after_a_jump_belongs_to_it() -> None:
    shift = last(*FLAT_START, 0.30, 0.31)

    assert shift == Shift(pytest.approx(0.01))


def test_a_third_block_rising_on_shows_a_jump_was_a_ramp() -> None:
    assert last(*FLAT_START, 0.30, 0.33, 0.40) == Shift(pytest.approx(-0.23))
    assert last(*FLAT_START, 0.30, 0.33, 0.398) == NONE
    assert last(*FLAT_START, 0.30, 0.33, 0.33, 0.40) == NONE  # later, it is no part of the jump
    assert last(*FLAT_START, 0.10, 0.10, 0.10) == NONE


def test_a_jump_back_within_64_blocks_is_a_tooth_of_a_sawtooth() -> None:
    def again(blocks: int, top: float = 0.30) -> Shift:
        return last(*FLAT_START, 0.30, *(0.1,) * blocks, top)

    assert again(10) == NONE
    assert again(REMEMBERED - 2) == NONE
    assert is_jump(again(REMEMBERED - 1), 0.2)
    assert is_jump(again(10, 0.51), 0.41)  # half of its rise is above the old height
    assert again(10, 0.49) == NONE


def test_a_plateau_losing_half_its_jump_lowers_the_past_with_it() -> None:
    plateau = (*FLAT_START, 0.30, *(0.30,) * REMEMBERED)

    assert last(*plateau, 0.21) == NONE
    assert last(*plateau, 0.19) == Shift(pytest.approx(-0.11))
    assert last(*plateau, 0.05) == Shift(pytest.approx(-0.2))  # no more than it was raised by
    assert last(*plateau, 0.19, 0.18) == Shift(pytest.approx(-0.01))  # as it falls on
    assert last(*plateau[:-2], 0.19) == NONE  # a top that falls so soon comes again


def test_a_jump_stands_until_memory_rises_2_or_falls_10_percent() -> None:
    def standing(share: float) -> bool:
        return after(*FLAT_START, 0.30)[0].standing(share)

    assert [standing(share) for share in (0.219, 0.221, 0.30, 0.319, 0.321)] == [False, True, True, True, False]


def test_a_jump_that_no_longer_stands_does_not_stand_again() -> None:
    jumps, _ = after(*FLAT_START, 0.30)

    assert not jumps.standing(0.33)
    assert not jumps.standing(0.30)


def test_what_comes_first_may_be_a_jump_too() -> None:
    jumps = Jumps(LEAST)
    jumps.update(0.1, new_block=True)

    assert is_jump(jumps.update(0.3, new_block=False), 0.2)
    assert is_jump(last(0.1, 0.3), 0.2)


def test_what_was_used_from_the_start_is_no_jump_that_stands() -> None:
    assert not after(0.95)[0].standing(0.95)


def test_only_what_comes_on_top_of_a_jump_in_a_block_is_added() -> None:
    jumps, _ = after(*FLAT_START)
    shifts = [jumps.update(share, new_block=False) for share in (0.30, 0.31, 0.35)]

    assert is_jump(shifts[0], 0.20)
    assert shifts[1:] == [Shift(pytest.approx(0.01)), Shift(pytest.approx(0.04))]


def test_a_jump_back_after_a_long_time_has_teeth_of_its_own() -> None:
    again = (*FLAT_START, 0.30, *(0.1,) * (REMEMBERED - 1), 0.30)

    assert is_jump(last(*again), 0.2)
    assert last(*again, *(0.1,) * 10, 0.30) == NONE
