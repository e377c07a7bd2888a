"""Copies and compactions need room, keep out of others' files, and keep no copy of a damaged history."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest

from wslgpud.store import Store, StoreError, maintenance, upkeep
from wslgpud.store.codec import Summary
from wslgpud.store.maintenance import Compaction, _as_its_owner, _holds, backup, compact, would_free


@pytest.fixture
def filled(file, settings, clock, made, monkeypatch):
    """A history of two sealed quarters of an hour, which no daemon writes any more."""
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for second in range(0, 2000, 10):
            clock.now = made.T0 + second
            store.append(made.snapshot(clock.now, {(made.BYTES, str(i)): second * i % 101 for i in range(6)}))
        made.settle(store, clock)
    return file


def test_compacting_frees_what_is_unused(filled):
    with closing(sqlite3.connect(filled)) as database, database:
        database.execute("CREATE TABLE more AS SELECT zeroblob(1000000)")
        database.execute("DROP TABLE more")
    size, free = would_free(str(filled))
    assert (size, free > 1_000_000) == (filled.stat().st_size, True)
    done = compact(str(filled))
    assert done == Compaction(filled.stat().st_size, size - filled.stat().st_size)
    assert done.free_bytes >= free


def test_a_damaged_history_is_not_copied_and_its_fault_is_named(filled, tmp_path):
    with closing(sqlite3.connect(filled)) as database, database:
        database.execute("PRAGMA writable_schema = ON")
        for column in ("started_ms", "clean"):
            another = f"replace(sql, '{column} INTEGER', '{column} TEXT')"
            database.execute(f"UPDATE sqlite_master SET sql = {another} WHERE name = 'daemon_run'")
    with closing(sqlite3.connect(filled)) as database:
        (first,), _ = database.execute("PRAGMA quick_check(3)")
    with pytest.raises(StoreError) as told:
        backup(str(filled), tmp_path / "copy.db", lambda *_: None)

    assert str(told.value) == f"{filled}: is damaged ({first}); no copy was kept"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.fixture
def taken(monkeypatch):
    """The rights that the process takes on, instead of taking them on."""
    steps = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getegid", lambda: 7)
    monkeypatch.setattr(os, "getgroups", lambda: [7, 8])
    for name in ("setgroups", "setegid", "seteuid"):
        monkeypatch.setattr(os, name, lambda given, name=name: steps.append((name, given)))
    return steps


def owned_by(user: int) -> SimpleNamespace:
    return SimpleNamespace(stat=lambda: SimpleNamespace(st_uid=user, st_gid=1001))


def test_root_acts_as_the_owner_of_a_file_and_then_as_root_again(taken):
    with _as_its_owner(owned_by(1000)):
        assert taken == [("setgroups", []), ("setegid", 1001), ("seteuid", 1000)]
        taken.clear()
    assert taken == [("seteuid", 0), ("setegid", 7), ("setgroups", [7, 8])]


@pytest.mark.parametrize(("user", "owner"), [(0, 0), (1000, 1000), (1000, 0)])
def test_only_root_acts_as_the_owner_of_another_users_file(taken, monkeypatch, user, owner):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with _as_its_owner(owned_by(owner)):
        pass
    assert taken == []


@pytest.mark.parametrize(
    ("kept", "holds"),
    [
        (Summary(2, 1, 5, 6, 5), True),
        (Summary(3, 0, 6, 9, 5), True),
        (Summary(1, 1, 5, 6, 5), False),
        (Summary(2, 2, 5, 6, 5), False),
        (Summary(2, 1, 4, 6, 5), False),
        (None, False),
    ],
)
def test_a_minute_may_hold_more_samples_than_its_chunk_not_fewer(kept, holds):
    assert _holds(kept, Summary(2, 1, 5, 6, 5)) is holds


def test_a_sample_without_its_minute_is_found(filled, monkeypatch):
    def findings():
        with maintenance.Reader(str(filled)) as reader:
            return [str(found) for found in maintenance.audit(reader, lambda *_: None)]

    def execute(statement):
        with closing(sqlite3.connect(filled)) as database, database:
            database.execute(statement)

    assert findings() == []
    newest = "SELECT max(part), max(series) FROM rollup_minute WHERE part = (SELECT max(part) FROM rollup_minute)"
    execute(f"DELETE FROM rollup_minute WHERE (part, series) = ({newest})")
    assert [found.partition(": ")[2] for found in findings()] == ["15 of its minutes do not match their samples"]
    execute("DELETE FROM rollup_minute")
    assert len(findings()) == 2
    monkeypatch.setattr(maintenance, "MAX_FINDINGS", 1)
    assert len(findings()) == 1
