"""The nights: when runs begin, what becomes of them."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

import pytest

from tests.stress.support import gpu, night
from tests.support.elsewhere import Elsewhere
from wslgpud.config import ConfigError, Stress
from wslgpud.model import Event, Level, Reading, Sample, Snapshot, SourceReport
from wslgpud.sources import gpu as source
from wslgpud.store.records import DaemonRun
from wslgpud.stress import conditions, schedule
from wslgpud.stress.schedule import Nightly


class Shelf:
    """Keeps runs as the store does."""

    def __init__(self, runs=(), previous_run=None):
        self.kept, self.reader, self.previous_run = list(runs), self, previous_run

    def record_stress(self, result):
        self.kept.append(result)
        return len(self.kept)

    def stress_runs(self, *, brief):
        return [(n, replace(run, detail={}) if brief else run) for n, run in enumerate(self.kept, 1)]

    def stress_run(self, number):
        return self.kept[number - 1]


def tick(*gpus):
    report = SourceReport("gpu", "ok", Sample(gpus=gpus or None), time.monotonic(), 0.0)
    return Snapshot(time.time(), time.monotonic(), 1, (report,))


class Waits(threading.Event):
    """Ends each wait at once, and counts the seconds."""

    seconds = 0.0

    def wait(self, timeout=None):
        self.seconds += timeout or 0.0
        return self.is_set()


@pytest.fixture
def nightly(tmp_path, monkeypatch):
    monkeypatch.setattr(conditions, "LOCK_PLACES", (str(tmp_path),))  # other tests hold locks of this machine
    opened = []

    def make(runs=(), previous_run=None, **settings):
        host = Elsewhere(tmp_path / "elsewhere")
        opened.append(Nightly(Stress(**settings), host, tmp_path, Shelf(runs, previous_run)))
        opened[-1]._runner.stop = Waits()
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def begins(nightly, *walls):
    """Return at which of these moments, each with a tick, a night's tests have begun."""
    begun = []
    nightly._night = lambda: begun.append(wall)
    for wall in walls:
        nightly.observe(replace(tick(gpu()), wall=wall))
        if nightly._testing is not None:
            nightly._testing.join()
    return begun


def at(text, day=1):
    """Return a local time of day in June 2026, which begins on a Monday."""
    return datetime.fromisoformat(f"2026-06-{day:02} {text}").timestamp()


def test_a_night_begins_at_its_time_and_once(nightly):
    one = nightly(schedule="30 3 * * *", jitter_minutes=0.0)

    assert begins(one, at("02:00"), at("03:29"), at("03:31"), at("03:32"), at("12:00")) == [at("03:31")]
    assert begins(one, at("03:00", 2), at("03:30", 2)) == [at("03:30", 2)]


def test_a_night_begins_some_minutes_late_by_chance(nightly, monkeypatch):
    monkeypatch.setattr("random.uniform", max)  # as late as can be

    assert begins(nightly(jitter_minutes=20.0), at("03:29"), at("03:49"), at("03:50")) == [at("03:50")]


@pytest.mark.parametrize(("cards", "settings"), [((), {}), ((gpu(),), {"schedule": "off"})])
def test_nothing_begins_without_a_card_or_when_it_is_off(nightly, cards, settings):
    one = nightly([replace(night(0), wall=1.0)], **settings)
    for wall in (at("02:00"), at("12:00")):
        one.observe(replace(tick(*cards), wall=wall))

    assert one._testing is None


@pytest.mark.parametrize(
    "schedule", ["nightly", "61 3 * * *", "0 3 * *", "0 3 * * 5-3", "", "0 3 * foo *", "*/0 3 * * *"]
)
def test_a_schedule_that_is_none_is_refused_with_the_remedy(nightly, schedule):
    with pytest.raises(ConfigError, match=r'stress\.schedule: .* is neither "off" nor minute hour'):
        nightly(schedule=schedule)


@pytest.mark.parametrize(
    ("field", "days"),
    [
        ("*", "Mon Tue Wed Thu Fri Sat Sun"),
        ("0", "Sun"),
        ("7", "Sun"),
        ("1-5", "Mon Tue Wed Thu Fri"),
        ("0-2,sat", "Mon Tue Sat Sun"),
        ("MON-Wed", "Mon Tue Wed"),
        ("5-7", "Fri Sat Sun"),
        ("*/2", "Tue Thu Sat Sun"),
        ("1-5/2", "Mon Wed Fri"),
        ("2/3", "Tue Fri"),
    ],
)
def test_days_of_the_week_are_those_of_a_crontab(field, days):
    when = schedule.crontab(f"30 3 * * {field}")
    next_fires = {schedule.next_time(when, at("12:00", day)) for day in range(1, 8)}

    assert {time.strftime("%a", time.localtime(wall)) for wall in next_fires} == set(days.split())


