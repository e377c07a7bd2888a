"""The allocator holds what PyTorch's does."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from wslgpud.advise.fit.tracer.allocator import MIB, Allocator, Block

RECORDED = json.loads(Path(__file__).with_name("allocations.json").read_text())


def test_it_holds_as_much_as_the_card_did_in_a_real_training():
    """Two steps of Llama 1B; a number is a size, or (below zero) which of them was given back."""
    allocator = Allocator()
    taken: list[Block] = []
    for event in RECORDED["events"]:
        if event > 0:
            taken.append(allocator.take(event))
        else:
            allocator.give(taken[-event - 1])

    assert allocator.reserved_bytes == RECORDED["reserved_bytes"]
    assert sum(allocator.peak.values()) == RECORDED["allocated_bytes"]


def test_small_blocks_share_2_mib_segments_and_larger_ones_20():
    allocator = Allocator()

    def reserved_after(size: int) -> int:
        allocator.take(size)
        return allocator.reserved_bytes // MIB

    assert reserved_after(1) == reserved_after(MIB) == 2
    assert reserved_after(MIB + 1) == 2 + 20
    assert reserved_after(9 * MIB) == reserved_after(9 * MIB) == 2 + 20
    assert reserved_after(9 * MIB) == 2 + 20 + 20
    assert reserved_after(13 * MIB) == 2 + 20 + 20 + 14


def test_a_free_block_is_split_unless_little_would_be_left():
    allocator = Allocator()
    allocator.give(allocator.take(30 * MIB))

    assert allocator.take(29 * MIB).size == 30 * MIB
    assert allocator.reserved_bytes == 30 * MIB
    allocator.give(allocator.take(40 * MIB))
    assert allocator.take(12 * MIB).size == 12 * MIB
    assert allocator.take(28 * MIB).size == 28 * MIB
    assert allocator.reserved_bytes == 70 * MIB


def test_free_neighbours_become_one_again():
    allocator = Allocator()
    allocator.give(allocator.take(60 * MIB))
    three = [allocator.take(20 * MIB) for _ in range(3)]
    for block in (three[0], three[2], three[1]):
        allocator.give(block)

    allocator.take(60 * MIB)
    assert allocator.reserved_bytes == 60 * MIB


@given(st.lists(st.tuples(st.integers(1, 64 * MIB), st.booleans()), max_size=60))
def test_nothing_is_lost_and_nothing_lies_upon_another(wishes):
    allocator = Allocator()
    held: list[Block] = []
    for size, giving in wishes:
        if giving and held:
            allocator.give(held.pop(size % len(held)))
        held.append(allocator.take(size))
    places = sorted((block.address, block.address + block.size) for block in held)

    assert all(before[1] <= after[0] for before, after in pairwise(places))
    assert sum(block.size for block in held) == sum(allocator.used.values()) <= allocator.reserved_bytes
    while held:
        allocator.give(held.pop())
    assert not any(allocator.used.values())


def test_emptying_the_cache_gives_back_whole_segments():
    allocator = Allocator()
    first, second = allocator.take(30 * MIB), allocator.take(50 * MIB)
    allocator.take(512)
    allocator.give(first)
    allocator.empty_cache()
    allocator.take(20 * MIB)

    # 30 + 50 + 2 MiB; the first segment was given back, so 20 more do not exceed that.
    assert allocator.reserved_bytes == 82 * MIB
    allocator.give(second)
    allocator.take(60 * MIB)
    assert allocator.reserved_bytes == (50 + 2 + 20 + 60) * MIB
