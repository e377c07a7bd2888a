"""Compresses one series over a period, with the standard library only.

Integers become differences from the last one back, divided by their common divisor (memory changes by pages), then
unsigned (zigzag: 0, -1, 1, -2, ...), and are deflated byte plane by byte plane, which gives long runs. The divisor
saves 9 % and halves the time of a read.

All blocks of one chunk are stored in one blob, a sheet: a row for each would waste a fifth of the file on half-full
pages. It begins with the number of its series and an entry for each, in order of their ids; then come the blocks.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import gcd
from operator import sub
from typing import Any, NamedTuple

from wslgpud.store.schema import MAX_BATCH_BYTES, MAX_READ_TICKS
from wslgpud.words import cause, say

#: width of a difference in bytes -> its format in ``struct``
_FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}
_INT64 = 1 << 63
#: the low 16 bits of a series' id, its mask, its last value, and where its block ends
_ENTRY = struct.Struct("<HHqI")
_COUNT = struct.Struct("<H")
#: the width of a difference in bytes, 0 where one needs more than 64 bits and values stand for themselves; its unit
_HEAD = struct.Struct("<BQ")


def encode(numbers: Sequence[int]) -> bytes:
    """Return 64-bit integers as a block: ``_HEAD``, and deflated planes; empty when all are the same."""
    steps = [*map(sub, numbers, numbers[1:])][::-1]
    if not any(steps):
        return b""
    if not -_INT64 <= min(steps) <= max(steps) < _INT64:
        return _HEAD.pack(0, 0) + zlib.compress(struct.pack(f"<{len(steps)}q", *numbers[-2::-1]), 9)
    unit = gcd(*steps)
    zigzag = [2 * step if step >= 0 else -2 * step - 1 for step in (step // unit for step in steps)]
    width = next(width for width in _FORMATS if max(zigzag) < 1 << 8 * width)
    data = struct.pack(f"<{len(zigzag)}{_FORMATS[width]}", *zigzag)
    return _HEAD.pack(width, unit) + zlib.compress(b"".join(data[i::width] for i in range(width)), 9)


def decode(block: bytes, count: int, last: int, divisor: int = 1) -> list[Any]:
    """Return the ``count`` values of a block that ends in ``last``, divided by ``divisor``.

    ValueError: the block is damaged.
    """
    if not 0 <= count <= MAX_READ_TICKS:
        raise ValueError(
            say("damaged block: {count} values, at most {most} are possible", count=count, most=MAX_READ_TICKS)
        )
    if not block:
        return [last / divisor if divisor > 1 else last] * count
    try:
        width, unit = _HEAD.unpack_from(block)
        values = [last, *_backwards(inflate(block[_HEAD.size :], (width or 8) * max(count - 1, 0)), width, unit, last)]
    except (zlib.error, LookupError, ValueError, struct.error) as error:
        raise ValueError(say("damaged block: {why}", why=cause(error))) from error
    if len(values) != count:
        raise ValueError(say("damaged block: {number} values instead of {count}", number=len(values), count=count))
    values.reverse()
    return [value / divisor for value in values] if divisor > 1 else values


def _backwards(planes: bytes, width: int, unit: int, last: int) -> Sequence[int]:
    """Return the values before the ``last`` one, backwards, from the byte planes of differences."""
    at, count = last, len(planes) // (width or 8)
    if not width:
        return struct.unpack(f"<{count}q", planes)
    if width == 1:  # the common case by far: looking a step up is faster than computing it
        steps = _small_steps(unit)
        return [at := at + steps[n] for n in planes]
    lines = bytearray(len(planes))
    for i in range(width):
        lines[i::width] = planes[i * count : (i + 1) * count]
    numbers = struct.unpack(f"<{count}{_FORMATS[width]}", lines)
    return [at := at + unit * ((n >> 1) ^ -(n & 1)) for n in numbers]


@lru_cache(256)
def _small_steps(unit: int) -> list[int]:
    return [unit * ((n >> 1) ^ -(n & 1)) for n in range(256)]


def inflate(data: bytes, max_bytes: int) -> bytes:
    """Inflate ``data``; zlib.error: it is damaged.

    ValueError: it is more than ``max_bytes``; no more were ever in memory.
    """
    engine = zlib.decompressobj()
    inflated = engine.decompress(data, max_bytes + 1)
    if len(inflated) > max_bytes:
        raise ValueError(say("it inflates to more than {most_bytes}", most_bytes=max_bytes))
    if not engine.eof:
        raise zlib.error(say("truncated"))
    return inflated


def pack_text(text: str) -> bytes:
    return zlib.compress(text.encode(), 9)


def unpack_text(data: bytes | str) -> str:
    """Undo ``pack_text``, ignoring trailing data; a server stores plain text. Raises ValueError, or zlib.error."""
    return data if isinstance(data, str) else inflate(data, MAX_BATCH_BYTES).decode()


class SeriesBlock(NamedTuple):
    """One series in one chunk; ``mask`` is the number of its mask there, 0 if it has all ticks."""

    mask: int
    last: int
    data: bytes


def pack_sheet(blocks: Mapping[int, SeriesBlock]) -> bytes:
    """Return the blocks of the series with these numbers (16 bits, in order) as a sheet."""
    ends = accumulate(len(block.data) for block in blocks.values())
    entries = (
        _ENTRY.pack(n, block.mask, block.last, end) for (n, block), end in zip(blocks.items(), ends, strict=True)
    )
    return b"".join((_COUNT.pack(len(blocks)), *entries, *(block.data for block in blocks.values())))


def unpack_sheet(sheet: bytes) -> dict[int, SeriesBlock]:
    """Undo ``pack_sheet``, or raise ValueError: the sheet is damaged."""
    return dict(_block(sheet, i) for i in range(_count(sheet)))


def find_block(sheet: bytes, number: int) -> SeriesBlock | None:
    """Return the block of one series of a sheet, if present, or raise ValueError: the sheet is damaged."""
    count = _count(sheet)
    i = bisect_left(range(count), number, key=lambda i: int(_entry(sheet, i)[0]))
    series_number, block = _block(sheet, i) if i < count else (None, None)
    return block if series_number == number else None


def _count(sheet: bytes) -> int:
    """Return the number of entries, all of which are there."""
    count = int.from_bytes(sheet[: _COUNT.size], "little")
    if len(sheet) < _COUNT.size + count * _ENTRY.size:
        raise ValueError(say("damaged sheet: {why}", why=say("truncated")))
    return count


def _entry(sheet: bytes, i: int) -> tuple[Any, ...]:
    return _ENTRY.unpack_from(sheet, _COUNT.size + i * _ENTRY.size)


def _block(sheet: bytes, i: int) -> tuple[int, SeriesBlock]:
    number, mask, last, end = _entry(sheet, i)
    start, begin = _entry(sheet, i - 1)[3] if i else 0, _COUNT.size + _count(sheet) * _ENTRY.size
    return number, SeriesBlock(mask, last, sheet[begin + start : begin + end])
