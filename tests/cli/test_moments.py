"""A moment or a length of time is written the same way in every command."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.words.moments import MomentError, moment, seconds, span

NOW = datetime(2026, 11, 20, 15, 30).timestamp()
LENGTHS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def local(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", NOW),
        ("90s", NOW - 90),
        ("5min", NOW - 300),
        ("2h", NOW - 7200),
        ("1h30m", NOW - 5400),
        ("1.5 h", NOW - 5400),
        ("7d", NOW - 7 * 86400),
        ("2h ago", NOW - 7200),
        ("14:00", local("2026-11-20 14:00")),
        ("15:30", NOW),
        ("15:30:01", local("2026-11-19 15:30:01")),
        ("18:00", local("2026-11-19 18:00")),
        ("2w", NOW - 14 * 86400),
        ("today", local("2026-11-20")),
        ("today 9:05", local("2026-11-20 09:05")),
        ("yesterday", local("2026-11-19")),
        ("Yesterday 22:15", local("2026-11-19 22:15")),
        ("2026-11-20", local("2026-11-20")),
        ("2026-11-20 14:00", local("2026-11-20 14:00")),
        ("2026-11-20T14:00:05", local("2026-11-20 14:00:05")),
        ("2026-11-20T14:00:05Z", local("2026-11-20 14:00:05+00:00")),
        ("2026-11-20 14:00+08:00", local("2026-11-20 14:00+08:00")),
        ("9999999d", 0.0),  # 27,000 years: no calendar goes back so far
        ("1066-10-14", 0.0),
    ],
)
def test_a_moment_may_be_written_in_the_ways_that_people_use(text, meant):
    assert moment(text, NOW) == pytest.approx(meant, rel=0, abs=1e-3)


@pytest.mark.parametrize(("text", "meant"), [("90s", 90), ("5min", 300), ("1h30m", 5400), ("7d", 604800)])
def test_a_length_of_time_is_written_as_in_a_moment(text, meant):
    assert seconds(text) == meant


@pytest.mark.parametrize("text", ["", "soon", "12", "-5min", "25:00", "2026-13-01", "5 x", "1e9d", "9" * 400 + "d"])
def test_what_is_no_moment_is_answered_with_the_forms_there_are(text):
    with pytest.raises(MomentError) as found:
        moment(text, NOW)

    told = str(found.value)
    assert len(told.splitlines()) == 1
    assert all(form in told for form in ("90s", "2h", "7d", "14:00", "yesterday", "now", "2026-11-20 14:00"))


@pytest.mark.parametrize("text", ["", "0", "0s", "30", "2026-11-20", "soon"])
def test_an_invalid_duration_is_answered_with_the_valid_forms(text):
    with pytest.raises(MomentError) as found:
        seconds(text)

    told = str(found.value)
    assert all(form in told for form in ("90s", "5min", "2h", "1h30m", "7d"))


def test_zero_is_a_duration_only_where_it_means_something():
    assert seconds("0", zero=True) == seconds("0s", zero=True) == 0


def test_the_beginning_comes_before_the_end():
    assert span("2h", "1h", NOW) == (NOW - 7200, NOW - 3600)
    with pytest.raises(MomentError) as found:
        span("1h", "2h", NOW)
    assert "--since 1h is not before --until 2h" in str(found.value)
    with pytest.raises(MomentError):
        span("1h", "1h", NOW)


@given(st.integers(1, 10**6), st.sampled_from(sorted(LENGTHS)))
def test_so_long_ago_is_that_much_before_now(count, unit):
    ago = seconds(f"{count}{unit}")

    assert ago == count * LENGTHS[unit]
    assert moment(f"{count}{unit}", NOW) == max(0.0, NOW - ago)


@given(st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)))
def test_a_date_with_a_time_means_that_second(when):
    when = when.replace(microsecond=0)

    assert moment(str(when), NOW) == moment(when.isoformat(), NOW) == when.timestamp()


@given(st.times())
def test_a_time_of_day_is_the_last_one_that_has_been(time):
    found = moment(f"{time:%H:%M}", NOW)

    assert f"{datetime.fromtimestamp(found).astimezone():%H:%M}" == f"{time:%H:%M}"
    assert NOW - timedelta(hours=25).total_seconds() <= found <= NOW


@given(st.text())
def test_any_text_is_a_moment_or_a_fault(text):
    with suppress(MomentError):
        assert isinstance(moment(text, NOW), float)
