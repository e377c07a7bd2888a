"""Nights are compared: what got worse is found soon, and noise is not reported."""

from __future__ import annotations

import random
import re

import pytest

from tests.stress.support import MIB, night
from wslgpud.model import Level
from wslgpud.stress.comparison import by_key, change_of_driver, differences, judged, level_of, regressions
from wslgpud.stress.comparison import night as last_night
from wslgpud.words import say, translator


def noisy(number, noise, factor=1.0, **changes):
    rates = {k: 800e9 * factor * noise.gauss(1, 0.01) for k in ("write_median", "change_median", "read_median")}
    return night(number, usable_bytes=14000 * MIB * noise.gauss(1, 0.002), **rates | changes)


def test_a_loss_of_five_percent_is_found_within_two_nights():
    found = 0
    for seed in range(100):
        noise = random.Random(seed)
        before = [noisy(n, noise) for n in range(20)]
        first, second = noisy(20, noise, 0.95), noisy(21, noise, 0.95)
        found += any(
            f.kind == "bandwidth" for f in [*regressions(first, before), *regressions(second, [*before, first])]
        )

    assert found >= 95


def test_ten_years_of_noise_raise_under_one_false_alarm_a_year():
    noise = random.Random(1)
    nights = [noisy(n, noise) for n in range(3650)]
    alarms = sum(bool(list(regressions(nights[n], nights[max(0, n - 20) : n]))) for n in range(3650))

    assert alarms < 10


def test_one_bad_night_is_no_regression_and_a_very_bad_one_is():
    nights = [night(n) for n in range(10)]

    assert list(regressions(night(10, write_median=760e9), nights)) == []
    [severe] = regressions(night(10, write_median=600e9), nights)
    assert str(severe.text) == "write bandwidth fell by 25.0 % at once: 600 GB/s, usually 800 GB/s"


def test_a_browser_left_open_is_no_regression_of_the_card():
    nights = [night(n, foreign_bytes=1000 * MIB) for n in range(10)]
    browser = night(10, foreign_bytes=3000 * MIB, usable_bytes=12000 * MIB)

    assert list(regressions(browser, nights)) == []
    [lost] = regressions(night(10, foreign_bytes=3000 * MIB, usable_bytes=10000 * MIB), nights)
    assert str(lost.text) == "usable VRAM fell by 14.3 % at once: 11.72 GiB, usually 13.67 GiB"


def test_nights_with_another_driver_are_another_measure():
    nights = [night(n) for n in range(10)]

    assert list(regressions(night(10, driver="581.15", write_median=400e9), nights)) == []


def test_a_contended_or_broken_off_run_says_nothing_of_the_card():
    nights = [night(n) for n in range(10)]

    assert list(regressions(night(10, write_median=100e9, contended=1), nights)) == []
    assert list(regressions(night(10, verdict="left"), nights)) == []


def test_a_loss_is_measured_against_14_nights_before_the_last():
    nights = [night(n, write_median=1000e9 if n < 17 else 800e9) for n in range(25)]
    [lost] = regressions(night(25, write_median=100e9), nights)

    assert str(lost.text) == "write bandwidth fell by 88.9 % at once: 100 GB/s, usually 900 GB/s"


@pytest.mark.parametrize(("earlier", "found"), [(5, 0), (6, 1)])
def test_five_nights_besides_the_last_make_a_baseline(earlier, found):
    assert len([*regressions(night(9, write_median=600e9), [night(n) for n in range(earlier)])]) == found


@pytest.mark.parametrize(("lost_mib", "found"), [(64, 0), (65, 1)])
def test_64_mib_of_a_small_card_are_no_loss(lost_mib, found):
    nights = [night(n, usable_bytes=2000 * MIB) for n in range(10)]
    twice = [night(n, usable_bytes=(2000 - lost_mib) * MIB) for n in (10, 11)]

    assert len([*regressions(twice[1], [*nights, twice[0]])]) == found


def test_what_a_new_driver_changed_is_told_once_when_it_is_sure():
    old = [night(n) for n in range(8)]
    new = [night(8 + n, driver="581.15", usable_bytes=13790 * MIB, write_median=790.4e9) for n in range(4)]
    told = [change_of_driver(new[n], [*old, *new[:n]]) for n in range(4)]

    assert [finding is None for finding in told] == [True, True, False, True]
    assert str(told[2].text).startswith("driver 576.88 → 581.15: write bandwidth -1.2 %,")
    assert "usable VRAM -210 MiB" in str(told[2].text)


