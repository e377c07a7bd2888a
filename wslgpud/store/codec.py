"""Compresses one series over a period, with the standard library only.

Integers become differences, divided by their common divisor (memory changes by pages), shifted so that none is
negative, and stored byte plane by byte plane, which gives deflate long runs. Recorded memory exhaustions take 0.45
bytes per sample; lzma would save 8 % of that and take four times as long. Planes that are coded separately save 10 % of
a noisy day, and any inflate reads them as one stream. Each of a day's 86,400 samples passes through C functions and, at
most, one comprehension.

All blocks of one chunk are stored in one blob, a sheet: a row for each would waste a fifth of the file on half-full
pages. It begins with the number of its series, the low 16 bits of their ids in order, and the end of each block; then
come the blocks, each with its mask and its last value before its data.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import gcd
from operator import sub
from typing import Any, NamedTuple, TypeVar

from wslgpud.model import Number
from wslgpud.store.schema import MAX_BATCH_BYTES, MAX_READ_TICKS
from wslgpud.words import cause, say

_A = TypeVar("_A", "array[int]", "array[float]")
_N = TypeVar("_N", int, float)

#: width of a difference in bytes -> its type in ``array``
_TYPECODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
#: in place of a width: numbers as text
_TEXT = 17
#: floats represent every integer up to here
_EXACT = 1 << 53
#: from here to twice that, the low bits of a double are those of an integer
_ABOVE = 1 << 52
#: longest 64-bit integer as text, with its sign and a comma
_DIGITS = 21
_STRATEGIES = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY)


def encode(numbers: Sequence[int]) -> bytes:
    """Return 64-bit integers as a block; empty when all are the same."""
    deltas = list(map(sub, numbers[1:], numbers))
    unit = gcd(*deltas)
    if not unit:
        return b""
    low = min(deltas) // unit
    shifted = [delta // unit - low for delta in deltas] if (unit, low) != (1, 0) else deltas
    highest = max(shifted)
    width = next((w for w in _TYPECODES if highest < 1 << 8 * w), 0)
    if not width:
        return bytes([_TEXT]) + _deflate(b",".join(b"%d" % v for v in numbers), 1)
    body = _planes(_little(array(_TYPECODES[width], shifted)).tobytes(), width)
    return bytes([width]) + pack_numbers(numbers[0], unit, low) + _deflate(body, width)


def decode(block: bytes, count: int, last: int, divisor: int = 1) -> list[Any]:
    """Return the ``count`` values of a block that ends in ``last``, divided by ``divisor``.

    Each is divided as it is decoded, which is faster than a second pass. ValueError: the block is damaged.
    """
    if not 0 <= count <= MAX_READ_TICKS:
        raise ValueError(
            say("damaged block: {count} values, at most {most} are possible", count=count, most=MAX_READ_TICKS)
        )
    wanted = last / divisor if divisor > 1 else last
    if not block:
        return [wanted] * count
    try:
        values = _decode(block, count, divisor)
    except (zlib.error, LookupError, ArithmeticError, ValueError) as error:
        raise ValueError(say("damaged block: {why}", why=cause(error))) from error
    if len(values) != count or values[-1] != wanted:
        raise ValueError(
            say("damaged block: {number} values instead of {count}, or not its own", number=len(values), count=count)
        )
    return values


def _decode(block: bytes, count: int, divisor: int) -> list[Number]:
    kind = block[0]
    if kind == _TEXT:
        return _divided(map(int, inflate(block[1:], _DIGITS * count, raw=True).split(b",")), divisor)
    head, begin = unpack_numbers(block, 3, 1)
    planes, (first, unit, low) = inflate(block[begin:], kind * count, raw=True), head
    if divisor > 1 and abs(first) + count * unit * (abs(low) + (1 << 8 * kind)) <= _EXACT:
        return _floats(kind, head, planes, float(divisor))
    return _divided(_integers(kind, head, planes), divisor)


def _integers(width: int, head: Sequence[int], planes: bytes) -> list[Number]:
    """Return integers: each is the previous one + (``width`` bytes + ``low``) * ``unit``."""
    at, unit, low = head
    if width == 1:
        # the common case by far: looking up a step is faster than computing it
        steps = _steps(low, unit, int)
        return [at, *[at := at + steps[n] for n in planes]]
    differences, least = _little(array(_TYPECODES[width], _lines(planes, width))), low * unit
    return [at, *[at := at + (least + n * unit) for n in differences]]


def _floats(width: int, head: Sequence[int], planes: bytes, divisor: float) -> list[Number]:
    """Return the same, divided, where floats represent all possible values: mixed with integers they are slow."""
    first, unit, low = head
    at = float(first)
    if width == 1:
        steps = _steps(low, unit, float)
        return [at / divisor, *[(at := at + steps[n]) / divisor for n in planes]]
    # numbers below 2**52, plus 2**52: these bits are doubles without conversion
    differences = _little(array("d", _lines(planes, width, struct.pack("<d", _ABOVE))))
    least = float(low - _ABOVE)
    return [at / divisor, *[(at := at + (n + least) * unit) / divisor for n in differences]]


def _divided(values: Iterable[Number], divisor: int) -> list[Number]:
    if divisor > 1:
        return [value / divisor for value in values]
    return values if isinstance(values, list) else list(values)


@lru_cache(256)
def _steps(low: int, unit: int, number: Callable[[int], _N]) -> list[_N]:
    return [number((low + step) * unit) for step in range(256)]


def _planes(data: bytes, width: int) -> bytes:
    return data if width == 1 else b"".join(data[i::width] for i in range(width))


def _lines(planes: bytes, width: int, number: bytes = b"") -> bytes:
    """Return the numbers in planes, each in the low bytes of ``number`` if given."""
    count, size = len(planes) // width, len(number) or width
    data = bytearray((number or bytes(width)) * count)
    for i in range(width):
        data[i::size] = planes[i * count : (i + 1) * count]
    return bytes(data)


def _little(numbers: _A) -> _A:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def pack_numbers(*numbers: int) -> bytes:
    """Return integers in as few bytes as they need, each after its length."""
    sizes = [(n.bit_length() + 8) // 8 for n in numbers]
    return b"".join(
        bytes([size]) + n.to_bytes(size, "little", signed=True) for n, size in zip(numbers, sizes, strict=True)
    )


def unpack_numbers(data: bytes, count: int, at: int = 0) -> tuple[list[int], int]:
    """Undo ``pack_numbers`` from offset ``at``; also return the offset of the next data."""
    numbers = []
    for _ in range(count):
        begin = at + 1
        at = begin + data[at]
        numbers.append(int.from_bytes(data[begin:at], "little", signed=True))
    return numbers, at


def _deflate(planes: bytes, width: int) -> bytes:
    """Return one deflate stream of planes, each coded to suit it: noise has no repetitions to find."""
    size = len(planes) // width
    parts = []
    for end in range(size, len(planes) + 1, size):
        flush = zlib.Z_FINISH if end == len(planes) else zlib.Z_SYNC_FLUSH
        alone = (_stream(planes[end - size : end], strategy, flush) for strategy in _STRATEGIES)
        parts.append(min(alone, key=len))
    return min(b"".join(parts), _stream(planes, zlib.Z_DEFAULT_STRATEGY, zlib.Z_FINISH), key=len)


def _stream(data: bytes, strategy: int, flush: int) -> bytes:
    engine = zlib.compressobj(9, zlib.DEFLATED, -15, 9, strategy)
    return engine.compress(data) + engine.flush(flush)


def inflate(data: bytes, most: int, *, raw: bool = False) -> bytes:
    """Inflate ``data``; ``raw`` is without zlib's header. zlib.error: it is damaged.

    ValueError: it is more than ``most`` bytes; no more were ever in memory.
    """
    engine = zlib.decompressobj(-15 if raw else 15)
    found = engine.decompress(data, most + 1)
    if len(found) > most:
        raise ValueError(say("it inflates to more than {most_bytes}", most_bytes=most))
    if not engine.eof:
        raise zlib.error(say("truncated"))
    return found


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
    bodies = list(map(_body, blocks.values()))
    ends = accumulate(map(len, bodies))
    return struct.pack(f"<H{len(blocks)}H{len(blocks)}I", len(blocks), *blocks, *ends) + b"".join(bodies)


def unpack_sheet(sheet: bytes) -> dict[int, SeriesBlock]:
    """Undo ``pack_sheet``, or raise ValueError: the sheet is damaged."""
    numbers, ends, begin = _directory(sheet)
    return {
        number: _block(sheet[begin + start : begin + end])
        for number, (start, end) in zip(numbers, pairwise((0, *ends)), strict=True)
    }


def find_block(sheet: bytes, number: int) -> SeriesBlock | None:
    """Return the block of one series of a sheet, if present, or raise ValueError: the sheet is damaged."""
    numbers, ends, begin = _directory(sheet)
    i = bisect_left(numbers, number)
    if i == len(numbers) or numbers[i] != number:
        return None
    return _block(sheet[begin + (ends[i - 1] if i else 0) : begin + ends[i]])


def _directory(sheet: bytes) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the numbers of the series, the end of each block, and the start of the first."""
    try:
        (count,) = struct.unpack_from("<H", sheet)
        words = f"<{count}H{count}I"
        both = struct.unpack_from(words, sheet, 2)
    except struct.error as error:
        raise ValueError(say("damaged sheet: {why}", why=cause(error))) from error
    return both[:count], both[count:], 2 + struct.calcsize(words)


def _body(block: SeriesBlock) -> bytes:
    # Twice the mask: odd values mean another kind of data.
    return pack_numbers(2 * block.mask, block.last) + block.data


def _block(body: bytes) -> SeriesBlock:
    try:
        (head, last), begin = unpack_numbers(body, 2)
        struct.pack("<q", last)  # a value has 64 bits
    except (IndexError, struct.error) as error:
        raise ValueError(say("damaged sheet: {why}", why=cause(error))) from error
    return SeriesBlock(head // 2, last, body[begin:])
