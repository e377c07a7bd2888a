"""Whatever happens to the file, the daemon keeps running, says so, and writes again when it can."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from wslgpud.model import Event, Level, StressResult, Transition
from wslgpud.store import Reader, Store, StoreError, engines, maintenance, store_metrics, upkeep, writer
from wslgpud.words import Message

DESCRIPTORS = Path("/proc/self/fd")


@pytest.fixture(autouse=True)
def _tries_again_soon(monkeypatch):
    monkeypatch.setattr(writer, "RETRY_SECONDS", (0.02,))
    monkeypatch.setattr(engines, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)


@pytest.fixture
def opened(file, settings, clock):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        yield store


def _append(store, made, seconds, clock, urgent=True):
    for second in seconds:
        clock.now = made.T0 + second
        store.append(made.snapshot(clock.now, {made.EVENTS: second}), urgent=urgent)


def _seconds(store, made):
    return [value for _, value in made.read_all(store.reader, "made_events")]


def _check(file):
    with closing(sqlite3.connect(file)) as database:
        return database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_samples_wait_in_memory_while_the_file_is_locked(opened, file, clock, made):
    descriptors = len(list(DESCRIPTORS.iterdir()))
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        _append(opened, made, range(20), clock)
        made.until(lambda: "held by another process" in str(opened.stats().error))
        assert opened.stats().queue_ticks == 20
        assert 20 * 50 < opened.stats().queue_bytes < 20 * 5000, "about what they take in memory"
        transition = Transition(made.T0, 1.0, "ram", "r", Level.OK, Level.CRITICAL, Message("full soon"))
        opened.outbox.record(transition, {"command": {"text": "full"}})
        assert len(opened.outbox.unsent("command")) == 1, "an alert does not wait for the disk"
        made.until(lambda: opened.stats().write_errors_total > 20)
        assert len(list(DESCRIPTORS.iterdir())) <= descriptors + 10, "each attempt closes what it opened"
        other.execute("COMMIT")
    assert opened.flush()
    assert opened.stats().queue_ticks == 0
    assert opened.stats().error == ""
    assert opened.stats().write_errors_total > 0
    assert _seconds(opened, made) == list(range(20))
    assert len(opened.reader.transitions()) == 1


def test_waiting_for_a_commit_does_not_hold_up_the_next_one(opened, file, clock, made, monkeypatch):
    monkeypatch.setattr(writer, "RETRY_SECONDS", (3600.0,))
    with closing(sqlite3.connect(file, isolation_level=None)) as other, ThreadPoolExecutor() as pool:
        other.execute("BEGIN IMMEDIATE")
        _append(opened, made, [0], clock, urgent=False)
        waiting = pool.submit(opened.flush)
        made.until(lambda: opened.stats().error)
        other.execute("COMMIT")
        _append(opened, made, [1], clock)
        made.until(lambda: opened.stats().queue_ticks == 0)
        assert waiting.result()


def test_failed_upkeep_is_retried_as_soon_as_a_failed_commit(file, settings, clock, made, monkeypatch):
    calls = []

    def fails_once(self, connection, host):
        calls.append(connection)
        if len(calls) == 1:
            raise sqlite3.OperationalError("disk I/O error")
        return slice_of_upkeep(self, connection, host)

    slice_of_upkeep = upkeep.Upkeep.__call__
    monkeypatch.setattr(upkeep.Upkeep, "__call__", fails_once)
    with Store(file, replace(settings, commit_seconds=3600.0), host_name="pc", clock=clock) as store:
        made.until(lambda: len(calls) > 1)
        made.until(lambda: not store.stats().error)
        assert store.stats().write_errors_total == 1


def test_what_no_longer_fits_into_memory_is_counted_kind_by_kind(opened, file, made, monkeypatch):
    monkeypatch.setattr(opened._buffer, "_max_bytes", 5000)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for second in range(7):
            opened.append(made.snapshot(made.T0, events=(Event("clock_jump", made.T0, str(second), {}),)))
        for second in range(8):
            opened.outbox.post("command", {"text": str(second)})
        told = {reading.spec.name: reading.value for reading in store_metrics.readings(opened.stats())}
        assert told["store_dropped_records"] == 7 + 2, "events first"
        assert told["store_dropped_ticks"] == 0
        other.execute("COMMIT")


def test_a_deleted_file_is_begun_anew(opened, file, clock, made):
    _append(opened, made, range(10), clock)
    assert opened.flush()
    for name in file.parent.glob("wslgpud.db*"):
        name.unlink()
    _append(opened, made, range(10, 20), clock)
    assert opened.flush()
    assert _check(file)
    assert _seconds(opened, made) == list(range(10, 20))


def test_a_file_replaced_by_an_older_copy_is_taken_as_it_is(opened, file, clock, made, tmp_path):
    _append(opened, made, range(5), clock)
    assert opened.flush()
    with closing(sqlite3.connect(file)) as database:
        database.execute("VACUUM INTO ?", (str(tmp_path / "backup.db"),))
    # in the copy the same number means another series
    with closing(sqlite3.connect(tmp_path / "backup.db")) as database, database:
        database.execute("UPDATE series SET metric = 'made_other' WHERE metric = 'made_events'")
    _append(opened, made, range(5, 10), clock)
    assert opened.flush()
    shutil.move(tmp_path / "backup.db", file)
    _append(opened, made, range(10, 15), clock)
    assert opened.flush()
    assert _check(file)
    assert [v for _, v in made.read_all(opened.reader, "made_other")] == list(range(5))
    assert _seconds(opened, made) == list(range(10, 15))


def test_series_in_a_swapped_smaller_file_get_distinct_numbers(opened, file, clock, made, tmp_path):
    with Store(tmp_path / "other.db", host_name="pc", clock=clock) as other:
        other.append(made.snapshot(made.T0, {made.RATIO: 0.5}))
    keys = [(made.BYTES, name) for name in "abc"]
    opened.append(made.snapshot(made.T0, dict.fromkeys(keys, 1)))
    assert opened.flush()
    shutil.move(tmp_path / "other.db", file)
    opened.append(made.snapshot(made.T0 + 1, {key: value for value, key in enumerate(keys)}))
    assert opened.flush()
    assert [str(ref) for ref in opened.reader.series()] == [*(f'made_bytes{{kind="{n}"}}' for n in "abc"), "made_ratio"]
    assert made.read_all(opened.reader) == [(1, 0), (1, 1), (1, 2), (0, 0.5)]


def test_an_event_that_mentions_damage_condemns_no_sound_file(opened, file, made):
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("CREATE TRIGGER no BEFORE INSERT ON event BEGIN SELECT RAISE(FAIL, 'no'); END")
    event = Event("printer", made.T0, "the printer is damaged", {})
    opened.append(made.snapshot(made.T0, {made.EVENTS: 1}, events=(event,)), urgent=True)
    made.until(lambda: opened.stats().write_errors_total)
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("DROP TRIGGER no")
    assert opened.flush()
    assert opened.stats().set_aside == ""


def test_each_attempt_that_fails_is_counted_once(opened, file, made, monkeypatch):
    monkeypatch.setattr(writer, "RETRY_SECONDS", (3600.0,))
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("CREATE TRIGGER no BEFORE INSERT ON event BEGIN SELECT RAISE(FAIL, 'no'); END")
    opened.append(made.snapshot(made.T0, {made.EVENTS: 1}, events=(Event("x", made.T0, "x", {}),)), urgent=True)
    made.until(lambda: opened.stats().error)

    assert opened.stats().write_errors_total == 1


def test_foreign_text_that_no_database_takes_stops_nothing(opened, made):
    """A worker's JSON may hold half a surrogate pair."""
    run = StressResult(made.T0, "GPU-a", 0, "RTX", "passed", key={"torch": "2.9\ud800"})
    opened.record_stress(run)
    made.until(lambda: opened.flush(1) or opened.stats().error)
    assert opened.stats().error == ""
    ((_, kept),) = opened.reader.stress_runs()
    assert kept.key == {"torch": "2.9?"}