def test_a_new_driver_is_compared_with_the_one_right_before():
    old = [night(n, write_median=700e9 if n < 4 else 800e9) for n in range(9)]
    old[7] = night(7, driver="570.1", write_median=500e9)
    new = [night(n, driver="581.15") for n in (9, 10, 11)]
    told = str(change_of_driver(new[2], [*old, *new[:2]]).text)

    assert told.startswith("driver 576.88 → 581.15: write bandwidth +0.0 %,")


def test_a_driver_that_comes_back_is_not_reported_as_new():
    new = [night(n, driver="581.15") for n in (1, 3, 4)]

    assert change_of_driver(new[2], [night(0), new[0], night(2), new[1]]) is None
    assert change_of_driver(new[2], [night(0), *new[:2]]) is not None


def test_news_of_a_driver_leaves_a_passed_run_passed():
    runs = [night(n) for n in range(8)] + [night(8, driver="b"), night(9, driver="b")]

    assert judged(night(10, driver="b"), runs).verdict == "passed"
    assert judged(night(10, write_median=500e9), runs).verdict == "findings"


def test_drivers_can_be_compared_side_by_side():
    runs = [night(1), night(2), night(3, driver="581.15", write_median=720e9)]
    columns = by_key(runs)
    [write, *_, usable] = differences(columns)

    assert list(columns) == ["gpu0 576.88 torch 2.13.0", "gpu0 581.15 torch 2.13.0"]
    assert write["values"] == [800e9, 720e9]
    assert round(write["change"], 3) == -0.1
    assert (write["unit"], usable["unit"]) == ("bytes_per_second", "bytes")
    assert usable["values"] == [14000 * MIB] * 2


def test_wrong_data_is_critical_and_a_passed_run_ends_the_alarm():
    broken = night(2, verdict="findings", findings=[("errors", "3 wrong words")])

    assert level_of([night(1), broken])[0] is Level.CRITICAL
    assert level_of([night(1), broken, night(3, verdict="skipped")])[0] is Level.CRITICAL
    assert level_of([night(1), broken, night(3)])[0] is Level.OK
    assert level_of([night(1, verdict="findings", findings=[("spill", "768 MiB")])])[0] is Level.WARNING


def test_how_a_night_went_is_one_line_in_each_language():
    leak = say("{leak_bytes} were not freed after the run", leak_bytes=400 * MIB)
    found = night(4, verdict="findings", findings=[("leak", leak)])
    skipped = night(4, verdict="skipped", reason=say("the machine is running on battery"))

    assert re.fullmatch(
        r"GPU 0: findings, 2023-11-1\d \d\d:13:20, 14 GiB usable; 400 MiB were not freed after the run",
        str(last_night(found)),
    )
    chinese = translator("zh").text(last_night(skipped))
    assert "未运行" in chinese
    assert chinese.endswith("本机正在用电池供电")


def test_skipped_nights_are_no_alarm_until_the_fourth():
    nights = [night(0), night(1)] + [night(n, verdict="skipped", reason="it is locked") for n in (2, 3, 4)]
    nights.append(night(5, verdict="skipped", reason="the GPU is busy"))

    assert level_of(nights[:5])[0] is Level.OK
    level, headline = level_of(nights)
    assert level is Level.WARNING
    assert str(headline) == "no run has passed for 4 d (the GPU is busy)"
    never = [night(n, verdict=verdict) for n, verdict in enumerate(["skipped"] * 4 + ["left"])]
    assert level_of(never[:4])[0] is Level.OK
    assert str(level_of(never)[1]) == "no run has passed for 4 d (gave way)"


def test_a_lower_clock_of_the_memory_is_named_as_the_cause():
    before = [night(n, memory_clock_hertz=14e9) for n in range(8)]
    [slow, *_] = regressions(night(8, write_median=600e9, memory_clock_hertz=10.5e9), before)

    assert str(slow.text).endswith("usually 800 GB/s; the memory ran at 10500 MHz, usually at 14000 MHz")
    usual = next(regressions(night(8, write_median=600e9, memory_clock_hertz=14e9), before))
    assert "MHz" not in str(usual.text)
