"""All blocks of one chunk as one blob: a row for each would waste a fifth of the file on half-full pages.

A sheet begins with the number of its series, the low 16 bits of their ids in order, and where the block of
each ends; then come the blocks, each with its mask and its last value before its data.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import NamedTuple

from wslgpud.model import Number
from wslgpud.store.codec import pack_numbers, unpack_numbers
from wslgpud.words import cause, say


class Block(NamedTuple):
    """One series in one chunk; ``mask`` is the number of its mask there, 0 where it has all ticks."""

    mask: int
    last: Number
    data: bytes


def pack(blocks: Mapping[int, Block]) -> bytes:
    """Return the blocks of the series with these numbers (16 bits, in order) as a sheet."""
    bodies = list(map(_body, blocks.values()))
    ends = accumulate(map(len, bodies))
    return struct.pack(f"<H{len(blocks)}H{len(blocks)}I", len(blocks), *blocks, *ends) + b"".join(bodies)


def unpack(sheet: bytes) -> dict[int, Block]:
    """Undo ``pack``.

    Raises:
        ValueError: the sheet is damaged.
    """
    numbers, ends, begin = _directory(sheet)
    return {
        number: _block(sheet[begin + start : begin + end])
        for number, (start, end) in zip(numbers, pairwise((0, *ends)), strict=True)
    }


def find(sheet: bytes, number: int) -> Block | None:
    """Return the block of one series of a sheet, if it is there.

    Raises:
        ValueError: the sheet is damaged.
    """
    numbers, ends, begin = _directory(sheet)
    i = bisect_left(numbers, number)
    if i == len(numbers) or numbers[i] != number:
        return None
    return _block(sheet[begin + (ends[i - 1] if i else 0) : begin + ends[i]])


def _directory(sheet: bytes) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the numbers of the series, where the block of each ends, and where the first begins."""
    try:
        (count,) = struct.unpack_from("<H", sheet)
        words = f"<{count}H{count}I"
        both = struct.unpack_from(words, sheet, 2)
    except struct.error as error:
        raise ValueError(say("damaged sheet: {why}", why=cause(error))) from error
    return both[:count], both[count:], 2 + struct.calcsize(words)


def _body(block: Block) -> bytes:
    if isinstance(block.last, float):
        (bits,) = struct.unpack("<q", struct.pack("<d", block.last))
        return pack_numbers(2 * block.mask + 1, bits) + block.data
    return pack_numbers(2 * block.mask, block.last) + block.data


def _block(body: bytes) -> Block:
    try:
        (head, last), begin = unpack_numbers(body, 2)
        bits = struct.pack("<q", last)  # whole or not, a value has 64
    except (IndexError, struct.error) as error:
        raise ValueError(say("damaged sheet: {why}", why=cause(error))) from error
    mask, double = divmod(head, 2)
    return Block(mask, struct.unpack("<d", bits)[0] if double else last, body[begin:])