@pytest.mark.slow
@pytest.mark.parametrize("table", ["chunk", "batch", "rollup_minute"])
def test_a_damaged_file_is_set_aside_and_its_sound_part_is_saved(file, settings, clock, made, table):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second in range(8000):
            clock.now = made.T0 + second
            values = {(made.BYTES, str(i)): second * i * 7919 % 10007 for i in range(40)}
            store.append(made.snapshot(clock.now, values))
        made.settle(store, clock)
        before = made.read_all(store.reader, '*"7"*')
        store.outbox.record(
            Transition(made.T0, 1.0, "ram", "r", Level.OK, Level.INFO, Message("x")), {"mail": {"text": "x"}}
        )
    pages = made.damage(file, table)
    assert pages >= 2
    with Store(file, settings, host_name="pc", clock=clock) as store:
        with suppress(StoreError):  # the writer was the first to read it, and moves it away meanwhile
            for problem in store.reader.check()[:1]:
                store._writer.report_damage(problem, store.reader.identity)
        made.until(lambda: store.stats().set_aside)
        _append(store, made, range(8001, 8010), clock)
        made.settle(store, clock)
        after = made.read_all(store.reader, '*"7"*')
        assert _seconds(store, made) == list(range(8001, 8010))
        assert [d.channel for d in store.outbox.unsent()] == ["mail"]
        assert len(store.reader.transitions()) == 1
    assert _check(file)
    assert set(after) <= set(before)
    lost = len(before) - len(after)
    assert lost <= {"chunk": 7 * 900, "batch": 60, "rollup_minute": 0}[table], "at most seven chunks begin on a page"
    assert len(list(file.parent.glob("wslgpud.db.damaged-*Z"))) == 1


