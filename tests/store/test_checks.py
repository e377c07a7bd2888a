"""Each night the file is checked, and damage becomes a metric and an alert."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime

import pytest

from wslgpud.alerts.rules import RuleEngine
from wslgpud.model import Level
from wslgpud.store import Store, store_metrics, upkeep
from wslgpud.store.upkeep import NightlyCheck, next_check


@pytest.fixture(autouse=True)
def _goes_on_at_once(monkeypatch):
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)


def figures(store):
    return {reading.spec.name: reading.value for reading in store_metrics.readings(store.stats())}


@pytest.mark.parametrize(("day", "hour", "due_day"), [(21, 3, 21), (21, 4, 22), (21, 23, 22), (30, 12, 31)])
def test_the_next_look_is_in_the_coming_night(day, hour, due_day):
    last = datetime(2026, 8, day, hour).astimezone()
    due = datetime.fromtimestamp(next_check(last.timestamp())).astimezone()

    assert (due.day, due.hour, due.minute) == (due_day, upkeep.CHECK_HOUR, 0)


def test_the_first_check_comes_soon_and_then_one_every_night(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        looks = []
        stats = store_metrics.StoreStats()
        check = NightlyCheck(str(file), clock.wall, stats, lambda *_: None)
        for _ in range(3 * 96):
            clock.now += 900
            check()
            if check._thread is not None:
                check._thread.join()
            if not looks or looks[-1] != stats.last_check_wall:
                looks.append(stats.last_check_wall)
        assert store.flush()

    assert stats.check_findings == ()
    assert len(looks) == 1 + 3
    assert [datetime.fromtimestamp(w).astimezone().hour for w in looks[1:]] == [upkeep.CHECK_HOUR] * 3


def test_a_sound_file_has_no_findings(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        assert "store_check_findings" not in figures(store)
        clock.now += upkeep.FIRST_CHECK_SECONDS
        made.until(lambda: store.flush() and "store_check_findings" in figures(store))

        assert figures(store)["store_check_findings"] == 0
        assert figures(store)["store_last_check_timestamp_seconds"] == clock.now
        assert store.stats().damage == ""


def test_damage_is_found_at_night_set_aside_and_told(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second in range(3000):
            clock.now = made.T0 + second
            values = {(made.BYTES, str(i)): second * i * 7919 % 10007 for i in range(40)}
            store.append(made.snapshot(clock.now, values))
        made.settle(store, clock)
    made.damage(file, "rollup_minute")
    with Store(file, settings, host_name="pc", clock=clock) as store:
        clock.now += upkeep.FIRST_CHECK_SECONDS
        made.until(lambda: store.flush() and store.stats().set_aside)
        assert figures(store)["store_set_aside"] == 1
        assert "store_check_findings" not in figures(store), "the new file was not checked yet"
        (change,) = RuleEngine().observe(made.snapshot(clock.now), store_damage=store.stats().damage)
        assert (change.rule, change.new) == ("store_damaged", Level.WARNING)

        clock.now += 86400
        made.until(lambda: store.flush() and not store.stats().damage)
        assert figures(store)["store_check_findings"] == 0


def test_a_file_that_nobody_can_open_is_set_aside_at_night(file, settings, clock, made):
    """The daemon goes on writing it, as it has the definitions in memory; nobody else can open it."""
    with Store(file, settings, host_name="pc", clock=clock) as store:
        store.append(made.snapshot(made.T0, {made.EVENTS: 1}))
        assert store.flush()
        with closing(sqlite3.connect(file)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with file.open("r+b") as raw:
            raw.seek(raw.read().index(b"CREATE TABLE event") + len(b"CREATE TABL"))
            raw.write(b"F")
        clock.now += upkeep.FIRST_CHECK_SECONDS
        made.until(lambda: store.flush() and store.stats().set_aside)
        assert str(store.stats().damage).startswith("damaged, and set aside as ")
        assert made.read_all(store.reader) == [(0, 1)], "the other tables were read nevertheless"


def test_damage_after_a_check_without_findings_is_told_too(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        clock.now += upkeep.FIRST_CHECK_SECONDS
        made.until(lambda: store.flush() and store.stats().check_findings == ())
        store._writer.report_damage("found by hand", store._writer._inode)
        made.until(lambda: store.flush() and store.stats().set_aside)
        assert str(store.stats().damage).startswith("damaged, and set aside as ")


def test_rejected_values_and_purged_rows_are_counted(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        store.append(made.snapshot(clock.now, {made.RATIO: float("nan"), made.BYTES: 1 << 70}))
        assert store.flush()

        assert figures(store)["store_rejected_values"] == 2
        assert figures(store)["store_purged_rows"] == 0
