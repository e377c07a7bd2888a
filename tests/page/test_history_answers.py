"""How much of the history one answer holds, and how its figures are written."""

from __future__ import annotations

import urllib.parse

import pytest

from tests.page.test_api import RAM, ask, remember
from wslgpud.serve.api_history import check_size, columns, grown, short, tier_of
from wslgpud.serve.router import Problem
from wslgpud.store import Bucket, ProcessPoint

GIB = 1 << 30


@pytest.mark.parametrize(
    ("step", "tier"),
    [(0, "samples"), (59, "samples"), (60, "minutes"), (90, "samples"), (1800, "minutes"), (3600, "hours")],
)
def test_a_step_uses_the_coarsest_summaries_that_fit(step, tier):
    assert tier_of(step) == tier


@pytest.mark.parametrize(
    ("fitting", "too_much"),
    [
        ((300, 0, 1), (301, 0, 1)),
        ((4000, 1, 10), (4001, 1, 10)),
        ((3636, 1, 11), (3637, 1, 11)),
        ((240_000, 61, 1), (240_001, 61, 1)),
        ((14_400_000, 3660, 1), (14_400_001, 3660, 1)),
    ],
    ids=["every sample", "points", "points of all", "samples in them", "minutes in them"],
)
def test_an_answer_has_the_most_points_that_fit_and_not_one_more(fitting, too_much):
    check_size(*fitting)
    with pytest.raises(Problem, match="too many values"):
        check_size(*too_much)


def test_an_answer_that_would_be_too_long_names_a_step_that_fits():
    with pytest.raises(Problem) as refused:
        check_size(3637, 1, 11)

    assert refused.value.detail == "too many values; leave step out, or ask for 2 s or a shorter time"


@pytest.mark.parametrize(
    ("mean", "written"),
    [
        (3, "3.0"),
        (1e15, "1000000000000000"),
        (1 / 3, "0.3333333"),
        (123.456789, "123.4568"),
        (999_999.25, "999999.2"),
        (1_000_000.75, "1000001"),
        (-1_000_000.75, "-1000001"),
        (1.23456789e-7, "1.234568e-07"),
    ],
)
def test_a_mean_has_at_most_seven_digits(mean, written):
    assert repr(short(mean)) == written


def test_a_step_has_mean_extremes_and_a_counters_last_value():
    steps = [Bucket(wall=1.23456, n=3, low=1, high=5, total=10, last=4)]

    assert columns(steps, counter=False) == {"time": [1.235], "value": [3.333333], "min": [1], "max": [5]}
    assert columns(steps, counter=True) == {"time": [1.235], "value": [4]}


def test_a_process_has_its_peak_growth_and_swap():
    points = [
        ProcessPoint(10.0004, 7, 1, "small", GIB, 0),
        ProcessPoint(10.0, 8, 1, "large", 2 * GIB, 0),
        ProcessPoint(20.0, 8, 1, "large", 4 * GIB, 2 * GIB),
        ProcessPoint(30.0006, 8, 1, "large", 3 * GIB, GIB),
    ]
    small = {"pid": 7, "name": "small", "rss_bytes": GIB, "swap_bytes": 0, "first_seen": 10.0, "last_seen": 10.0}
    large = {"pid": 8, "name": "large", "rss_bytes": 3 * GIB, "swap_bytes": GIB, "first_seen": 10.0}

    assert grown(points) == [
        large | {"last_seen": 30.001, "peak_bytes": 6 * GIB, "grown_bytes": 2 * GIB},
        small | {"peak_bytes": GIB, "grown_bytes": 0},
    ]


def test_without_a_time_the_answer_is_the_last_hour(stage):
    now = remember(stage, (5, 1))
    _, _, found = ask(stage, "range", series=RAM)
    _, _, finer = ask(stage, "range", series=RAM, points=4000)

    assert (found["end"], found["start"]) == (now, now - 3600)
    assert (found["step"], finer["step"]) == (10, 1)


#: path, parameters and status of questions at the limits, and just beyond
LIMITS = [
    ("processes", {"start": 0, "end": 604_800}, 200),
    ("processes", {"start": 0, "end": 604_801}, 400),
    ("range", {"series": RAM, "start": 0, "end": 86400, "points": 10}, 200),
    ("range", {"series": RAM, "start": 0, "end": 86400, "points": 9}, 400),
    ("range", {"series": RAM, "start": 0, "end": 86400, "points": 4001}, 400),
    ("range", {"series": RAM, "start": 0, "end": 86400, "step": 2_592_000}, 200),
    ("range", {"series": RAM, "start": 0, "end": 86400, "step": 2_592_001}, 400),
    ("range", {"series": [f"no_{n}" for n in range(20)]}, 404),
    ("range", {"series": [f"no_{n}" for n in range(21)]}, 400),
    ("series", {"limit": 0}, 400),
    ("series", {"limit": 2000}, 200),
    ("series", {"limit": 2001}, 400),
    ("stress", {"limit": 500, "before": 0}, 200),
    ("stress", {"limit": 0}, 400),
    ("incidents", {"limit": 501}, 400),
    (f"incidents/{'1' * 18}", {}, 404),
    (f"incidents/{'1' * 20}", {}, 400),
    ("incidents/٣", {}, 400),
    ("stress/1", {}, 404),
]


def test_a_question_is_answered_up_to_its_limits(stage):
    remember(stage, (5, 1))
    answers = [(path, query, ask(stage, urllib.parse.quote(path), **query)[0]) for path, query, _ in LIMITS]

    assert answers == LIMITS
