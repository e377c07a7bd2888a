"""A block gives back exactly what was put into it."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wslgpud.store.codec import SeriesBlock, decode, encode, find_block, inflate, pack_sheet, unpack_sheet

INT64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-300, 300)
MIDDLE = st.integers(-(2**30), 2**30)


@given(st.lists(INT64 | SMALL, min_size=1, max_size=300))
@example([-(2**63), 2**63 - 1, -(2**63)])
@example([0])
@example([5, 5, 5])
def test_whole_numbers(values):
    assert decode(encode(values), len(values), values[-1]) == values


@given(INT64, st.lists(st.integers(-3, 3), max_size=200), st.sampled_from([1, 1000, 4096, 2**30]))
def test_levels_that_move_by_pages(start, steps, page):
    values = [start // 2]
    for step in steps:
        values.append(max(-(2**63), min(2**63 - 1, values[-1] + step * page)))
    assert decode(encode(values), len(values), values[-1]) == values


@given(
    MIDDLE | st.integers(-(2**60), 2**60),
    st.lists(SMALL | MIDDLE, max_size=200) | st.lists(SMALL | INT64),
    st.sampled_from([1, 7, 4096]),
    st.sampled_from([2, 10, 1000, 1_000_000]),
)
@example(5, [1, 300, -2], 1, 2)
@example(5, [1, 300, -2], 1, 1000)
@example(5, [1, 2**30, -2], 1, 1000)
@example(5, [1, 2**30, -2], 4096, 1_000_000)
@example(2**53 - 4096, [1], 4096, 1000)
@example(2**53 - 1, [1, 1, 1], 1, 10)
def test_fractions_are_the_floats_nearest_to_their_decimals(start, steps, page, divisor):
    values = [start]
    for step in steps:
        values.append(max(-(2**63), min(2**63 - 1, values[-1] + step * page)))
    block = encode(values)
    assert decode(block, len(values), values[-1], divisor) == [v / divisor for v in values]


def test_as_many_bytes_as_allowed_are_inflated_and_not_one_more():
    data = zlib.compress(bytes(1024))
    assert inflate(data, 1024) == bytes(1024)
    with pytest.raises(ValueError, match="it inflates to more than 1 KiB"):
        inflate(data, 1023)
    with pytest.raises(zlib.error, match="truncated"):
        inflate(data[:-1], 1024)


def test_what_does_not_change_takes_no_room():
    assert encode([12345] * 900) == b""


def test_a_level_in_pages_takes_less_than_a_byte_a_sample():
    values = [34 * 2**30 + 4096 * (i * i % 97 % 5) for i in range(900)]
    assert len(encode(values)) < 0.5 * len(values)


def test_a_steady_counter_takes_next_to_nothing():
    assert len(encode(list(range(0, 900_000, 1000)))) < 30


@given(st.lists(INT64, min_size=2, max_size=50), st.data())
def test_a_damaged_block_says_so_or_gives_the_right_value_count(values, data):
    block = bytearray(encode(values))
    if not block:
        return
    position = data.draw(st.integers(0, len(block) - 1))
    block[position] ^= data.draw(st.integers(1, 255))
    try:
        back = decode(bytes(block), len(values), values[-1])
    except ValueError:
        return
    assert len(back) == len(values)
    assert back[-1] == values[-1]


@pytest.mark.parametrize("block", [b"\x01", b"\xff", b"\x08\x01\x01", b"\x10" + zlib.compress(b"x"), b"\x11"])
def test_noise_is_refused(block):
    with pytest.raises(ValueError, match="damaged block"):
        decode(block, 3, 1)


def test_each_series_of_a_sheet_is_found_alone_or_with_all():
    blocks = {3: SeriesBlock(0, -7, b"abc"), 9: SeriesBlock(2, 2**63 - 1, b""), 65_535: SeriesBlock(1, 5, b"d")}
    sheet = pack_sheet(blocks)

    assert unpack_sheet(sheet) == blocks
    assert {number: find_block(sheet, number) for number in (2, 3, 4, 9, 10, 65_535)} == {
        **dict.fromkeys((2, 4, 10)),
        **blocks,
    }
    assert find_block(pack_sheet({}), 3) is None


@pytest.mark.parametrize(
    ("width", "unit", "planes", "values"),
    [
        (1, 4, b"\x01\x04", [1004, 996, 1000]),
        (2, 2, b"\x00\xff\x01\x00\x01\x00", [5, 7, 519, 519]),
        (0, 0, struct.pack("<qq", 2**63 - 1, -(2**63)), [-(2**63), 2**63 - 1, 0]),
    ],
    ids=["bytes", "planes", "beyond 64 bits"],
)
def test_a_block_that_was_written_once_is_read_for_ever(width, unit, planes, values):
    """Its first byte is the width of a difference, followed by its unit; then come deflated planes."""
    block = struct.pack("<BQ", width, unit) + zlib.compress(planes, 9)

    assert decode(block, len(values), values[-1]) == values
    assert decode(block, len(values), values[-1], 8) == [value / 8 for value in values]
    assert encode(values) == block


@given(st.integers(0, 40), st.integers(1, 255), st.sampled_from([1, 2]))
@example(15, 0xF0, 1)
def test_a_damaged_sheet_says_so_or_gives_a_block(place, bits, number):
    whole = pack_sheet({1: SeriesBlock(0, -7, b"abc"), 2: SeriesBlock(1, 5, b"def")})
    sheet = bytearray(whole)
    sheet[place % len(whole)] ^= bits
    for read in (lambda: find_block(bytes(sheet), number), lambda: unpack_sheet(bytes(sheet))):
        try:
            read()
        except ValueError:
            continue


def test_a_block_without_values_is_damaged():
    with pytest.raises(ValueError, match="damaged block"):
        decode(struct.pack("<BQ", 1, 1) + zlib.compress(bytes(10)), 0, 1)
