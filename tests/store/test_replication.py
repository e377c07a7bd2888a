"""A central database that is away costs nothing but delay: rows wait in the machine's own file, and follow in order."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from wslgpud.advise.doctor.checking import Evidence
from wslgpud.advise.doctor.checks_machine import replication
from wslgpud.config import Config, StoreSettings
from wslgpud.host import Host
from wslgpud.model import Event, Level, ProcessSample, Transition
from wslgpud.store import Reader, Store, upkeep, writer
from wslgpud.words import Message

pytestmark = pytest.mark.servers


@pytest.fixture(autouse=True)
def _tries_again_soon(monkeypatch):
    monkeypatch.setattr(writer, "RETRY_SECONDS", (0.02,))
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)


@pytest.fixture
def away(postgresql, server_target):
    """Return a function that takes the database away from everybody, and gives it back."""
    name = server_target.rpartition("/")[2]
    engine = create_engine(f"{postgresql}/postgres", isolation_level="AUTOCOMMIT", poolclass=NullPool)

    def turn(on):
        with engine.connect() as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {not on}")
            if on:
                connection.exec_driver_sql(
                    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
                )

    yield turn
    turn(False)


@pytest.fixture
def begun(file, settings, clock, server_target):
    """Return a function that opens the machine's own file with a copy on the server."""

    def go_on(own_file=file, machine_id="", name="pc"):
        return Store(server_target, settings, host_name=name, clock=clock, own_file=own_file, machine_id=machine_id)

    return go_on


def _configured(path):
    return replace(Config(), store=StoreSettings(path=path))


def _append(store, made, clock, seconds):
    for second in seconds:
        clock.now = made.T0 + second
        event = (Event("x", clock.now, str(second), {}),) if second % 100 == 0 else ()
        process = (ProcessSample(42, 1, "python", 2**30, 0),) if second % 50 == 0 else ()
        values = {made.EVENTS: second, (made.BYTES, "x"): second % 7}
        store.append(made.snapshot(clock.now, values, events=event, processes=process))


def _warn(store, made, resource):
    change = Transition(made.T0, 1.0, resource, "r", Level.OK, Level.CRITICAL, Message("full soon"))
    return store.outbox.record(change, {"mail": {"text": resource}})


def test_samples_taken_during_a_server_outage_follow_in_order(begun, away, file, clock, made, server_target):
    with begun() as store:
        _append(store, made, clock, range(1000))
        _warn(store, made, "a")
        made.copied(store)
        away(True)
        _append(store, made, clock, range(1000, 3000))
        _warn(store, made, "b")
        made.until(lambda: store.stats().error or store._replication.wake())
        assert store.flush()
        made.until(lambda: store.stats().replication_queue_ticks == 2000 or store._replication.wake())
        assert store.stats().queue_ticks == 0, "nothing waits in memory"
        made.until(lambda: store.flush() and store.reader.unsealed()[0] == 2100)  # a quarter of an hour is sealed
        found = replication(Evidence(Host(), _configured(server_target), None, str(file.parent)))
        assert (found.state, found.found.facts["count"]) == ("problem", 2100), "with those of the quarter under way"
        store.outbox.tried(store.outbox.unsent()[0].id, done=True)
    with begun() as store:  # started while the server is away
        _append(store, made, clock, range(3000, 3500))
        assert store.flush()
        assert made.read_all(store.reader, "made_events") == [(s, s) for s in range(3500)], "it is read meanwhile"
        away(False)
        made.copied(store)
        assert store.stats().error == ""
        with Reader(server_target, "pc") as reader:
            assert made.read_all(reader, "made_events") == [(s, s) for s in range(3500)]
            (ref,) = reader.series("made_bytes")
            buckets = reader.summaries(ref, made.T0, made.T0 + 3600, 900)
            assert [b.n for b in buckets] == [900, 900, 900, 800]
            assert [event.text for event in reader.events(0, 1e10, "x")] == [str(s) for s in range(0, 3500, 100)]
            assert len(reader.processes(0, 1e10)) == 70
            assert [row.resource for _, row in reader.transitions()] == ["a", "b"]
            deliveries = {d.payload["text"]: d.done_wall is not None for d in reader.deliveries(0, 1e10)}
            assert deliveries == {"a": True, "b": False}


