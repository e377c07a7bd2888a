"""The rows of a machine's file come to a central database in order, each once, under numbers of their own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise

import pytest

from wslgpud.metrics import MetricSpec
from wslgpud.model import Event, Level, StressResult, Transition
from wslgpud.store import LockedError, Reader, Store, replication, schema
from wslgpud.store.replication import Central, ReplicationSource
from wslgpud.store.upkeep import Upkeep
from wslgpud.words import Message

#: the first number of a second host's rows
SECOND = 1 << schema.ROW_BITS


@pytest.fixture
def server(file, settings, clock, made):
    """A central database, here a file like any other, in which another machine has the first numbers."""
    path = file.with_name("central.db")
    with Store(path, settings, host_name="other", clock=clock) as store:
        store.append(made.snapshot(made.T0, {made.RATIO: 0.5}))
        assert store.flush()
    return path


@pytest.fixture
def copy(file, server, settings, clock, made):
    """Return a function that copies what waits in the file, and returns up to which row it may be sealed there."""

    def copied(own=file, machine=""):
        ((run,),) = made.query(own, "SELECT max(id) FROM daemon_run")
        rows = {}
        source = ReplicationSource(str(own), "pc", machine, lambda: run, rows.__setitem__)
        central = Central(str(server), settings, source, "pc", clock.wall, once=True)
        assert central.writer.close(60)
        assert central.stats.error == ""
        assert source.waiting_ticks == 0
        source.close()
        return rows

    return copied


def warn(store, made, resource):
    change = Transition(made.T0, 1.0, resource, "r", Level.OK, Level.CRITICAL, Message("full soon"))
    return store.outbox.record(change, {"mail": {"text": resource}})


def append(store, made, seconds, urgent=True):
    for second in seconds:
        event = Event("x", made.T0 + second, str(second), {})
        values = {made.EVENTS: second, (made.BYTES, "x"): second % 7}
        store.append(made.snapshot(made.T0 + second, values, events=(event,)), urgent=urgent)
    assert store.flush()


def test_rows_of_each_kind_are_copied_in_order_with_references(copy, file, server, settings, clock, made, monkeypatch):
    monkeypatch.setattr(replication, "_AT_ONCE", 16)
    with Store(file, settings, host_name="pc", clock=clock) as store:
        append(store, made, range(35))
        changes = [warn(store, made, resource) for resource in "ab"]
        store.record_stress(StressResult(made.T0, "GPU-a", 0, "RTX", "passed"))
        store.learn("GPU-a", {"step": 0})
        for step in (1, 2):
            store.learn("ram", {"step": step})
        assert store.flush()
        ((last,),) = made.query(file, "SELECT max(id) FROM batch")

        assert copy() == {0: last}
        with Reader(str(server), "pc") as reader:
            assert made.read_all(reader, "made_events") == [(second, second) for second in range(35)]
            assert made.read_all(reader, "made_bytes") == [(second, second % 7) for second in range(35)]
            assert made.read_all(reader, "made_ratio") == [(0, 0.5)]
            assert [event.text for event in reader.events(0, 1e10)] == [str(second) for second in range(35)]
            assert [(n - SECOND, one.resource) for n, one in reader.transitions()] == [*zip(changes, "ab", strict=True)]
            sent = [(one.transition_id - SECOND, one.done_wall) for one in reader.deliveries(0, 1e10)]
            assert sent == [(number, None) for number in changes]
            assert reader.count_stress_runs() == 1
        assert made.query(server, "SELECT document FROM learned ORDER BY id") == [('{"step": 0}',), ('{"step": 2}',)]
        ((started, stopped),) = made.query(server, f"SELECT started_ms, stopped_ms FROM daemon_run WHERE id > {SECOND}")
        assert (started, stopped) == (made.T0 * 1000, None)
        ids = [number for (number,) in made.query(server, f"SELECT id FROM batch WHERE id > {SECOND} ORDER BY slot")]
        assert all(one < other for one, other in pairwise(ids))


def test_nothing_is_copied_twice_and_later_ends_are_copied_too(copy, file, server, settings, clock, made):
    def held():
        tables = ("batch", "event", "transition", "outbox", "daemon_run")
        return [made.query(server, f"SELECT count(*) FROM {name} WHERE id > {SECOND}")[0][0] for name in tables]

    with Store(file, settings, host_name="pc", clock=clock) as store:
        append(store, made, range(3))
        warn(store, made, "a")
        warn(store, made, "b")
        assert store.flush()
        copy()
        before = held()
        copy()
        assert held() == before == [3, 3, 2, 2, 1]

        clock.now += 5
        store.outbox.tried(store.outbox.unsent()[1].id, done=True)
    copy()
    with Reader(str(server), "pc") as reader:
        ended = [(one.payload["text"], one.done_wall) for one in reader.deliveries(0, 1e10)]
    assert ended == [("a", None), ("b", made.T0 + 5)]
    (run,) = made.query(server, f"SELECT stopped_ms, clean FROM daemon_run WHERE id > {SECOND}")
    assert run == ((made.T0 + 5) * 1000, 1)
    assert held() == before


def test_a_file_restored_from_backup_goes_on_after_the_last_copy(copy, file, server, settings, clock, made):
    restored = file.with_name("restored.db")
    with Store(file, settings, host_name="pc", clock=clock) as store:
        append(store, made, range(3))
        with closing(sqlite3.connect(restored)) as backup, closing(sqlite3.connect(file)) as source:
            source.backup(backup)
        append(store, made, range(3, 6))
        copy()
    clock.now += 60
    with Store(restored, settings, host_name="pc", clock=clock) as store:
        append(store, made, range(60, 63))
        copy(restored)
    with Reader(str(server), "pc") as reader:
        assert [second for second, _ in made.read_all(reader, "made_events")] == [0, 1, 2, 3, 4, 5, 60, 61, 62]


def test_the_rows_of_a_new_file_follow_those_of_the_old_one(copy, file, server, settings, clock, made):
    for number, begin in enumerate((0, 100)):
        own = file.with_name(f"own{number}.db")
        with Store(own, settings, host_name="pc", clock=clock) as store:
            append(store, made, range(begin, begin + 3))
            copy(own)
        clock.now += 1
    with Reader(str(server), "pc") as reader:
        assert [second for second, _ in made.read_all(reader, "made_events")] == [0, 1, 2, 100, 101, 102]


def test_a_metric_that_became_a_counter_is_one_there_too(copy, file, server, settings, clock, made):
    for kind in ("gauge", "counter"):
        with Store(file, settings, host_name="pc", clock=clock) as store:
            store.append(made.snapshot(clock.now, {MetricSpec("made_thing", kind, "", "A thing."): 1}), urgent=True)
            assert store.flush()
            copy()
        clock.now += 1
    with Reader(str(server), "pc") as reader:
        assert {ref.metric: kind for ref, kind in reader.kinds("made_thing").items()} == {"made_thing": "counter"}
        assert made.read_all(reader, "made_thing") == [(0, 1), (1, 1)]


def test_the_place_of_another_machine_is_not_taken(copy, file, server, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        append(store, made, range(3))
        copy(machine="one")
        copy(machine="one")
        source = ReplicationSource(str(file), "pc", "two", lambda: None, lambda *_: None)
        with Reader(str(server)).connected() as connection, pytest.raises(LockedError, match="WHERE name = 'pc'"):
            source.attach(connection, 1)


def test_waiting_ticks_are_counted_while_the_server_is_away(file, server, settings, clock, made, monkeypatch):
    monkeypatch.setattr(Upkeep, "__call__", lambda *_: False)
    for name, seconds in (("old", range(2)), ("pc", range(3))):
        with Store(file, settings, host_name=name, clock=clock) as store:
            append(store, made, seconds)
    for name, ticks in (("old", 2), ("pc", 3), ("nobody", 0)):
        source = ReplicationSource(str(file), name, "", lambda: None, lambda *_: None)
        assert source.waiting_ticks is None
        source.again()
        assert source.waiting_ticks == ticks
        source.close()
    ((run,),) = made.query(file, "SELECT max(id) FROM daemon_run")
    source = ReplicationSource(str(file), "pc", "", lambda: run, lambda *_: None)
    central = Central(str(server), settings, source, "pc", clock.wall, once=True)
    assert central.writer.close(60)
    assert source.waiting_ticks == 0
    with Store(file, settings, host_name="pc", clock=clock) as store:
        append(store, made, range(10, 14))
        source.again()
        assert source.waiting_ticks == 4
    source.close()


def test_leftovers_of_an_earlier_run_are_copied_exactly_once(copy, file, server, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        append(store, made, range(3))
        copy()
        append(store, made, range(3, 6))
    source = ReplicationSource(str(file), "pc", "", lambda: None, lambda *_: None)
    central = Central(str(server), settings, source, "pc", clock.wall, once=True)
    assert central.writer.close(60)
    source.close()
    clock.now += 60
    with Store(file, settings, host_name="pc", clock=clock) as store:
        append(store, made, [60])
        copy()
    with Reader(str(server), "pc") as reader:
        assert [second for second, _ in made.read_all(reader, "made_events")] == [*range(6), 60]


def test_what_ends_while_the_same_daemon_copies_ends_there_too(file, server, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        source = ReplicationSource(str(file), "pc", "", lambda: store._run_id, lambda *_: None)
        central = Central(str(server), settings, source, "pc", clock.wall, once=False)
        warn(store, made, "a")
        warn(store, made, "b")
        for done in (False, True):
            clock.now += 5
            store.outbox.tried(store.outbox.unsent()[0].id, done=done)
            assert store.flush()
            assert central.writer.flush(60)
        central.close()
    with Reader(str(server), "pc") as reader:
        ended = [(one.payload["text"], one.attempts, one.done_wall) for one in reader.deliveries(0, 1e10)]
    assert ended == [("a", 2, made.T0 + 10), ("b", 0, None)]


def test_what_a_server_cannot_take_is_kept_locally_and_counted(file, settings, clock, made):
    pytest.importorskip("psycopg")
    away = "postgresql+psycopg://me:secret@127.0.0.1:1/history"
    with Store(away, settings, host_name="pc", clock=clock, own_file=file) as store:
        append(store, made, range(3))
        assert made.read_all(store.reader, "made_events") == [(0, 0), (1, 1), (2, 2)]
        made.until(lambda: store.stats().replication_queue_ticks == 3)
        made.until(lambda: "127.0.0.1" in str(store.stats().error))
        assert "secret" not in str(store.stats().error)
        assert (store.stats().queue_ticks, store.stats().file_bytes) == (0, file.stat().st_size)
        assert store._buffer.sealable_row(0) == 0, "not before the server has it"


def test_a_history_in_a_file_is_copied_nowhere(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock, own_file=file.with_name("own.db")) as store:
        append(store, made, range(3))
        assert store.stats().replication_queue_ticks is None
        assert store._buffer.sealable_row(0) > 0
    assert made.query(file, "SELECT count(*) FROM event") == [(3,)]
    assert not file.with_name("own.db").exists()
