"""The nights: when runs begin, what becomes of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import pairwise

import pytest
from tzlocal import unix

from tests.stress.support import gpu, night
from tests.support.elsewhere import Elsewhere
from wslgpud.config import ConfigError, Stress
from wslgpud.model import Event, Level, Reading, Sample, Snapshot, SourceReport
from wslgpud.sources import gpu as source
from wslgpud.stress import lock, schedule
from wslgpud.stress.schedule import Nightly


class Shelf:
    """Keeps runs as the store does."""

    def __init__(self, runs=()):
        self.kept, self.reader = list(runs), self

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


@pytest.fixture
def nightly(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "PLACES", (str(tmp_path),))  # other tests hold locks of this machine
    opened = []

    def make(runs=(), **settings):
        host = Elsewhere(tmp_path / "elsewhere")
        opened.append(Nightly(Stress(**settings), host, tmp_path, Shelf(runs)))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def planned(nightly):
    return {job.id: job for job in nightly._scheduler.get_jobs()}


def in_seconds(nightly, begun):
    """Return the least and the greatest delay with which the next try can have been planned since ``begun``."""
    when = planned(nightly)["vram-stress-again"].next_run_time.timestamp()
    return when - time.time(), when - begun


def test_a_night_is_planned_once_there_is_a_gpu(nightly, monkeypatch):
    one = nightly()
    one.observe(tick())
    assert one._scheduler is None
    one.observe(tick(gpu()))

    [job] = planned(one).values()
    assert job.max_instances == 1
    assert job.coalesce
    assert (job.next_run_time.hour, job.next_run_time.minute) >= (3, 30)
    monkeypatch.setattr("random.uniform", max)  # as late as can be
    job.func()
    soon = planned(one)["vram-stress-again"].next_run_time.timestamp() - time.time()
    assert 0 < soon <= 20 * 60


def test_off_is_off(nightly):
    one = nightly(schedule="off")
    one.observe(tick(gpu()))

    assert one._scheduler is None


def test_the_scheduler_is_not_even_loaded_without_a_gpu():
    code = "import sys, wslgpud.app.daemon; sys.exit('apscheduler' in sys.modules or 'torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("schedule", ["nightly", "61 3 * * *", "0 3 * *", "0 3 * * 5-3", ""])
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
        ("5-7", "Fri Sat Sun"),
        ("*/2", "Tue Thu Sat Sun"),
        ("1-5/2", "Mon Wed Fri"),
        ("2/3", "Tue Fri"),
    ],
)
def test_days_of_the_week_are_those_of_a_crontab(field, days):
    when = schedule.trigger(Stress(schedule=f"30 3 * * {field}", jitter_minutes=0.0))
    noons = (datetime(2026, 6, day, 12, tzinfo=when.timezone) for day in range(1, 8))  # from a Monday on
    next_fires = {when.get_next_fire_time(None, noon).strftime("%a") for noon in noons}

    assert next_fires == set(days.split())


@pytest.fixture
def machine_in(monkeypatch):
    """Make this process live in another time zone."""

    def move(zone):
        monkeypatch.setenv("TZ", zone)
        monkeypatch.setattr("tzlocal.unix._cache_tz", None, raising=False)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


def test_a_repeated_hour_in_autumn_has_at_most_two_nights(machine_in):
    machine_in("Europe/Helsinki")  # clocks go from 4 back to 3 there
    when = schedule.trigger(Stress())
    fires = [when.get_next_fire_time(None, datetime(2026, 10, 24, 12, tzinfo=when.timezone))]
    for _ in range(3):
        fires.append(when.get_next_fire_time(fires[-1], fires[-1]))
    seconds = [fire.timestamp() for fire in fires]

    assert all(after - before >= 3600 for before, after in pairwise(seconds))
    assert {time.localtime(second)[3:5] for second in seconds} == {(3, 30)}


@pytest.mark.parametrize("zone", ["CST-8", "Beijing", "../localtime"])
def test_a_zone_without_a_name_ends_neither_daemon_nor_nights(nightly, machine_in, zone):
    machine_in(zone)
    one = nightly()
    one.observe(tick(gpu()))
    [job] = planned(one).values()

    assert time.localtime(job.next_run_time.timestamp())[3:5] == (3, 30)


def test_a_machine_without_a_time_zone_is_not_warned_of_it(machine_in, monkeypatch, tmp_path, recwarn):
    machine_in("")
    monkeypatch.setattr(unix, "_get_localzone", partial(unix._get_localzone, str(tmp_path)))
    noon = datetime.now().astimezone().replace(hour=12)

    assert schedule.trigger(Stress()).get_next_fire_time(None, noon).utcoffset() == noon.utcoffset()
    assert [str(warning.message) for warning in recwarn] == []


def test_missed_nights_are_caught_up_once(nightly):
    begun = time.time()
    weeks_ago = replace(night(0), wall=begun - 20 * 86400)
    one = nightly([weeks_ago])
    one.observe(tick(gpu()))
    least, most = in_seconds(one, begun)

    assert sorted(planned(one)) == ["vram-stress", "vram-stress-again"]
    assert least <= 900 <= most


def test_a_machine_always_off_at_night_is_first_tested_by_day(nightly, tmp_path):
    nightly().observe(tick(gpu()))
    (planned_since,) = tmp_path.glob("stress-since")
    os.utime(planned_since, (0, time.time() - 2 * 86400))
    one = nightly()
    one.observe(tick(gpu()))

    assert sorted(planned(one)) == ["vram-stress", "vram-stress-again"]


def test_nothing_is_caught_up_when_last_night_was_tested(nightly):
    one = nightly([replace(night(0), wall=time.time() - 60)], schedule="30 3 * * 0", jitter_minutes=0.0)
    one.observe(tick(gpu()))

    assert sorted(planned(one)) == ["vram-stress"]


def test_a_busy_gpu_is_tried_again_the_same_night(nightly):
    one, begun = nightly(retries=2, retry_minutes=40.0), time.time()
    one.observe(tick(gpu(utilization_ratio=0.9)))
    one._night()
    least, most = in_seconds(one, begun)
    assert least <= 2400 <= most
    for _ in range(2):
        assert one.news() == []
        assert one._history.kept == []
        again = planned(one)["vram-stress-again"]
        again.remove()
        again.func(*again.args)
    assert "vram-stress-again" not in planned(one)
    one.news()

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
    with caplog.at_level("INFO"):
        one._night()

    assert "the machine woke up only" in caplog.text
    assert "vram-stress-again" in planned(one)
    assert one._history.kept == []


def test_a_night_that_could_not_come_in_time_comes_late(nightly):
    """The scheduler drops nothing for being late, and makes one of several; the gates decide."""
    one = nightly()
    one.observe(tick(gpu()))
    [job] = planned(one).values()

    assert (job.misfire_grace_time, job.coalesce) == (None, True)


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
    again = planned(one)["vram-stress-again"]
    again.func(*again.args)

    assert tested == [0, 1, 1]


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


def test_a_night_missed_asleep_is_noticed_on_waking(nightly, monkeypatch):
    """The scheduler sleeps by a clock that stands still meanwhile."""
    one, woken = nightly(), []
    one.observe(tick(gpu()))
    monkeypatch.setattr(one._scheduler, "wakeup", lambda: woken.append("woken"))
    for kind in ("oom_kill", "clock_jump"):
        now = tick(gpu())
        sample = Sample(gpus=(gpu(),), events=(Event(kind, now.wall, "slept for 6 h"),))
        one.observe(replace(now, reports=(replace(now.reports[0], sample=sample),)))
        woken.append(kind)

    assert woken == ["oom_kill", "woken", "clock_jump"]


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
