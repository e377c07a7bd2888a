"""The shape that what others say must have, a stress run's rows above all, before it is used. Pure.

They come from a program that a user may have made (the worker's lines) and from files and databases that
somebody may have spoiled (stored runs). Each is checked once, where it comes in; whoever handles it later
divides, formats and compares without checking again. Fields that are not named here are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any], bool]

#: beyond any size in bytes and any time, and exact as an integer of 64 bits
_MOST = 1 << 62
#: A time of zero would make an infinite speed; the shortest that a device's clock tells is longer.
_SHORTEST_SECONDS = 1e-9
_LONGEST_TEXT = 4000
#: of messages within messages
_DEEPEST = 16
#: the year 9999, the last that calendars know
LATEST_WALL = 253_402_300_800 - 86_400


class ShapeError(ValueError):
    """Something has not the shape it must have; the message says what."""


def number(value: object) -> bool:
    """Tell whether it is a finite figure of a sane size."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST < value < _MOST


def whole(value: object) -> bool:
    """Tell whether it is a count."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def seconds(value: object) -> bool:
    """Tell whether it is a time by which something can be divided."""
    return isinstance(value, int | float) and number(value) and value >= _SHORTEST_SECONDS


def text(value: object) -> bool:
    """Tell whether it is a text of sane length."""
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT


def said(value: object, depth: int = _DEEPEST) -> bool:
    """Tell whether it is a name, or a message as JSON holds it, with facts that can be worded."""
    if not isinstance(value, dict):
        return text(value)
    words, facts = (value.get("template"), value.get("plural", "")), value.get("facts", {})
    return (
        depth > 0
        and all(text(one) and str(one).isprintable() for one in words)
        and isinstance(facts, dict)
        and all(text(name) and _fact(name, fact, depth - 1) for name, fact in facts.items())
    )


def _fact(name: str, value: object, depth: int) -> bool:
    if isinstance(value, list):
        return depth > 0 and all(_fact(name, one, depth - 1) for one in value)
    if isinstance(value, int | float):
        return number(value) and (0 <= value < LATEST_WALL or not name.endswith(("_wall", "_clock")))
    return said(value, depth)


def flag(value: object) -> bool:
    """Tell whether it is true or false."""
    return isinstance(value, bool)


def hexadecimal(value: object) -> bool:
    """Tell whether it is a word of 64 bits as the worker writes it."""
    return isinstance(value, str) and 0 < len(value) <= 16 and set(value) <= set("0123456789abcdef")


def maybe(shape: Shape) -> Shape:
    """Return the shape of what may also be nothing."""
    return lambda value: value is None or shape(value)


def rows(shape: Shape) -> Shape:
    """Return the shape of a list of such things."""
    return lambda value: isinstance(value, list) and all(map(shape, value))


def pair(first: Shape, second: Shape) -> Shape:
    """Return the shape of a list of two."""
    return lambda value: isinstance(value, list) and len(value) == 2 and first(value[0]) and second(value[1])


def table(keys: Shape, values: Shape) -> Shape:
    """Return the shape of a mapping."""
    return lambda found: isinstance(found, dict) and all(keys(k) and values(v) for k, v in found.items())


def record(needed: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """Return the shape of an object with these fields, and perhaps those."""
    known = {**(optional or {}), **needed}

    def fits(value: object) -> bool:
        return (
            isinstance(value, dict)
            and all(name in value for name in needed)
            and all(shape(value[name]) for name, shape in known.items() if name in value)
        )

    return fits


def _few_bits(value: object) -> bool:
    """Tell whether it is the number of a bit, or how many of a word, as a key of JSON."""
    return isinstance(value, str) and value in _BITS


_BITS = {str(n) for n in range(65)}
_ANYTHING = record({})
_RUNG = {"target": whole, "outcome": text}
_RUNG_TAKEN = {
    "actual": whole, "allocate_seconds": number, "write_seconds": seconds, "slowest_slice_seconds": number,
    "why": text,
}  # fmt: skip
_PATTERN = {"name": text, "verified": whole, "checks": whole, "bad_words": whole, "seconds": number}
_SPEED = {"index": whole, "bytes": whole, "write": seconds, "change": seconds, "read": seconds}
_PLACE = pair(whole, whole)
_SAMPLE = record(
    {"word": whole, **dict.fromkeys(("expected", "got", "again", "stuck"), hexadecimal)},
    {"belongs": maybe(_PLACE)},
)
_BITS_COUNTED = table(_few_bits, whole)
_BAD = {
    "pattern": text, "chunk": whole, "words": whole, "samples": rows(_SAMPLE), "bits": _BITS_COUNTED,
    "flips": _BITS_COUNTED,
}  # fmt: skip
_LOCATED = {"chunk": whole, "belongs": rows(_PLACE)}

#: the worker's lines by their event; others say nothing to us
LINES: Mapping[str, Shape] = {
    "begin": record(
        {},
        {
            **dict.fromkeys(("free", "total", "bus_bits", "memory_kilohertz"), maybe(whole)),
            **dict.fromkeys(("torch", "cuda", "name", "form"), maybe(text)),
        },
    ),
    "beat": record({}, {"phase": text, "traversed": whole, "verified": whole}),
    "phase": record({"phase": text, "seconds": number}),
    "rung": record(_RUNG, _RUNG_TAKEN),
    "fragmentation": _ANYTHING,
    "chunk": record({"index": whole, "free_less": number}),
    "filled": record({"bytes": whole}, {"planned": whole}),
    "speed": record({"sweep": whole, **_SPEED}),
    "pattern": record(_PATTERN),
    "bad": record(_BAD),
    "located": record(_LOCATED),
    "allocator": _ANYTHING,
    "beyond": record({"outcome": text}),
    "released": record({"still_taken": number}),
    "end": record({"outcome": text}, {"why": text, "facts": table(text, number)}),
}
#: ``StressResult.detail``, as far as anybody looks into it
DETAIL = record(
    {},
    {
        "ladder": rows(record(_RUNG, _RUNG_TAKEN)),
        "patterns": rows(record(_PATTERN)),
        "chunks": rows(record({**_SPEED, "class": text})),
        "errors": rows(lambda row: record({**_BAD, "class": text} if "words" in row else _LOCATED)(row)),
        "phases": table(text, number),
        "form": text,
    },
)


def check_line(line: Mapping[str, Any]) -> None:
    """Look at a line of the stress worker.

    Raises:
        ShapeError: it is none.
    """
    event = line.get("event")
    if not isinstance(event, str):
        raise ShapeError("it names no event")
    if event in LINES and not LINES[event](line):
        raise ShapeError(f"its {event} lacks something, or says something impossible")