def test_the_replication_backlog_is_bounded_and_leaves_no_gaps(away, file, settings, clock, made, server_target):
    limit, noise = 600_000, random.Random(1)
    with Store(server_target, replace(settings, max_bytes=limit), host_name="pc", clock=clock, own_file=file) as store:
        _append(store, made, clock, range(100))
        made.copied(store)
        away(True)
        for second in range(100, 6000):
            clock.now = made.T0 + second
            values = {made.EVENTS: second} | {(made.BYTES, str(i)): noise.getrandbits(50) for i in range(20)}
            store.append(made.snapshot(clock.now, values))
            if second % 100 == 99:
                assert store.flush()
        made.settle(store, clock)
        assert store.stats().file_bytes < 1.3 * limit
        away(False)
        made.copied(store)
    with Reader(server_target, "pc") as reader:
        seconds = [round(second) for second, _ in made.read_all(reader, "made_events")]
    assert seconds[:100] == [*range(100)]
    assert seconds[100:] == [*range(6100 - len(seconds), 6000)]
    assert 100 < len(seconds) < 4000


KILLED = """
import os, sys
from pathlib import Path
from tests.store import made
from wslgpud.config import StoreSettings
from wslgpud.store import Store, upkeep, writer

writer.RETRY_SECONDS = (0.02,)
upkeep.INTERVAL_SECONDS = 0.0
file, central, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
settings = StoreSettings(commit_seconds=0.01, raw_days=3650)
store = Store(central, settings, host_name="pc", own_file=Path(file))
for second in range(first, 10**6):
    store.append(made.snapshot(made.T0 + second, {made.EVENTS: second}))
    if second % 10 == 9:
        assert store.flush()
        os.write(1, f"{second}\\n".encode())
"""


