"""Foreign data is believed up to its limits, and not one step beyond."""

from __future__ import annotations

import pytest

from wslgpud.security import shapes

MESSAGE = {"template": "{one} of {two}", "facts": {"one": 1, "two": ["a", 2.5]}}
#: the last second of the year 9998 in UTC, and a day less for those east of it
LATEST = 253_402_300_800 - 86_400


def nested(depth: int) -> object:
    return {"template": "{inner}", "facts": {"inner": nested(depth - 1)}} if depth else "end"


@pytest.mark.parametrize(
    ("shape", "fits", "does_not"),
    [
        (shapes.number, [0, 1.5, 2**62 - 1, 1 - 2**62], [2**62, -(2**62), float("inf"), float("nan"), True, "1"]),
        (shapes.uint, [0, 2**62 - 1], [-1, 2**62, 1.0, False]),
        (shapes.seconds, [1e-9, 1, 2**62 - 1], [0, 9e-10, -1, 2**62, True]),
        (shapes.text, ["", "y" * 4000], ["y" * 4001, b"", None]),
        (shapes.flag, [True, False], [0, 1, None]),
        (shapes.hexadecimal, ["0", "f" * 16], ["", "f" * 17, "F", "0x1"]),
        (shapes.pair(shapes.uint, shapes.text), [[1, "a"]], [[1], [1, "a", 2], ["a", 1], (1, "a"), None]),
        (shapes.maybe(shapes.uint), [None, 1], [-1]),
        (shapes.rows(shapes.uint), [[], [1, 2]], [[1, -2], (1,), None]),
        (shapes.table(shapes.text, shapes.uint), [{}, {"a": 1}], [{"a": -1}, {1: 1}, []]),
        (shapes.record({"a": shapes.uint}, {"b": shapes.text}), [{"a": 1}, {"a": 1, "b": "", "c": 0}], [{}, {"a": -1}]),
        (shapes.record({}, {"b": shapes.text}), [{}], [{"b": 1}, []]),
        (
            shapes.message,
            ["a name", MESSAGE, nested(16)],
            [nested(17), 7, {"template": "\n"}, {**MESSAGE, "facts": []}],
        ),
        (shapes.message, [{"template": "x", "plural": "y"}], [{"plural": "y"}, {"template": "x", "plural": 1}]),
    ],
)
def test_each_shape_holds_up_to_its_limits(shape, fits, does_not):
    assert [value for value in fits if not shape(value)] == []
    assert [value for value in does_not if shape(value)] == []


@pytest.mark.parametrize(
    ("name", "value", "holds"),
    [
        ("begin_wall", LATEST - 1, True),
        ("begin_wall", LATEST, False),
        ("end_clock", LATEST, False),
        ("end_clock", 0, True),
        ("end_clock", -1, False),
        ("size_bytes", LATEST, True),
        ("size_bytes", -1, True),
    ],
)
def test_a_moment_in_a_message_is_one_that_calendars_know(name, value, holds):
    assert shapes.message({"template": f"{{{name}}}", "facts": {name: value}}) is holds


def test_the_stress_workers_bits_are_those_of_a_word():
    bad = {"pattern": "p", "chunk": 0, "words": 1, "samples": [], "bits": {"0": 1, "64": 2}, "flips": {}}
    assert shapes.LINES["bad"](bad)
    assert not shapes.LINES["bad"]({**bad, "bits": {"65": 1}})


def test_a_row_of_errors_counts_words_or_says_where_they_belong():
    bad = {"pattern": "p", "chunk": 0, "words": 1, "samples": [], "bits": {}, "flips": {}, "class": "c"}
    assert shapes.DETAIL({"errors": [bad, {"chunk": 0, "belongs": [[1, 2]]}]})
    assert not shapes.DETAIL({"errors": [{"chunk": 0, "belongs": [[1]]}]})


def test_a_line_without_an_event_is_refused_but_not_unknown_ones():
    shapes.check_line({"event": "of a later version"})
    shapes.check_line({"event": "pattern", "name": "p", "verified": 1, "checks": 1, "bad_words": 0, "seconds": 1})
    with pytest.raises(shapes.MalformedError, match="it names no event"):
        shapes.check_line({"event": 1})
    with pytest.raises(shapes.MalformedError, match="its pattern lacks something"):
        shapes.check_line({"event": "pattern"})
