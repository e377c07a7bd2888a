"""What goes in comes out, and nothing else does."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wslgpud import __version__
from wslgpud.metrics import MetricSpec
from wslgpud.model import Event, Forecast, Level, ProcessSample, Transition
from wslgpud.store import DaemonRun, LockedError, Store, schema, upkeep
from wslgpud.store.records import Point
from wslgpud.store.writer import WriteBuffer
from wslgpud.words import say


@pytest.fixture
def local(file, settings, clock):
    with Store(file, settings, host_name="pc", boot_id="b1", clock=clock) as opened:
        yield opened


@pytest.fixture
def store(file, settings, clock):
    with Store(file, settings, host_name="pc", boot_id="b1", clock=clock) as opened:
        yield opened


def test_values_come_back_exactly_as_they_went_in(store, made):
    ticks = [
        {(made.BYTES, "free"): 2**53 + 1, made.RATIO: 0.123, made.EVENTS: 7},
        {(made.BYTES, "free"): 1 - 2**62, made.RATIO: 1.0, made.EVENTS: 8},
        {(made.BYTES, "free"): 2**62 - 1, made.RATIO: 0, made.EVENTS: 8},
    ]
    for second, values in enumerate(ticks):
        store.append(made.snapshot(made.T0 + second + 0.125, values))
    assert store.flush()

    for pattern, key in [
        ("made_bytes", (made.BYTES, "free")),
        ("made_ratio", made.RATIO),
        ("made_events", made.EVENTS),
    ]:
        assert made.read_all(store.reader, pattern) == [(s + 0.125, t[key]) for s, t in enumerate(ticks)]


def test_floats_are_kept_to_the_precision_of_their_metric(store, made):
    store.append(made.snapshot(made.T0, {made.RATIO: 0.12345, (made.BYTES, "x"): 3.9}))
    assert store.flush()
    assert made.read_all(store.reader, "made_ratio") == [(0, 0.123)]
    assert made.read_all(store.reader, "made_bytes") == [(0, 4)]


def test_what_is_not_known_is_not_stored(store, made):
    store.append(
        made.snapshot(made.T0, {made.RATIO: float("nan"), (made.BYTES, "x"): float("inf"), made.EVENTS: 2**62})
    )
    store.append(made.snapshot(made.T0, {made.RATIO: 1.7976931348623157e308, made.EVENTS: -(2**62)}))
    store.append(made.snapshot(made.T0 + 1, {made.RATIO: 0.5}))
    assert store.flush()
    assert made.read_all(store.reader) == [(1, 0.5)]
    assert store.stats().rejected_values_total == 5


def test_only_fresh_readings_of_stored_metrics_are_kept(store, made):
    store.append(made.snapshot(made.T0, {made.RATIO: 0.1, made.PASSING: 9}))
    store.append(made.snapshot(made.T0 + 1, {made.RATIO: 0.1}, fresh=False))
    assert store.flush()
    assert made.read_all(store.reader) == [(0, 0.1)]


def test_a_gap_stays_a_gap_at_every_step(store, made):
    for second in (0, 1, 7200, 7201):
        store.append(made.snapshot(made.T0 + second, {made.RATIO: 0.25}))
    assert store.flush()
    (ref,) = store.reader.series()
    assert [p.wall - made.T0 for p in store.reader.read(ref, made.T0, made.T0 + 9000, step=60)] == [0, 7200]


def test_a_step_gives_a_gauges_mean_and_a_counters_last_value(store, made):
    for second, value in enumerate([1, 2, 6, 100]):
        wall = made.T0 + 20 * second
        store.append(made.snapshot(wall, {(made.BYTES, "a"): value, made.EVENTS: value}))
    assert store.flush()
    (level,), (counter,) = store.reader.series("made_bytes"), store.reader.series("made_events")
    assert store.reader.read(level, made.T0, made.T0 + 99, step=60) == [Point(made.T0, 3), Point(made.T0 + 60, 100)]
    assert store.reader.read(counter, made.T0, made.T0 + 99, step=60) == [Point(made.T0, 6), Point(made.T0 + 60, 100)]


def test_a_series_is_found_by_its_text_its_metric_or_a_pattern(store, made):
    store.append(made.snapshot(made.T0, {(made.BYTES, "free"): 1, (made.BYTES, "used"): 2, made.RATIO: 0.5}))
    assert store.flush()
    texts = ['made_bytes{kind="free"}', 'made_bytes{kind="used"}']
    assert [str(r) for r in store.reader.series("made_bytes")] == texts
    assert [str(r) for r in store.reader.series("wslgpud_made_bytes")] == texts
    assert [str(r) for r in store.reader.series("*used*")] == texts[1:]
    assert {r.host for r in store.reader.series()} == {"pc"}


def test_latest_gives_the_last_value_even_of_rarely_read_series(store, made):
    store.append(made.snapshot(made.T0, {made.RATIO: 0.5, made.EVENTS: 3}))
    for second in range(1, 60):
        store.append(made.snapshot(made.T0 + second, {made.RATIO: second / 1000}))
    assert store.flush()
    found = {ref.metric: point for ref, point in store.reader.latest().items()}
    assert found == {"made_ratio": Point(made.T0 + 59, 0.059), "made_events": Point(made.T0, 3)}


def test_a_wall_clock_that_goes_back_loses_nothing(store, made):
    for wall in (0, 1, 2, -3600, -3599, 0, 1):
        store.append(made.snapshot(made.T0 + wall, {made.EVENTS: wall + 4000}))
    assert store.flush()
    assert [w for w, _ in made.read_all(store.reader)] == [-3600, -3599, 0, 0, 1, 1, 2]


def test_processes_and_events_are_kept(local, made, file):
    process = ProcessSample(42, 123456, 'py"thon', 7 * 2**30, 4096, roles=frozenset({"training"}))
    event = Event("clock_jump", made.T0, "went back", {"seconds": -3600})
    local.append(made.snapshot(made.T0, processes=(process,), events=(event,)))
    assert local.flush()
    (seen,) = local.reader.processes(made.T0, made.T0 + 1)
    assert seen == (made.T0, 42, 123456, 'py"thon', 7 * 2**30, 4096)
    (row,) = made.query(file, "SELECT ms, kind, text, fields FROM event")
    assert row == (made.T0 * 1000, "clock_jump", "went back", '{"seconds": -3600}')


def _transition(made):
    who = say("{count} x {name}", count=3, name="python")
    forecast = Forecast("ram", Level.WARNING, 5, 10, 1.5, 1.0, 2.0, None, {60: 0.25}, who, "growth")
    facts = {"victim": "训练 'x'", "pid": 7, "stalled_ratio": 0.25, "victims": (who, "ld")}
    message = say("{who} full in {eta_seconds}", who=who, eta_seconds=2)
    return Transition(made.T0, 12.5, "ram", "forecast", Level.OK, Level.WARNING, message, forecast, facts)


def test_a_transition_is_stored_without_a_tick_for_each_channel(local, made, file):
    transition = _transition(made)
    number = local.outbox.record(transition, {"command": {"text": "RAM"}, "ntfy": {"text": "RAM"}})
    assert local.flush()
    with closing(sqlite3.connect(file)) as other, other:
        assert other.execute("SELECT id, resource FROM transition").fetchall() == [(number, "ram")]
    assert local.reader.transitions() == [(number, transition)]
    (delivery,) = local.outbox.unsent("ntfy")
    assert delivery.transition_id == number
    assert delivery.payload == {"text": "RAM"}
    assert [d.channel for d in local.outbox.unsent()] == ["command", "ntfy"]


def test_undelivered_alerts_are_still_unsent_after_a_restart(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        store.outbox.record(_transition(made), {name: {"text": "RAM"} for name in ("command", "ntfy", "mail")})
        command, ntfy, mail = store.outbox.unsent()
        store.outbox.tried(command.id, done=True)
        store.outbox.tried(ntfy.id, "no route", done=False)
        store.outbox.tried(mail.id, "mailbox unknown", done=True)
        store.outbox.post("ntfy", {"text": "a report"})
    with Store(file, settings, host_name="pc", clock=clock) as store:
        first, second = store.outbox.unsent()
        assert (first.channel, first.attempts, first.error) == ("ntfy", 1, "no route")
        assert (second.payload, second.attempts) == ({"text": "a report"}, 0)
        store.outbox.tried(first.id, done=True)
        assert [d.id for d in store.outbox.unsent()] == [second.id]


def test_a_clean_end_is_told_from_an_unclean_one(file, settings, clock, made):
    with Store(file, settings, host_name="pc", boot_id="b1", clock=clock) as store:
        assert (store.previous_run, store.watched_seconds) == (None, 0.0)
        clock.now += 60
    with Store(file, settings, host_name="pc", boot_id="b1", clock=clock) as store:
        assert store.previous_run == DaemonRun(made.T0, made.T0 + 60, clean=True, version=__version__, boot_id="b1")
    program = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from wslgpud.store import Store
Store({str(file)!r}, host_name="pc", boot_id="b2").flush()
os._exit(1)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    with Store(file, settings, host_name="pc", boot_id="b3", clock=clock) as store:
        assert store.previous_run.clean is False
        assert store.previous_run.boot_id == "b2"


def test_a_second_daemon_is_refused_in_one_line(local, file, settings):
    with pytest.raises(LockedError, match=r"wslgpud\.db: another wslgpud is writing"):
        Store(file, settings)
    assert local.flush()


def test_another_process_reads_while_the_daemon_writes(local, made, file):
    local.append(made.snapshot(made.T0, {made.RATIO: 0.5}))
    assert local.flush()
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from wslgpud.store import Reader
reader = Reader({str(file)!r})
(ref,) = reader.series("made_ratio")
print(reader.read(ref, 0, 1e10)[0].value)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "0.5\n"


@pytest.mark.servers
def test_anyone_can_query_the_newest_values_of_a_server_with_sql(server_target, file, settings, clock, made):
    with Store(server_target, settings, host_name="pc", clock=clock, own_file=file) as store:
        store.append(made.snapshot(made.T0, {(made.BYTES, "free"): 12, made.RATIO: 0.25}))
        store.append(made.snapshot(made.T0 + 1, {(made.BYTES, "free"): 13, made.RATIO: 0.25}))
        store.append(made.snapshot(made.T0 + 2, {made.RATIO: 0.25}))
        made.copied(store)
    rows = made.query(server_target, "SELECT time, host, metric, labels, value FROM recent ORDER BY metric, time")
    assert rows == [
        (made.T0, "pc", "made_bytes", '{"kind":"free"}', 12),
        (made.T0 + 1, "pc", "made_bytes", '{"kind":"free"}', 13),
        *((made.T0 + i, "pc", "made_ratio", "{}", 0.25) for i in range(3)),
    ]


def test_a_full_buffer_drops_and_counts_the_oldest_calm_ticks(made):
    buffer = WriteBuffer(lambda: made.T0, buffer_bytes=20_000)
    for second in range(200):
        buffer.put(made.snapshot(made.T0 + second, {made.EVENTS: second}), urgent=second in (0, 1, 50))
        buffer.waiting(1)
    kept = [round(batch.ms / 1000 - made.T0) for batch in buffer.waiting(10**6)]
    assert kept[:3] == [0, 1, 50]
    assert kept[3:] == list(range(200 - len(kept) + 3, 200))
    assert buffer.dropped_ticks == 200 - len(kept)
    assert buffer.queue[0] == len(kept)
    assert buffer.queue[1] <= 20_000


def test_alerts_outlast_events_and_calm_ticks_in_a_full_buffer(made):
    buffer = WriteBuffer(lambda: made.T0, buffer_bytes=20_000)
    for second in range(100):
        event = Event("odd", made.T0, "event", {})
        buffer.put(made.snapshot(made.T0 + second, {made.EVENTS: 1}, events=(event,)), urgent=False)
        if second < 10:
            buffer.insert(schema.outbox, {"payload": str(second)})
    assert sum(not item.spare for item in buffer.waiting(10**6)) == 10
    assert buffer.dropped_records > 0


@pytest.mark.parametrize(("value", "kept"), [(2**62 - 1, True), (2**62, False), (-(2**62), False), (math.nan, False)])
def test_numbers_that_cannot_be_stored_are_counted(store, made, value, kept):
    store.append(made.snapshot(made.T0, {made.EVENTS: value}))
    assert store.flush()
    assert store.stats().rejected_values_total == (not kept)
    assert made.read_all(store.reader) == ([(0, value)] if kept else [])


TICKS = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 7)), min_size=1, max_size=90)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(ticks=TICKS)
def test_every_value_comes_back_at_its_tick(tmp_path_factory, made, ticks):
    """Any order of moments, any subset of three series at each."""
    wanted = {key: [] for key in "abc"}
    with Store(tmp_path_factory.mktemp("any") / "h.db", host_name="pc") as store:
        for i, (ms, some) in enumerate(ticks):
            keys = [k for bit, k in enumerate("abc") if some >> bit & 1]
            for key in keys:
                wanted[key].append((ms / 1000, i))
            store.append(made.snapshot(made.T0 + ms / 1000, {(made.BYTES, key): i for key in keys}))
        assert store.flush()
        for key in keys:
            found = made.read_all(store.reader, f"made_bytes{{kind={key}}}")
            assert found == sorted(wanted[key], key=lambda point: point[0])


def test_places_of_sealed_batches_are_used_again(file, settings, clock, made, monkeypatch):
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second in range(0, 4500, 30):
            clock.now = made.T0 + second
            store.append(made.snapshot(clock.now, {made.EVENTS: second}), urgent=True)
            if second % 900 == 0:
                made.settle(store, clock)
        made.settle(store, clock)
        assert made.query(file, "SELECT count(*) < 70, max(length(data)) FROM batch") == [(1, 4030)]
        assert [value for _, value in made.read_all(store.reader)] == [*range(0, 4500, 30)]


def test_a_series_declared_as_another_kind_goes_on(file, settings, clock, made):
    for second, kind in enumerate(["gauge", "counter"]):
        spec = MetricSpec("made_thing", kind, "", "It was a gauge once.")
        with Store(file, settings, host_name="pc", clock=clock) as store:
            store.append(made.snapshot(made.T0 + second, {spec: second}))
            assert store.flush()
            assert made.read_all(store.reader) == [(s, s) for s in range(second + 1)]
            assert list(store.reader.kinds().values()) == [kind]


def test_values_stay_in_order_of_time_when_a_precision_changes(file, settings, clock, made):
    for second, decimals in enumerate([1, 2, 1]):
        spec = MetricSpec("made_thing", "gauge", "", "Finer for a while.", decimals=decimals)
        with Store(file, settings, host_name="pc", clock=clock) as store:
            store.append(made.snapshot(made.T0 + second, {spec: second}))
            assert store.flush()
            assert made.read_all(store.reader) == [(s, s) for s in range(second + 1)]


def test_after_a_long_sleep_a_series_is_known_as_seen_at_once(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second in (0, 40 * 86400):
            clock.now = made.T0 + second
            store.append(replace(made.snapshot(clock.now, {made.EVENTS: 1}), mono=1000.0))
            assert store.flush()
    assert made.query(file, "SELECT seen_ms FROM series") == [((made.T0 + 40 * 86400) * 1000,)]


def test_an_hour_later_a_series_goes_on_and_is_known_as_seen(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second in (0, 1, 3700, 3701):
            clock.now = made.T0 + second
            store.append(made.snapshot(clock.now, {made.EVENTS: second}))
            assert store.flush()
        assert made.read_all(store.reader) == [(s, s) for s in (0, 1, 3700, 3701)]
    assert made.query(file, "SELECT seen_ms FROM series") == [((made.T0 + 3700) * 1000,)]