@pytest.mark.parametrize(
    ("line", "due"),
    [
        ("*/20 * * * *", "2026-06-01 12:20"),
        ("0 3 15 * *", "2026-06-15 03:00"),
        ("0 3 1 jan,mar *", "2027-01-01 03:00"),
        ("0 22-23 29 2 *", "2028-02-29 22:00"),
    ],
)
def test_the_next_time_is_the_first_that_fits(line, due):
    assert schedule.next_time(schedule.crontab(line), at("12:00")) == datetime.fromisoformat(due).timestamp()


def test_of_a_repeated_hour_no_moment_comes_again(machine_in):
    machine_in("Europe/Helsinki")
    second = datetime(2026, 10, 25, 3, 10, fold=1).timestamp()

    due = schedule.next_time(schedule.crontab("*/30 3 * * *"), second)
    assert due == datetime(2026, 10, 26, 3).timestamp()


def test_an_hour_left_out_in_spring_comes_as_the_next(machine_in):
    machine_in("Europe/Helsinki")  # clocks go from 3 on to 4 there

    due = schedule.next_time(schedule.crontab("30 3 * * *"), datetime(2026, 3, 28, 12).timestamp())
    assert time.localtime(due)[2:5] == (29, 4, 30)
    assert time.localtime(schedule.next_time(schedule.crontab("30 3 * * *"), due))[2:5] == (30, 3, 30)


def test_the_scheduler_is_not_even_loaded_without_a_card():
    code = "import sys, wslgpud.app.daemon; sys.exit('apscheduler' in sys.modules or 'torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_day_that_never_comes_is_never_due():
    assert schedule.next_time(schedule.crontab("0 3 31 2 *"), at("12:00")) == math.inf


@pytest.fixture
def machine_in(monkeypatch):
    """Make this process live in another time zone."""

    def move(zone):
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


def test_a_repeated_hour_in_autumn_has_one_night(machine_in):
    machine_in("Europe/Helsinki")  # clocks go from 4 back to 3 there
    fires = [datetime(2026, 10, 24, 12).timestamp()]
    for _ in range(3):
        fires.append(schedule.next_time(schedule.crontab("30 3 * * *"), fires[-1]))

    assert [after - before for before, after in pairwise(fires[1:])] == [25 * 3600, 24 * 3600]
    assert {time.localtime(second)[3:5] for second in fires[1:]} == {(3, 30)}


@pytest.mark.parametrize("zone", ["CST-8", "Beijing", "../localtime", ""])
def test_a_zone_without_a_name_does_as_well(machine_in, zone):
    machine_in(zone)

    assert time.localtime(schedule.next_time(schedule.crontab("30 3 * * *"), time.time()))[3:5] == (3, 30)


def test_missed_nights_are_caught_up_once(nightly):
    one = nightly([replace(night(0), wall=at("12:00") - 20 * 86400)])

    assert begins(one, at("12:00"), at("12:14"), at("12:15"), at("12:16"), at("14:00")) == [at("12:15")]


def test_a_machine_always_off_at_night_is_first_tested_by_day(nightly):
    one = nightly(previous_run=DaemonRun(at("09:00"), at("17:00"), True, "", ""))

    assert begins(one, at("09:00", 2), at("09:15", 2)) == [at("09:15", 2)]


def test_nothing_is_caught_up_when_last_night_was_tested(nightly):
    one = nightly([replace(night(0), wall=at("11:59"))], schedule="30 3 * * 0", jitter_minutes=0.0)

    assert begins(one, at("12:00"), at("13:00")) == []


def test_a_run_made_by_a_wrong_clock_delays_no_night(nightly):
    one = nightly([replace(night(0), wall=at("12:00") + 10 * 365 * 86400)], jitter_minutes=0.0)

    assert begins(one, at("12:00"), at("03:30", 2)) == [at("03:30", 2)]


def test_a_night_missed_asleep_begins_on_waking(nightly):
    one = nightly(jitter_minutes=0.0)

    assert begins(one, at("01:00"), at("09:00", 5), at("10:00", 5)) == [at("09:00", 5)]


def test_a_busy_gpu_is_tried_again_the_same_night(nightly, caplog):
    one = nightly(retries=2, retry_minutes=40.0)
    one.observe(tick(gpu(utilization_ratio=0.9)))
    with caplog.at_level("INFO"):
        one._night()
    one.news()

    assert one._runner.stop.seconds == 2 * 2400
    assert caplog.text.count("put off") == 2
    assert [run.verdict for run in one._history.kept] == ["skipped"]


