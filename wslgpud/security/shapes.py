"""Schemas for foreign data, mainly the rows of stress runs, checked before use. Pure.

They come from a program that a user may control (the worker's lines) and from files and databases that may have been
tampered with (stored runs). Each is checked once, on input; later code divides, formats and compares without checking
again. Fields not named here are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any], bool]

#: larger than any size in bytes and any time, and exact as a 64-bit integer
_MAX_NUMBER = 1 << 62
#: A time of zero would give an infinite speed; the resolution of a device's clock is coarser.
_MIN_SECONDS = 1e-9
_MAX_TEXT = 4000
#: nesting depth of messages
_DEEPEST = 16
#: the year 9999, the last that calendars know
LATEST_WALL = 253_402_300_800 - 86_400


class MalformedError(ValueError):
    """Data does not have the required shape; the message says which."""


def of(kind: type | tuple[type, ...], holds: Callable[[Any], object] = lambda _: True) -> Shape:
    """Return the shape of values of a type that satisfy ``holds``; booleans are not numbers here."""
    return lambda value: isinstance(value, kind) and isinstance(value, bool) is (kind is bool) and bool(holds(value))


#: a finite number of sane size, a count, and a time usable as a divisor
number = of((int, float), lambda value: -_MAX_NUMBER < value < _MAX_NUMBER)
uint = of(int, lambda value: 0 <= value < _MAX_NUMBER)
seconds = of((int, float), lambda value: _MIN_SECONDS <= value < _MAX_NUMBER)
#: a text of sane length
text = of(str, lambda value: len(value) <= _MAX_TEXT)
flag = of(bool)
#: a 64-bit word as the worker writes it
hexadecimal = of(str, re.compile("[0-9a-f]{1,16}").fullmatch)


def message(value: object, depth: int = _DEEPEST) -> bool:
    """Return whether it is a name, or a message in JSON, with facts that can be rendered."""
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
    return message(value, depth)


def maybe(shape: Shape) -> Shape:
    """Return the shape of an optional value."""
    return lambda value: value is None or shape(value)


def rows(shape: Shape) -> Shape:
    """Return the shape of a list."""
    return lambda value: isinstance(value, list) and all(map(shape, value))


def pair(first: Shape, second: Shape) -> Shape:
    return lambda value: isinstance(value, list) and len(value) == 2 and first(value[0]) and second(value[1])


def table(keys: Shape, values: Shape) -> Shape:
    return lambda value: isinstance(value, dict) and all(keys(k) and values(v) for k, v in value.items())


def record(needed: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """Return the shape of an object with required and optional fields."""
    known = {**(optional or {}), **needed}

    def fits(value: object) -> bool:
        return (
            isinstance(value, dict)
            and all(name in value for name in needed)
            and all(shape(value[name]) for name, shape in known.items() if name in value)
        )

    return fits


#: the number of a bit, or of flipped bits in a word, as a JSON key
_BITS = frozenset(map(str, range(65)))
_RUNG = {"target": uint, "outcome": text}
_RUNG_TAKEN = {"actual": uint, "allocate_seconds": number, "write_seconds": seconds, "why": text}
_PATTERN = {"name": text, "verified": uint, "checks": uint, "bad_words": uint, "seconds": number}
_SPEED = {"index": uint, "bytes": uint, "write": seconds, "change": seconds, "read": seconds}
_PLACE = pair(uint, uint)
_SAMPLE = record(
    {"word": uint, **dict.fromkeys(("expected", "got", "again", "stuck"), hexadecimal)}, {"belongs": maybe(_PLACE)}
)
_BITS_COUNTED = table(_BITS.__contains__, uint)
_BAD = {
    "pattern": text,
    "chunk": uint,
    "words": uint,
    "samples": rows(_SAMPLE),
    "bits": _BITS_COUNTED,
    "flips": _BITS_COUNTED,
}
_LOCATED = {"chunk": uint, "belongs": rows(_PLACE)}

#: the worker's lines by event; other events are ignored
LINES: Mapping[str, Shape] = {
    "begin": record(
        {},
        {
            **dict.fromkeys(("free", "total", "bus_bits", "memory_kilohertz"), maybe(uint)),
            **dict.fromkeys(("torch", "cuda", "name"), maybe(text)),
        },
    ),
    "beat": record({}, {"phase": text, "traversed": uint, "verified": uint}),
    "phase": record({"phase": text, "seconds": number}),
    "rung": record(_RUNG, _RUNG_TAKEN),
    "chunk": record({"index": uint, "free_less": number}),
    "filled": record({"bytes": uint}, {"planned": uint, "refused": text}),
    "speed": record({"sweep": uint, **_SPEED}),
    "pattern": record(_PATTERN),
    "bad": record(_BAD),
    "located": record(_LOCATED),
    "beyond": record({"outcome": text}),
    "released": record({"still_taken": number}),
    "end": record({"outcome": text}, {"why": text, "facts": table(text, number)}),
}
#: the used parts of ``StressResult.detail``
DETAIL = record(
    {},
    {
        "ladder": rows(record(_RUNG, _RUNG_TAKEN)),
        "patterns": rows(record(_PATTERN)),
        "chunks": rows(record({**_SPEED, "class": text})),
        "errors": rows(lambda row: record({**_BAD, "class": text} if "words" in row else _LOCATED)(row)),
        "phases": table(text, number),
        "refused": text,
    },
)


def check_line(line: Mapping[str, Any]) -> None:
    """Check a line of the stress worker. Raises MalformedError."""
    event = line.get("event")
    if not isinstance(event, str):
        raise MalformedError("it names no event")
    if event in LINES and not LINES[event](line):
        raise MalformedError(f"its {event} lacks something, or says something impossible")
