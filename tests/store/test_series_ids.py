"""Series have the numbers that the open database knows, else unused ones, and are forgotten when nobody reads them."""

from __future__ import annotations

import pytest

from wslgpud.metrics import OTHER, MetricSpec, NameLimit
from wslgpud.store import recovery
from wslgpud.store.series_ids import KnownSeries, Series, SeriesInUse

LEVEL = MetricSpec("made_level", "gauge", "", "A level.", ("kind",), decimals=2)
JOBS = MetricSpec("made_jobs", "gauge", "", "Jobs.", ("place", "job"), names=(NameLimit("job", "job", 9, summed=True),))
GROUPS = MetricSpec("made_groups", "gauge", "", "Groups.", ("group",), names=(NameLimit("group", "group", 9),))


def number(some: SeriesInUse, *series: Series, newest: int = 0, room: int = 0, **rows: int):
    """Number series; ``rows`` gives the numbers that the database knows by the value of their last label."""
    known = {one.key.identity: rows[one.labels[-1]] for one in series if one.labels[-1] in rows}
    found = KnownSeries(known, newest, {"made_jobs": room, "made_groups": room})
    return some.number([one.key for one in series], found)


def test_a_series_is_forgotten_an_hour_or_two_after_last_read():
    some = SeriesInUse()
    series = some.learn(LEVEL, ("a",))
    some.turn(3600.0)
    assert some.known, "not before it has its number"
    number(some, series, a=7)
    some.turn(3600.0)
    assert some.known, "not before its row is written"
    some.unsaved.clear()
    some.turn(3599.0)
    assert (some.known, some.numbers()) == ({("made_level", ("a",)): series}, {"1": 7})
    some.turn(3600.0)
    assert (some.known, some.numbers()) == ({}, {"1": 7})
    assert some.learn(LEVEL, ("a",)) is series
    some.turn(7200.0)
    some.turn(10_799.0)
    assert some.numbers() == {"1": 7}
    some.turn(10_800.0)
    assert some.numbers() == {}
    assert some.learn(LEVEL, ("a",)).name == "2"


def test_new_series_get_the_next_numbers_and_are_saved():
    some = SeriesInUse()
    first, second, third = (some.learn(LEVEL, (kind,)) for kind in "abc")
    assert (first.key.labels, first.key.divisor) == ('{"kind":"a"}', 100)
    assert number(some, first, second, third, newest=5, b=3) == 0

    assert [one.number for one in (first, second, third)] == [6, 3, 7]
    assert some.unsaved == [(3, second.key), (6, first.key), (7, third.key)]
    assert some.unnumbered() == []


def test_a_series_keeps_its_number_unless_another_has_taken_it():
    some = SeriesInUse()
    first, second = (some.learn(LEVEL, (kind,)) for kind in "ab")
    number(some, first, second)
    some.adopt(0)
    assert (some.unsaved, len(some.unnumbered())) == ([], 2)
    number(some, first, second, newest=1, a=1)
    assert [one.number for one in (first, second)] == [1, 2]
    some.adopt(0)
    number(some, first, second, newest=2, a=1)
    assert [one.number for one in (first, second)] == [1, 3]
    some.adopt(1)
    number(some, first, second, newest=1 << 32)
    assert [one.number for one in (first, second)] == [(1 << 32) + 1, (1 << 32) + 2]


@pytest.mark.parametrize(("room", "rejected"), [(0, 2), (1, 1), (2, 0)])
def test_names_beyond_a_metrics_limit_are_summed_or_left_out(room, rejected):
    some = SeriesInUse()
    jobs = [some.learn(JOBS, ("here", job)) for job in "ab"]
    groups = [some.learn(GROUPS, (group,)) for group in "ab"]
    assert number(some, *jobs, *groups, room=room) == 2 * rejected
    other = some.known.get(("made_jobs", ("here", OTHER)))

    assert [some.known["made_jobs", one.labels] is one for one in jobs] == [n < room for n in range(2)]
    assert [one.name != "" for one in groups] == [n < room for n in range(2)]
    assert all(some.known["made_jobs", one.labels] is other for one in jobs[room:])
    assert some.unnumbered() == ([other] if rejected else [])


@pytest.mark.parametrize(
    ("said", "damage"),
    [
        ("database disk image is malformed", True),
        ("file is not a database", True),
        ("h.db: is damaged (page 7)", True),
        ("database or disk is full", False),
    ],
)
def test_a_file_is_set_aside_for_damage_and_nothing_else(said, damage):
    assert recovery.is_damage(said) is damage