def test_kill_9_neither_doubles_nor_loses_what_was_on_the_disk(begun, file, clock, made, server_target):
    first = 0
    for lines in (3, 40, 90, 17):
        command = [sys.executable, "-c", KILLED, file, server_target, str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as child:
            for _ in range(lines):
                last = int(child.stdout.readline())
            os.kill(child.pid, signal.SIGKILL)
        first = last + 10_000  # more than it may have written since
    with begun() as store:
        made.until(lambda: not store.stats().error)
        made.copied(store)
        here = made.read_all(store.reader, "made_events")
        with Reader(server_target, "pc") as reader:
            assert made.read_all(reader, "made_events") == here
    assert len(here) >= 1400


def test_a_restored_backup_neither_overwrites_nor_duplicates(begun, file, clock, made, server_target, tmp_path):
    with begun() as store:
        _append(store, made, clock, range(500))
        made.copied(store)
    shutil.copy(file, tmp_path / "backup.db")
    with begun() as store:
        _append(store, made, clock, range(1000, 1500))
        made.copied(store)
    shutil.copy(tmp_path / "backup.db", file)
    with begun() as store:
        _append(store, made, clock, range(2000, 2300))
        made.copied(store)
    with Reader(server_target, "pc") as reader:
        seconds = [*range(500), *range(1000, 1500), *range(2000, 2300)]
        assert made.read_all(reader, "made_events") == [(s, s) for s in seconds]


def test_a_file_begun_anew_goes_on_behind_what_the_server_has(begun, file, clock, made, server_target):
    with begun() as store:
        _append(store, made, clock, range(100))
        made.copied(store)
    for path in file.parent.glob("wslgpud.db*"):
        path.unlink()
    with begun() as store:
        store.append(made.snapshot(made.T0 + 150, {made.RATIO: 0.5}))  # series come in another order
        _append(store, made, clock, range(200, 300))
        made.copied(store)
    with Reader(server_target, "pc") as reader:
        assert made.read_all(reader, "made_events") == [(s, s) for s in (*range(100), *range(200, 300))]
        assert made.read_all(reader, "made_ratio") == [(150, 0.5)]
        assert len(reader.series()) == 3


def test_a_clone_waits_for_the_original_and_overwrites_nothing(begun, file, clock, made, server_target, tmp_path):
    copy = tmp_path / "clone" / "wslgpud.db"
    copy.parent.mkdir()
    with begun() as store:
        _append(store, made, clock, range(0, 200, 2))
        made.copied(store)
    shutil.copy(file, copy)
    with begun() as store:
        _append(store, made, clock, range(1000, 1100, 2))
        with begun(copy) as clone:
            _append(clone, made, clock, range(1001, 1301, 2))
            made.until(lambda: "another wslgpud writes for the host pc" in str(clone.stats().error))
            made.copied(store)
            assert clone.flush()
            made.until(lambda: clone.stats().replication_queue_ticks >= 150)
            assert store.close()
            made.until(lambda: not clone.stats().error)
            made.copied(clone)
    with Reader(server_target, "pc") as reader:
        both = [*range(0, 200, 2), *sorted([*range(1000, 1100, 2), *range(1001, 1301, 2)])]
        assert made.read_all(reader, "made_events") == [(s, s) for s in both]


def test_another_machine_of_the_same_name_needs_explicit_consent(begun, clock, made, server_target, tmp_path):
    with begun(machine_id="a") as store:
        _append(store, made, clock, range(10))
        made.copied(store)
    with begun(tmp_path / "other.db", machine_id="b") as store:
        _append(store, made, clock, range(20, 30))
        made.until(lambda: "holds another machine named pc" in str(store.stats().error))
        with Reader(server_target, "pc") as reader:
            assert made.read_all(reader, "made_events") == [(s, s) for s in range(10)]
        run_in(server_target, str(store.stats().error).partition("that one: ")[2].partition("(")[0])
        made.until(lambda: not store.stats().error)
        made.copied(store)
        with Reader(server_target, "pc") as reader:
            assert made.read_all(reader, "made_events") == [(s, s) for s in (*range(10), *range(20, 30))]


def test_a_renamed_machines_backlog_goes_under_the_new_name(begun, away, clock, made, server_target):
    with begun(name="old", machine_id="a") as store:
        _append(store, made, clock, range(10))
        made.copied(store)
    clock.now += 1
    with begun(name="old", machine_id="a") as store:
        away(True)
        _append(store, made, clock, range(1000, 2000))
        assert store.flush()
    with begun(name="new", machine_id="a") as store:
        _append(store, made, clock, range(3000, 4000))
        assert store.flush()
        away(False)
        made.copied(store)
        with Reader(server_target) as reader:
            found = {ref.host: made.read_all(reader, f"*{ref}") for ref in reader.series("made_events")}
            values = {ref.host: [p.value for p in reader.read(ref, 0, 1e10)] for ref in reader.series("made_events")}
    assert found.keys() == {"old", "new"}
    assert values["old"] == [*range(10)]
    assert values["new"][-2000:] == [*range(1000, 2000), *range(3000, 4000)]


def test_nothing_is_sealed_before_the_server_has_it(begun, away, clock, made):
    with begun() as store:
        _append(store, made, clock, range(10))
        made.copied(store)
        away(True)
        _append(store, made, clock, range(10, 2000))
        assert store.flush()
    with begun() as store:
        for _ in range(3):  # the upkeep comes between
            assert store.flush()
        assert store.reader.unsealed()[0] == 2000, "the server lacks nearly all"
        away(False)
        made.copied(store)
        made.until(lambda: store.flush() and store.reader.unsealed()[0] < 900)


def test_a_machine_never_opens_a_second_connection_for_checks(begun, clock, file, made, server_target, monkeypatch):
    """A fleet would do it at the same hour; a server is its administrator's to check."""
    checked = []

    def reader(target):
        checked.append(target)
        return Reader(target)

    with begun() as store:
        _append(store, made, clock, range(2))
        monkeypatch.setattr(upkeep, "Reader", reader)
        clock.now += upkeep.FIRST_CHECK_SECONDS
        for seconds in (2000, 2001):
            _append(store, made, clock, [seconds])
            made.copied(store)
        made.until(lambda: store.flush() and checked)

    assert checked == [str(file)]


def test_after_a_restart_the_server_learns_of_every_sent_message(begun, clock, made, server_target):
    with begun() as store:
        for number in range(1201):
            _warn(store, made, str(number))
        made.copied(store)
    with begun() as store:
        waited, *rest = store.outbox.unsent()
        for delivery in rest:
            store.outbox.tried(delivery.id, done=True)
        made.copied(store)
        with Reader(server_target, "pc") as reader:
            waiting = [d.payload["text"] for d in reader.deliveries(0, 1e10) if d.done_wall is None]
    assert waiting == [waited.payload["text"]]


def test_a_deleted_old_message_does_not_hide_later_ones(begun, file, clock, made, server_target, monkeypatch):
    monkeypatch.setattr("wslgpud.store.replication._AT_ONCE", 10)
    with begun() as store:
        for number in range(30):
            _warn(store, made, str(number))
        made.copied(store)
    with sqlite3.connect(file) as connection:
        connection.execute("DELETE FROM outbox WHERE id NOT IN (SELECT max(id) FROM outbox)")
    with begun() as store:
        (last,) = store.outbox.unsent()
        store.outbox.tried(last.id, done=True)
        with Reader(server_target, "pc") as reader:

            def sent():
                made.copied(store)
                return [d.payload for d in reader.deliveries(0, 1e10) if d.done_wall is not None]

            made.until(lambda: sent() == [last.payload], 20)


def test_a_wall_clock_that_goes_back_loses_and_doubles_nothing(begun, clock, made, server_target):
    seconds = [*range(3600, 5400), *range(900)]
    with begun() as store:
        _append(store, made, clock, seconds)
        made.copied(store)
    with Reader(server_target, "pc") as reader:
        assert made.read_all(reader, "made_events") == [(s, s) for s in sorted(seconds)]


def run_in(target, statement):
    with create_engine(target, isolation_level="AUTOCOMMIT", poolclass=NullPool).connect() as connection:
        connection.exec_driver_sql(statement)
