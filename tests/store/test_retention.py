"""A forgotten daemon never fills a disk."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from wslgpud.store import Reader, Store, upkeep, writer

DAY = 86400


@pytest.fixture(autouse=True)
def _looks_after_every_commit(monkeypatch):
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(upkeep, "SETTLE_SECONDS", 0.0)


def test_samples_beyond_their_age_go_and_transitions_stay(file, settings, clock, made):
    with Store(file, replace(settings, raw_days=2), host_name="pc", clock=clock) as store:
        for day in range(10):
            clock.now = made.T0 + day * DAY
            store.append(made.snapshot(clock.now, {made.EVENTS: day}))
            assert store.flush()
        made.settle(store, clock)
        assert made.raw_since(store.reader) == 8 * DAY
        assert [value for _, value in made.read_all(store.reader)] == list(range(10)), "minutes are still there"
        assert store.stats().purged_rows_total > 0


def test_each_kind_of_row_goes_at_its_own_age_and_not_before(file, settings, clock, made):
    keep = replace(settings, raw_days=2, minute_days=4, hour_days=8)
    with Store(file, keep, host_name="pc", clock=clock):
        pass
    now = made.T0 + 1800
    # of what lasts as long as minutes, whole hours go; of hours, whole days
    raw, minute, hour = now - 2 * DAY, made.T0 - 4 * DAY, now - 8 * DAY
    kept = {"chunk": raw + 1, "event": minute + 1, "transition": hour + 1, "outbox": hour + 1, "daemon_run": hour + 1}
    rows = {
        "chunk (id, low_ms, high_ms, samples, data)": "0, {0}, 0, x''",
        "event (id, ms, kind, text, fields)": "{0}, 'k', '', '{{}}'",
        "transition (id, ms, mono, resource, rule, old, new, message)": "{0}, 0, 'ram', 'r', 0, 1, '\"x\"'",
        "outbox (id, channel, payload, created_ms, attempts, error)": "'c', '{{}}', {0}, 0, ''",
        "daemon_run (id, started_ms, clean, version, boot_id)": "{0}, 1, '', ''",
    }
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("DELETE FROM daemon_run")
        for (into, values), wall in zip(rows.items(), kept.values(), strict=True):
            for number, at in ((100, wall - 2), (200, wall)):
                database.execute(f"INSERT INTO {into} VALUES ({number}, {values.format(at * 1000)})")
        for part in (minute - 900, minute):
            database.execute(f"INSERT INTO rollup_minute (part, series, unit, base) VALUES ({part}, 1, 1, 0)")
        for part in (made.T0 - 8 * DAY, made.T0 - 7 * DAY):
            database.execute(f"INSERT INTO rollup_hour (part, series, unit, base, n_0) VALUES ({part}, 1, 1, 0, 1)")
    clock.now = now
    with Store(file, keep, host_name="pc", clock=clock) as store:
        made.settle(store, clock)
        purged = store.stats().purged_rows_total

    for table in kept:
        assert made.query(file, f"SELECT id FROM {table} WHERE id IN (100, 200)") == [(200,)], table
    assert made.query(file, "SELECT part FROM rollup_minute") == [(minute,)]
    assert made.query(file, "SELECT part FROM rollup_hour") == [(made.T0 - 7 * DAY,)]
    assert purged == len(rows) + 2


@pytest.mark.slow
def test_beyond_the_size_limit_the_oldest_samples_go_first(file, settings, clock, made, monkeypatch):
    limit = 2_000_000
    # both a tenth: of the least limit that can be configured, and of the log
    monkeypatch.setattr(writer, "CHECKPOINT_PAGES", writer.CHECKPOINT_PAGES // 10)
    noise = random.Random(1)
    with Store(file, replace(settings, max_bytes=limit), host_name="pc", clock=clock) as store:
        sizes = []
        for second in range(12_000):
            clock.now = made.T0 + second
            values = {(made.BYTES, str(i)): noise.getrandbits(50) for i in range(30)}
            store.append(made.snapshot(clock.now, values))
            if second % 100 == 99:
                assert store.flush()
                sizes.append(store.stats().file_bytes)
        made.settle(store, clock)
        since = made.T0 + made.raw_since(store.reader)
        kept = [wall for wall, _ in made.read_all(store.reader, '*"7"*', start=since)]
    assert kept == list(range(12_000 - len(kept), 12_000)), "what is left is the newest, without a hole"
    assert 0 < len(kept) < 8000
    assert max(sizes) < 1.3 * limit
    assert max(sizes[90:]) <= 1.1 * max(sizes[:90]), "in steady state the file does not grow"


def test_a_clock_years_ahead_for_a_while_costs_no_history(file, settings, clock, made, monkeypatch):
    monkeypatch.setattr(upkeep, "SETTLE_SECONDS", 600.0)
    keep = replace(settings, raw_days=30)
    with Store(file, keep, host_name="pc", clock=clock) as store:
        store.append(made.snapshot(clock.now, {made.EVENTS: 1}))
    clock.now += 10 * 365 * DAY
    with Store(file, keep, host_name="pc", clock=clock) as store:
        made.settle(store, clock)
        clock.now = made.T0 + 60
        made.settle(store, clock)
        assert made.read_all(store.reader) == [(0, 1)]


def test_samples_stamped_years_ahead_do_not_stop_retention(file, settings, clock, made):
    with Store(file, replace(settings, raw_days=2), host_name="pc", clock=clock) as store:
        for day in (3650, *range(10)):
            clock.now = made.T0 + day * DAY
            store.append(made.snapshot(clock.now, {made.EVENTS: day}))
            assert store.flush()
        made.settle(store, clock)
        assert made.raw_since(store.reader) == 8 * DAY


def test_samples_from_before_a_rename_still_expire_with_age(file, settings, clock, made):
    keep = replace(settings, raw_days=2, minute_days=3, hour_days=4)
    for day, name in ((0, "old"), (9, "new")):
        with Store(file, keep, host_name=name, clock=clock) as store:
            for second in range(0, 2000, 10):
                clock.now = made.T0 + day * DAY + second
                store.append(made.snapshot(clock.now, {made.EVENTS: second}))
            made.settle(store, clock)
    begins = made.query(file, "SELECT min(low_ms) / 1000 FROM chunk UNION ALL SELECT min(part) FROM rollup_minute")
    assert begins == [(made.T0 + 9 * DAY,)] * 2
    assert made.query(file, "SELECT min(part) FROM rollup_hour") == [(made.T0 + 9 * DAY,)]


def test_a_renamed_machine_keeps_its_history_under_its_new_name(file, settings, clock, made):
    for name in ("old", "new"):
        with Store(file, settings, host_name=name, clock=clock) as store:
            store.append(made.snapshot(clock.now, {made.EVENTS: 7}))
            assert store.flush()
            refs = store.reader.series()
        clock.now += 60
    assert [ref.host for ref in refs] == ["new"]
    with Reader(str(file)) as reader:
        assert made.read_all(reader) == [(0, 7), (60, 7)]


def test_hours_go_on_where_minutes_end(file, settings, clock, made):
    with Store(file, replace(settings, raw_days=1, minute_days=1), host_name="pc", clock=clock) as store:
        for second in range(0, 30 * 3600, 60):
            clock.now = made.T0 + second
            store.append(made.snapshot(clock.now, {made.EVENTS: second}))
        made.settle(store, clock)
        (ref,) = store.reader.series()
        buckets = store.reader.summaries(ref, made.T0, clock.now, 60)
    assert sum(b.n for b in buckets) == 30 * 60, "nothing falls between the tiers"


@pytest.mark.slow
def test_summaries_stay_for_as_long_as_their_samples(file, settings, clock, made):
    keep = replace(settings, minute_days=1, hour_days=1)
    with Store(file, keep, host_name="pc", clock=clock) as store:
        for second in range(0, 60 * 3600, 300):
            clock.now = made.T0 + second
            store.append(made.snapshot(clock.now, {made.EVENTS: second}))
        made.settle(store, clock)
        (ref,) = store.reader.series()
        for step in (60, 900, 3600, 7200):
            buckets = store.reader.summaries(ref, made.T0, clock.now, step)
            assert [b.wall - made.T0 for b in buckets] == list(range(0, 60 * 3600, max(step, 300)))
            assert sum(b.n for b in buckets) == 60 * 12
