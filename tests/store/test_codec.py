"""A sheet gives back exactly what was put into it."""

from __future__ import annotations

import zlib
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wslgpud.store.codec import decode, encode, entries_of, inflate, pack_sheet, pack_text, samples_in, unpack_text
from wslgpud.store.errors import DAMAGE

WHOLE = st.integers(-(2**62) + 1, 2**62 - 1)
SMALL = st.integers(-300, 300)


@given(st.lists(WHOLE | SMALL, min_size=1, max_size=300))
@example([-(2**62) + 1, 2**62 - 1, -(2**62) + 1])
@example([0])
@example([5, 5, 5])
def test_whole_numbers(values):
    assert decode(encode(values)) == values


def test_as_many_bytes_as_allowed_are_inflated_and_not_one_more():
    data = zlib.compress(bytes(1024))
    assert inflate(data, 1024) == bytes(1024)
    with pytest.raises(ValueError, match="it inflates to more than 1 KiB"):
        inflate(data, 1023)
    with pytest.raises(ValueError, match="truncated"):
        inflate(data[:-1], 1024)


def test_what_does_not_change_takes_next_to_no_room():
    assert len(encode([12345] * 900)) < 50


def test_a_level_in_pages_takes_less_than_a_byte_a_sample():
    values = [34 * 2**30 + 4096 * (i * i % 97 % 5) for i in range(900)]
    assert len(encode(values)) < 0.7 * len(values)


def test_a_steady_counter_takes_next_to_nothing():
    assert len(encode(list(range(0, 900_000, 1000)))) < 50


@pytest.mark.parametrize("block", [b"", b"\xff", zlib.compress(b"x"), zlib.compress(bytes(9)), encode([1, 2])[:-1]])
def test_noise_is_refused(block):
    with pytest.raises(DAMAGE):
        decode(block)


def test_each_series_of_a_sheet_is_found_alone_or_with_all():
    series = {9: ([10, 20], [2**62 - 1, 7]), 3: ([10, 20], [-7, -7]), 2**32 - 1: ([15], [5])}
    sheet = pack_sheet([(number, *samples) for number, samples in series.items()])

    found = {number: samples_in(sheet, number) for number in (2, 3, 4, 9, 10, 2**32 - 1)}
    assert {n: of and ([*of[1]], of[2]) for n, of in found.items()} == {**dict.fromkeys((2, 4, 10)), **series}
    last = {(entry.number, entry.last_ms, entry.last) for entry in entries_of(sheet)}
    assert last == {(3, 20, -7), (9, 20, 7), (2**32 - 1, 15, 5)}
    assert samples_in(pack_sheet([]), 3) is None


def test_series_with_the_same_ticks_share_their_times():
    times = [n * n * 7919 for n in range(900)]
    alone = len(pack_sheet([(1, times, times)]))

    assert len(pack_sheet([(n, times, [5] * 900) for n in range(10)])) < 2 * alone


@given(st.integers(0, 100), st.integers(1, 255), st.sampled_from([1, 2]))
def test_a_damaged_sheet_says_so_or_gives_a_block(place, bits, number):
    whole = pack_sheet([(1, [1, 2], [3, 4]), (2, [1, 3], [5, 6])])
    sheet = bytearray(whole)
    sheet[place % len(whole)] ^= bits
    with suppress(*DAMAGE):
        samples_in(bytes(sheet), number)


def test_half_a_character_in_a_name_does_not_end_all_writing():
    assert unpack_text(pack_text("train\ud83d.py")) == "train?.py"
