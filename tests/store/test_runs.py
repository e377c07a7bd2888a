"""What earlier runs left: how the last one ended, and what they learned."""

from __future__ import annotations

import sqlite3
import zlib
from contextlib import closing

import pytest

from wslgpud import __version__
from wslgpud.model import StressResult
from wslgpud.store import DaemonRun, Store, series_reader, upkeep
from wslgpud.store.records import Learned


@pytest.fixture
def run(file, settings, clock):
    """Return a function that opens the history under a name."""
    return lambda name="pc": Store(file, settings, host_name=name, boot_id="b1", clock=clock)


def test_a_killed_run_ended_with_its_last_known_tick(run, file, clock, made):
    for second in (None, 7):
        with run() as store:
            if second is not None:
                for later in (0, second):
                    store.append(made.snapshot(clock.now + later, {made.EVENTS: later}), urgent=True)
            assert store.flush()
        with closing(sqlite3.connect(file)) as database, database:
            database.execute(
                "UPDATE daemon_run SET stopped_ms = NULL, clean = 0 WHERE id = (SELECT max(id) FROM daemon_run)"
            )
        began = clock.now
        clock.now += 60
        ended = None if second is None else began + second
        with run() as store:
            assert store.previous_run == DaemonRun(began, ended, clean=False, version=__version__, boot_id="b1")
        clock.now += 60
    stops = [stopped for (stopped,) in made.query(file, "SELECT stopped_ms FROM daemon_run ORDER BY id")]
    assert stops == [None, (made.T0 + 60) * 1000, (made.T0 + 127) * 1000, (made.T0 + 180) * 1000]


def test_each_subjects_last_lesson_is_known_after_a_restart(run, clock, made, file):
    with run() as store:
        for number, subject in enumerate(("ram", "GPU-1", "ram", "ram")):
            clock.now = made.T0 + number + 0.25
            store.learn(subject, {"n": number})
        assert store.flush()
        assert made.query(file, "SELECT subject, document FROM learned ORDER BY id") == [
            ("GPU-1", '{"n": 1}'),
            ("ram", '{"n": 3}'),
        ]
    with run() as store:
        assert store.learned == {"GPU-1": Learned(made.T0 + 1.25, {"n": 1}), "ram": Learned(made.T0 + 3.25, {"n": 3})}


def test_a_stress_run_is_found_by_time_and_card(run, made, file):
    with run() as store:
        store.record_stress(StressResult(made.T0 + 0.5, "GPU-a", 0, "RTX", "passed"))
        assert store.flush()
    assert made.query(file, "SELECT ms, gpu, verdict FROM stress_run") == [(made.T0 * 1000 + 500, "GPU-a", "passed")]


def test_the_latest_value_comes_from_the_newest_quarter_hour(run, clock, made, monkeypatch):
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)
    with run() as store:
        for second in range(0, 2000, 100):
            clock.now = made.T0 + second
            ended = {made.EVENTS: second} if second < 1800 else {}
            store.append(made.snapshot(clock.now, {made.RATIO: second / 10_000, **ended}))
        made.settle(store, clock)
        found = {ref.metric: (point.wall - made.T0, point.value) for ref, point in store.reader.latest().items()}
    assert found == {"made_ratio": (1900, 0.19), "made_events": (1700, 1700)}


def test_a_sealed_quarter_hour_with_a_clock_jump_reads_in_order(run, clock, made, monkeypatch):
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)
    seconds = [100, 200, 300, 150, 250, 300, 1000]
    with run() as store:
        for number, second in enumerate(seconds):
            store.append(made.snapshot(made.T0 + second, {made.EVENTS: number}))
        clock.now = made.T0 + 1000
        made.settle(store, clock)
        assert made.read_all(store.reader) == [(100, 0), (150, 3), (200, 1), (250, 4), (300, 2), (300, 5), (1000, 6)]
        (hour,) = store.reader.summaries(*store.reader.series(), made.T0, made.T0 + 999, 3600)
    assert hour == (made.T0, 7, 0, 6, 21, 6)


def test_a_quarter_hour_has_a_limited_number_of_process_rows():
    def packed(rows: int) -> bytes:
        return zlib.compress(f"[{','.join(['{}'] * (rows - 1))}]".encode())

    assert len(series_reader._of_chunk(packed(250_000))) == 249_999
    with pytest.raises(ValueError, match="more than 250000 rows"):
        series_reader._of_chunk(packed(250_001))
