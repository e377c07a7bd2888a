"""What can be read of a damaged file is taken over, whatever comes in between."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import create_engine

from wslgpud.store import Store, maintenance, schema, upkeep, writer


@pytest.fixture(autouse=True)
def _tries_again_soon(monkeypatch):
    monkeypatch.setattr(writer, "RETRY_SECONDS", (0.02,))
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)


def _append(store, made, seconds, clock):
    for second in seconds:
        clock.now = made.T0 + second
        store.append(made.snapshot(clock.now, {made.EVENTS: second * second % 97}))
    assert store.flush()


def _seconds(store, made):
    return [second for second, _ in made.read_all(store.reader, "made_events")]


def test_a_disk_that_is_full_in_the_middle_only_delays_it(file, settings, clock, made, monkeypatch):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        _append(store, made, range(2000), clock)
        made.settle(store, clock)
        real, refused = maintenance._copy_rows, []

        def copy(old, connection, table):
            if table.name == "chunk" and len(refused) < 2:
                refused.append(table)
                raise sqlite3.OperationalError("database or disk is full")
            real(old, connection, table)

        monkeypatch.setattr(maintenance, "_copy_rows", copy)
        store._writer.report_damage("found by hand", store._writer._inode)
        made.until(lambda: store.stats().set_aside)
        made.settle(store, clock)
        assert len(refused) == 2
        assert _seconds(store, made) == list(range(2000))


def test_the_newest_samples_stay_though_new_ones_come_before(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        _append(store, made, range(600), clock)
    made.damage(file, "sqlite_autoindex_host_1")
    with Store(file, settings, host_name="pc", clock=clock) as store:
        made.until(lambda: store.stats().set_aside)
        _append(store, made, range(600, 610), clock)
        made.settle(store, clock)
        assert _seconds(store, made) == list(range(610))


def test_a_row_that_makes_no_sense_any_more_costs_no_other(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        _append(store, made, range(2000), clock)
        made.settle(store, clock)
        with closing(sqlite3.connect(file)) as other, other:
            other.execute("DROP TABLE event")
            other.execute("CREATE TABLE event (id INTEGER PRIMARY KEY, ms, kind, text, fields)")
            rows = [(1, 0, "a", "x", "{}"), (2, "noise", "b", None, "{}"), (3, 0, "c", "x", "{}")]
            other.executemany("INSERT INTO event VALUES (?, ?, ?, ?, ?)", rows)
        store._writer.report_damage("found by hand", store._writer._inode)
        made.until(lambda: store.stats().set_aside)
        made.settle(store, clock)
        assert [event.kind for event in store.reader.events(0, 1e10)] == ["a", "c"]
        assert _seconds(store, made) == list(range(2000))


def test_nothing_is_sealed_twice_if_the_machine_row_is_lost(file, settings, clock, made):
    with Store(file, settings, host_name="pc", clock=clock) as store:
        _append(store, made, range(2000), clock)
        made.settle(store, clock)
    made.damage(file, "host")
    with Store(file, settings, host_name="pc", clock=clock) as store:
        made.until(lambda: store.stats().set_aside)
        _append(store, made, [3000], clock)
        made.settle(store, clock)
        (ref,) = store.reader.series()
        assert sum(b.n for b in store.reader.summaries(ref, made.T0, made.T0 + 3599, 60)) == 2001
        assert _seconds(store, made) == [*range(2000), 3000]


@pytest.mark.parametrize(("places", "lost_pages"), [((5,), 1), ((5, 8), 4)])
def test_rows_before_and_behind_the_unreadable_are_found(tmp_path, made, places, lost_pages):
    file = tmp_path / "old.db"
    engine, table = create_engine(f"sqlite:///{file}"), schema.event
    with engine.begin() as connection:
        table.create(connection)
        row = {"ms": 0, "kind": "x" * 50, "text": "", "fields": "{}"}
        connection.execute(table.insert(), [{**row, "id": number} for number in range(5000)])
    engine.dispose()
    pages = made.damage(file, table.name, *places)
    with closing(sqlite3.connect(file)) as old:
        old.row_factory = sqlite3.Row
        found = {row["id"] for row in maintenance._rows(old, table)}

    assert 2 <= 5000 - len(found) <= 5000 / pages * (lost_pages + 1)


def test_only_the_newest_file_set_aside_stays(file, clock, made):
    for wall in (1_790_035_200, 1_790_035_261):
        Store(file, host_name="pc").close()
        aside = maintenance.recover(file, wall)

    assert aside == file.with_name("wslgpud.db.damaged-20260922T000101Z")
    assert sorted(path.name for path in file.parent.iterdir() if path.name != "wslgpud.db.lock") == [
        "wslgpud.db",
        aside.name,
    ]