def _child(file, body):
    """Run ``body`` in a process of its own with an open ``store``; return what it prints."""
    program = f"""
import resource, sys, time
sys.path[:0] = {sys.path!r}
from wslgpud.store import Store, writer
from wslgpud.config import StoreSettings
from wslgpud.metrics import MetricSpec
from wslgpud.model import *
writer.RETRY_SECONDS = (0.02,)
SPEC = MetricSpec("made_events", "counter", "", "A counter.")
def append(seconds):
    for second in seconds:
        sample = Sample((Reading(SPEC, second), *(Reading(SPEC, second * i) for i in range(5))))
        store.append(Snapshot(1.8e9 + second, second, 1, (SourceReport("a", "ok", sample, second, 0.1),)))
store = Store({str(file)!r}, StoreSettings(raw_days=3650), host_name="pc")
{body}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_writes_that_the_system_refuses_lose_nothing(file):
    """A limit on the size of files makes real writes fail, as a quota or a broken disk would."""
    said = _child(
        file,
        """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
append(range(10))
assert store.flush()
# Less than one page: a log that is long already can be written anew up to its length.
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, resource.RLIM_INFINITY))
append(range(10, 400))
assert not store.flush(1)
while not (stats := store.stats()).error:
    time.sleep(0.01)
assert stats.error and stats.write_errors_total and stats.queue_ticks >= 390, stats
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert store.flush()
values = [p.value for p in store.reader.read(store.reader.series()[0], 0, 2e9)]
print(store.stats().error == "", values == [4 * i for i in range(400)])
assert store.close()
""",
    )
    assert said == "True True\n"
    assert _check(file)


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 2 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_loses_nothing_that_fits_into_memory(small_disk, settings, clock, made):
    file = small_disk / "wslgpud.db"
    with Store(file, settings, host_name="pc", clock=clock) as store:
        _append(store, made, range(10), clock)
        assert store.flush()
        with closing(sqlite3.connect(file)) as other:  # a log that is long already has room in itself
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ballast = small_disk / "ballast"
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(b"x" * 4_000_000)
        _append(store, made, range(10, 2000), clock, urgent=False)
        assert not store.flush(0.5)
        made.until(lambda: store.stats().error)
        assert "full" in str(store.stats().error) or "I/O" in str(store.stats().error)
        assert store.stats().queue_ticks > 1900
        ballast.unlink()
        assert store.flush()
        assert store.stats().error == ""
        assert _seconds(store, made) == list(range(2000))
    assert _check(file)


def test_a_damaged_file_waits_for_room_without_filling_the_disk(small_disk, settings, clock, made):
    file, ballast = small_disk / "wslgpud.db", small_disk / "ballast"
    with Store(file, settings, host_name="pc", clock=clock) as store:
        _append(store, made, range(10), clock)
        assert store.flush()
        ballast.write_bytes(bytes(2_000_000 - sum(f.stat().st_size for f in small_disk.iterdir())))
        store._writer.report_damage("found by hand", store._writer._inode)
        made.until(lambda: store.stats().write_errors_total > 2)
        assert "must be free to recover it" in str(store.stats().error)
        assert not [*small_disk.glob("*.recovering*")]
        ballast.unlink()
        made.until(lambda: store.stats().set_aside)
        assert store.flush()
        assert _seconds(store, made) == list(range(10))
    assert _check(file)


def test_a_damaged_file_without_room_may_be_deleted(opened, file, clock, made, monkeypatch):
    monkeypatch.setattr(maintenance.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    opened._writer.report_damage("found by hand", opened._writer._inode)
    made.until(lambda: "must be free to recover it" in str(opened.stats().error))
    file.unlink()
    _append(opened, made, [7], clock)
    assert opened.flush()
    assert _seconds(opened, made) == [7]
    assert not opened.stats().set_aside


def test_a_locked_file_does_not_keep_the_daemon_from_starting(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        _append(store, made, range(5), clock)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with Store(file, settings, host_name="pc", clock=clock) as store:
            assert "held by another process" in str(store.stats().error)
            _append(store, made, range(5, 10), clock)
            other.execute("COMMIT")
            assert store.flush()
            assert _seconds(store, made) == list(range(10))


def test_alerts_recorded_beside_a_locked_file_replace_no_others(file, settings, clock, made):
    def warn(store, resources):
        for resource in resources:
            change = Transition(made.T0, 1.0, resource, "r", Level.OK, Level.CRITICAL, Message("full soon"))
            store.outbox.record(change, {"mail": {}})
            store.outbox.tried(store.outbox.unsent()[-1].id, f"no route for {resource}", done=False)

    with Store(file, settings, host_name="pc", clock=clock) as store:
        warn(store, "abc")
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with Store(file, settings, host_name="pc", clock=clock) as store:
            store.learn("ram", {})
            warn(store, "def")
            other.execute("COMMIT")
            assert store.flush()
    with Store(file, settings, host_name="pc", clock=clock) as store:
        assert [row.resource for _, row in store.reader.transitions()] == list("abcdef")
        assert [d.error for d in store.outbox.unsent()] == [f"no route for {name}" for name in "abcdef"]
        assert [d.transition_id for d in store.outbox.unsent()] == [number for number, _ in store.reader.transitions()]


def test_a_damaged_block_leaves_a_gap_and_not_an_error(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second in range(1900):
            clock.now = made.T0 + second
            store.append(made.snapshot(clock.now, {made.EVENTS: second * second % 97}))
        made.settle(store, clock)
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("UPDATE chunk SET data = x'01' WHERE id = (SELECT min(id) FROM chunk)")
        assert [s for s, _ in made.read_all(store.reader)] == list(range(900, 1900))


def test_a_file_with_a_destroyed_beginning_is_set_aside(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        _append(store, made, range(5), clock)
    with file.open("r+b") as raw:
        raw.write(b"\xa5" * 4096)
    with Store(file, settings, host_name="pc", clock=clock) as store:
        _append(store, made, range(5, 10), clock)
        assert store.flush()
        assert _seconds(store, made) == list(range(5, 10))
    assert len(list(file.parent.glob("wslgpud.db.damaged-*Z"))) == 1


def test_a_page_found_damaged_in_a_read_is_reported_in_one_line(file, settings, clock, made):
    filling = b"\xa7" * 20_000
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second in range(2800):
            clock.now = made.T0 + second
            store.append(made.snapshot(clock.now, {made.EVENTS: second * second % 97}))
        made.settle(store, clock)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE chunk SET data = CAST(data || ? AS BLOB)", (filling,))
        assert database.execute("SELECT count(*) FROM chunk").fetchone() == (3,)
    whole = file.read_bytes()
    pages = [whole[i : i + 4096] for i in range(0, len(whole), 4096)]
    # such a page begins with the number of the next
    last = max(i for i, page in enumerate(pages) if page[4:] == filling[:4092] and page[:4] != bytes(4))
    pages[last] = b"\xff" * 4 + pages[last][4:]
    file.write_bytes(b"".join(pages))
    with Reader(str(file)) as reader, pytest.raises(StoreError, match=r"is damaged .*malformed"):
        made.read_all(reader)
