"""Sealed or not, in blocks or summed up: the same facts."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.model import ProcessSample
from wslgpud.store import Store, codec, upkeep
from wslgpud.store.codec import add, packed, summarise, summary, unpacked
from wslgpud.store.schema import MAX_TICKS, MINUTES

HOUR = 3600


@pytest.fixture(autouse=True)
def _looks_after_every_commit(monkeypatch):
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)


MOMENTS = st.lists(st.integers(0, 4 * 3_600_000), min_size=1, max_size=80)
NUMBERS = st.integers(1 - 2**62, 2**62 - 1)


@given(st.dictionaries(st.integers(0, 14), st.lists(NUMBERS, min_size=1, max_size=1), min_size=1))
def test_a_row_of_minutes_gives_back_what_was_put_into_it(minutes):
    known = {900 + 60 * minute: summary(values) for minute, values in minutes.items()}
    assert dict(unpacked(MINUTES, [*packed(MINUTES, 900, 7, known).values()])) == known


def test_extreme_distances_are_capped_at_what_a_row_can_hold():
    row = packed(MINUTES, 0, 1, {0: summary([-(2**62), *[2**62 - 1] * 9]), 60: summary([5])})
    assert (row["last_0"], row["below_0"], row["over_0"]) == (2**62 - 6, 2**63 - 1, 2**63 - 1)


@given(MOMENTS, st.data())
def test_summaries_of_minutes_make_the_summaries_of_hours(moments, data):
    times = sorted(moments)
    values = data.draw(st.lists(NUMBERS, min_size=len(times), max_size=len(times)))
    hours = {}
    add(hours, summarise(times, values, 60_000).items(), 3_600_000)
    assert hours == summarise(times, values, 3_600_000)


@given(MOMENTS, st.data())
def test_a_summary_says_what_is_true_of_its_values(moments, data):
    values = data.draw(st.lists(NUMBERS, min_size=len(moments), max_size=len(moments)))
    found = summarise(moments, values, 60_000)
    assert sum(s.n for s in found.values()) == len(moments)
    assert sum(s.total for s in found.values()) == sum(values)
    for begin, known in found.items():
        inside = [v for t, v in zip(moments, values, strict=True) if begin <= t < begin + 60_000]
        assert known == summary(inside)
        assert known.low * known.n <= known.total <= known.high * known.n


def _fill(store, made, seconds, clock):
    """Append a tick for each second (relative to T0) of a level, a steady series, a share and a rare one."""
    ticks = {}
    for second in seconds:
        values = {
            (made.BYTES, "moving"): 2**35 + 4096 * (second * second % 101),
            (made.BYTES, "steady"): 2**34,
            made.RATIO: second % 7 / 8,
        }
        if second % 5 == 0:
            values[made.EVENTS] = second
        ticks[second] = values
        clock.now = made.T0 + second
        store.append(made.snapshot(clock.now, values))
    made.settle(store, clock)
    return ticks


def _expected(ticks, key):
    return [(second, values[key]) for second, values in sorted(ticks.items()) if key in values]


def test_sealed_values_are_the_values_that_were_appended(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        seconds = [*range(100, 2000), *range(5000, 7300)]
        ticks = _fill(store, made, seconds, clock)
        with closing(sqlite3.connect(file)) as database, database:
            assert database.execute("SELECT count(*) FROM chunk").fetchone()[0] >= 5
            newest = "SELECT sum(ticks) FROM batch JOIN host ON batch.id > host.sealed"
            assert database.execute(newest).fetchone() == (100,)
        for pattern, key in [
            ('*"moving"*', (made.BYTES, "moving")),
            ('*"steady"*', (made.BYTES, "steady")),
            ("made_ratio", made.RATIO),
            ("made_events", made.EVENTS),
        ]:
            assert made.read_all(store.reader, pattern) == _expected(ticks, key)
            assert made.read_all(store.reader, pattern, made.T0 + 1990, made.T0 + 5010) == [
                (s, v) for s, v in _expected(ticks, key) if 1990 <= s <= 5010
            ]


def test_summaries_join_what_is_sealed_with_what_is_not(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        ticks = _fill(store, made, [*range(0, 1000, 2), *range(4000, 2 * HOUR + 700)], clock)
        for pattern, key in [("made_ratio", made.RATIO), ("made_events", made.EVENTS)]:
            (ref,) = store.reader.series(pattern)
            points = _expected(ticks, key)
            for step in (10, 60, 300, HOUR, 2 * HOUR):
                wanted = {}
                for second, value in points:
                    wanted.setdefault(second // step * step, []).append(value)
                found = store.reader.summaries(ref, made.T0, clock.now, step)
                assert [b.wall - made.T0 for b in found] == list(wanted)
                for bucket, values in zip(found, wanted.values(), strict=True):
                    assert (bucket.n, bucket.low, bucket.high, bucket.last) == (
                        len(values),
                        min(values),
                        max(values),
                        values[-1],
                    )
                    assert bucket.total == pytest.approx(sum(values))


def test_anyone_can_query_minutes_and_hours_with_sql(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        ticks = _fill(store, made, range(HOUR + 10), clock)
    for metric, label, key in [
        ("made_bytes", "%moving%", (made.BYTES, "moving")),
        ("made_bytes", "%steady%", (made.BYTES, "steady")),
        ("made_ratio", "%", made.RATIO),
    ]:
        for view, step in (("minute", 60), ("hour", HOUR)):
            rows = made.query(
                file,
                f"SELECT time, n, min, max, sum, last FROM {view}"
                " WHERE metric = :metric AND labels LIKE :label ORDER BY time",
                metric=metric,
                label=label,
            )
            assert len(rows) == HOUR // step
            for time, n, low, high, total, last in rows:
                begin = time - made.T0
                values = [ticks[s][key] for s in range(begin, begin + step)]
                assert (n, float(low), float(high), float(last)) == (step, min(values), max(values), values[-1])
                assert float(total) == pytest.approx(sum(values))


def test_what_does_not_change_takes_next_to_nothing(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        _fill(store, made, range(HOUR + 10), clock)
    with closing(sqlite3.connect(file)) as database, database:
        (steady,) = database.execute("SELECT id FROM series WHERE labels LIKE '%steady%'").fetchone()
        minutes = database.execute("SELECT * FROM rollup_minute WHERE series = ?", (steady,)).fetchall()
        assert [row[3:] for row in minutes] == [(2**34, *(60,) * 15, *(0,) * 60)] * 4
        sheets = [data for (data,) in database.execute("SELECT data FROM chunk")]
    assert all(len(codec.encode([*codec.samples_in(data, steady)[2]])) < 50 for data in sheets)


def test_a_clock_set_back_an_hour_repeats_and_loses_nothing(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        seconds = [*range(3000, 6000), *range(2400 + 0, 5000), *range(5000, 9000)]
        for second in seconds:
            clock.now = made.T0 + second
            store.append(made.snapshot(clock.now, {made.EVENTS: second}))
        made.settle(store, clock)
        assert made.read_all(store.reader) == [(s, s) for s in sorted(seconds)]
        (ref,) = store.reader.series()
        hours = store.reader.summaries(ref, made.T0, clock.now, HOUR)
        assert [b.n for b in hours] == [sum(s // HOUR == h for s in seconds) for h in range(3)]
        assert [b.total for b in hours] == [sum(s for s in seconds if s // HOUR == h) for h in range(3)]


def test_ten_ticks_a_second_are_sealed_early_and_summed_up_right(file, settings, clock, made):
    count = MAX_TICKS * 2 + 500
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for i in range(count):
            clock.now = made.T0 + i / 10
            store.append(made.snapshot(clock.now, {made.EVENTS: i}))
        made.settle(store, clock)
        with closing(sqlite3.connect(file)) as database, database:
            newest = "SELECT sum(ticks) FROM batch JOIN host ON batch.id > host.sealed"
            assert database.execute(newest).fetchone()[0] <= MAX_TICKS
        (ref,) = store.reader.series()
        minutes = store.reader.summaries(ref, made.T0, clock.now, 60)
        assert [b.n for b in minutes] == [600] * (count // 600) + [count % 600]
        assert sum(b.total for b in minutes) == sum(range(count))
        assert [p.value for p in store.reader.read(ref, 0, 1e10)] == list(range(count))


def test_after_downtime_leftovers_are_sealed_and_summed_up_once(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        _fill(store, made, range(600), clock)
    for _ in range(3):
        with Store(file, settings, host_name="pc", clock=clock) as store:
            clock.now += 5 * HOUR
            store.append(made.snapshot(clock.now, {made.EVENTS: 1}))
            made.settle(store, clock)
    with Store(file, settings, host_name="pc", clock=clock) as store:
        (ref,) = store.reader.series("made_ratio")
        (hour,) = store.reader.summaries(ref, made.T0, clock.now, HOUR)
        assert hour.n == 600
        assert hour.total == pytest.approx(sum(s % 7 / 8 for s in range(600)))


def test_latest_knows_series_that_only_lie_in_sealed_blocks(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        store.append(made.snapshot(made.T0, {made.RATIO: 0.5, made.EVENTS: 9}))
        clock.now = made.T0 + 901
        store.append(made.snapshot(clock.now, {made.RATIO: 0.25}))
        made.settle(store, clock)
        found = {ref.metric: tuple(point) for ref, point in store.reader.latest().items()}
    assert found == {"made_ratio": (made.T0 + 901, 0.25), "made_events": (made.T0, 9)}


def test_processes_come_back_from_sealed_chunks(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second in range(0, 1800, 5):
            clock.now = made.T0 + second
            process = ProcessSample(7, 99, "cc1plus", second * 2**20, 0)
            store.append(made.snapshot(clock.now, {made.EVENTS: 1}, processes=(process,)))
        made.settle(store, clock)
        seen = store.reader.processes(made.T0 + 100, made.T0 + 1795)
    assert [(p.wall - made.T0, p.rss_bytes) for p in seen] == [(s, s * 2**20) for s in range(100, 1800, 5)]


def test_an_ended_series_still_has_its_last_value_and_time(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second in range(1000):
            clock.now = made.T0 + second
            ended = {made.EVENTS: second} if second < 700 else {}
            store.append(made.snapshot(clock.now, {made.RATIO: second / 1000, **ended}))
        made.settle(store, clock)
        found = {ref.metric: (point.wall, point.value) for ref, point in store.reader.latest().items()}

    assert found == {"made_ratio": (made.T0 + 999, 0.999), "made_events": (made.T0 + 699, 699)}