def test_a_night_right_after_the_machine_woke_up_is_put_off(nightly, caplog):
    one = nightly(settle_seconds=3600.0)
    woke = replace(
        tick(gpu()),
        reports=(
            replace(
                tick(gpu()).reports[0],
                sample=Sample(gpus=(gpu(),), events=(Event("clock_jump", time.time(), "slept for 6 h"),)),
            ),
        ),
    )
    one.observe(woke)
    one._runner.stop.set()
    with caplog.at_level("INFO"):
        one._night()

    assert "the machine woke up only" in caplog.text
    assert one._history.kept == []


def test_a_run_is_stored_with_driver_and_temperature(nightly):
    one, now = nightly(), tick(gpu())
    labels = [{"index": "0", "uuid": "GPU-1", "driver_version": "591.44"}.get(n, "") for n in source.INFO.labels]
    (heat,) = (spec for spec in source.FED if spec.name == "gpu_temperature_celsius")
    readings = Reading(source.INFO, 1, tuple(labels)), Reading(heat, 61, ("0", "GPU-1"))
    report = replace(now.reports[0], sample=Sample(gpus=(gpu(),), readings=readings))
    one.observe(replace(now, reports=(report,)))

    assert one._recent.driver("GPU-1") == "591.44"
    with one._recent.following("GPU-1") as course:
        assert course.first == {heat.name: 61}


def test_two_gpus_are_tested_one_after_the_other(nightly):
    one = nightly(retries=0)
    one.observe(tick(gpu(utilization_ratio=0.9), gpu(index=1, uuid="GPU-2", utilization_ratio=0.9)))
    one._night()
    one.news()

    assert [run.gpu for run in one._history.kept] == [0, 1]


def test_a_tested_card_is_left_alone_when_another_is_retried(nightly, monkeypatch):
    one, tested = nightly(retries=2), []

    def run(sample, _mode):
        tested.append(sample.index)
        return night(1, verdict="passed" if sample.index == 0 else "skipped", uuid=sample.uuid)

    monkeypatch.setattr(one._runner, "run", run)
    one.observe(tick(gpu(), gpu(index=1, uuid="GPU-2")))
    one._night()

    assert tested == [0, 1, 1, 1]


def test_wrong_data_raises_an_alarm_until_a_good_night(nightly):
    one = nightly()
    one.keep(night(1, verdict="findings", findings=[("errors", "3 wrong words")]))
    [change] = one.news()
    one._news.put(night(2))
    [end] = one.news()

    assert (change.resource, change.rule, change.new) == ("gpu0", "vram_stress", Level.CRITICAL)
    assert "3 wrong words" in str(change.facts["text"])
    assert (end.old, end.new) == (Level.CRITICAL, Level.OK)
    assert len(one._history.kept) == 2


def test_a_skipped_night_ends_no_alarm(nightly):
    one = nightly([night(1, verdict="findings", findings=[("errors", "3 wrong words")])])
    one._news.put(night(2, verdict="skipped"))
    one._news.put(replace(night(2, uuid="GPU-2"), gpu=1))

    assert one.news() == []


def test_the_alarm_of_a_broken_card_ends_with_the_card(nightly):
    one = nightly([night(1, uuid="GPU-old", verdict="findings", findings=[("errors", "3 wrong words")])])
    one._news.put(night(2, uuid="GPU-new"))
    [end] = one.news()
    one._news.put(night(3, uuid="GPU-new"))

    assert (end.resource, end.old, end.new) == ("gpu0", Level.CRITICAL, Level.OK)
    assert one.news() == []


def test_rows_of_the_last_complete_run_stay_until_the_next(nightly):
    one = nightly([replace(night(1), detail={"chunks": []})])
    one._news.put(night(2, verdict="skipped"))
    one._news.put(replace(night(3, uuid="GPU-2"), detail={"chunks": []}))
    one.news()
    assert [bool(run.detail) for run in one.runs()] == [True, False, True]
    one._news.put(replace(night(4), detail={"chunks": []}))
    one.news()

    assert [bool(run.detail) for run in one.runs()] == [False, False, True, True]


def test_the_last_run_is_there_as_metrics(nightly):
    one = nightly([night(1), night(2, verdict="skipped", reason="busy")])
    found = {(r.spec.name, r.labels[2:]): r.value for r in one.readings()}

    assert found["vram_stress_last_success_timestamp_seconds", ()] == night(1).wall
    assert found["vram_stress_last_run_timestamp_seconds", ()] == night(2).wall
    assert found["vram_stress_result", ("skipped",)] == 1
    assert found["vram_stress_result", ("passed",)] == 0
    assert found["vram_stress_bytes", ("usable",)] == 14000 << 20
    assert found["vram_stress_bandwidth_bytes_per_second", ("write", "median")] == 800e9
    assert 0.99 < found["vram_stress_coverage_ratio", ()] < 1
