"""When the thread that writes tries again, and what it tells of a database that it cannot write."""

from __future__ import annotations

import sqlite3
import threading

from wslgpud.config import StoreSettings
from wslgpud.store import engines, wal
from wslgpud.store.errors import LostWriteError
from wslgpud.store.store_metrics import StoreStats
from wslgpud.store.write_buffer import WriteBuffer
from wslgpud.store.writer import Writer


class Waits(threading.Condition):
    """Keeps how long the writer would wait each time, and ends it after so many times."""

    def __init__(self, writer, times):
        super().__init__()
        self.writer, self.times, self.seconds = writer, times, []

    def wait_for(self, _predicate, timeout=None):
        self.seconds.append(timeout)
        self.writer._stopping = len(self.seconds) == self.times
        return True


def tables(connection, **_):
    """Create the tables of a newly opened database."""
    with connection.begin():
        engines.create(connection, "h.db")


def test_an_unwritable_database_is_retried_less_and_less_often(tmp_path, clock, caplog):
    caplog.set_level("INFO")
    failing = iter(range(6))

    def attach(connection, *, same_file):
        assert not same_file
        if next(failing, None) is not None:
            raise sqlite3.OperationalError("database is locked")
        tables(connection)

    more = iter([True, True, False, False])
    settings = StoreSettings(commit_seconds=7.0)
    writer = Writer(str(tmp_path / "h.db"), settings, WriteBuffer(), StoreStats(), clock.wall, attach=attach)
    writer._upkeep = lambda _: next(more)
    writer._wake = Waits(writer, times=11)
    writer._loop()

    assert writer._wake.seconds == [0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0, 0, 0, 7.0, 7.0]
    assert (writer._stats.write_errors_total, writer._stats.error) == (6, "")
    said = [(record.levelname, record.getMessage().rpartition(": ")[2]) for record in caplog.records]
    assert said == [("ERROR", "database is locked"), ("INFO", "written again")]
    assert writer.last_commit_mono is None, "there was no row"


def test_a_bug_in_upkeep_is_told_as_one_and_the_writing_goes_on(tmp_path, clock, caplog):
    def upkeep(_):
        raise ValueError("odd")

    writer = Writer(str(tmp_path / "h.db"), StoreSettings(), WriteBuffer(), StoreStats(), clock.wall, attach=tables)
    writer._upkeep = upkeep
    writer._wake = Waits(writer, times=3)
    writer._loop()

    assert [record.getMessage() for record in caplog.records][:2] == [
        "please report this",
        "history is kept in memory: odd",
    ]
    assert (writer._wake.seconds, writer._stats.error) == ([0.0, 0.5, 1.0], "")


def test_upkeep_is_synced_and_checkpointed_by_the_megabyte(tmp_path, clock, monkeypatch):
    writer = Writer(str(tmp_path / "h.db"), StoreSettings(), WriteBuffer(), StoreStats(), clock.wall, attach=tables)
    log = writer._open()
    calls = []
    writer._upkeep, writer._check = lambda _: False, lambda: calls.append("check")
    assert (writer._upkeep_slice(), writer._unsynced) == (False, False)
    assert calls.pop() == "check"
    writer._check = None
    monkeypatch.setattr(log, "sync", lambda: calls.append("sync"))
    writer._upkeep = lambda _: True
    assert all(writer._upkeep_slice() for _ in range(28))
    assert (calls, log.long, writer._unsynced) == ([], False, True)
    assert writer._upkeep_slice()
    assert (calls, log.long, writer._unsynced) == (["sync"], False, False)
    writer._close_connection()


def test_a_write_failure_is_logged_once_with_reason_and_remedy(tmp_path, clock, monkeypatch, caplog):
    target = str(tmp_path / "h.db")
    writer = Writer(target, StoreSettings(), WriteBuffer(), StoreStats(), clock.wall, attach=lambda *_, **__: None)
    monkeypatch.setattr(wal, "refusal", lambda path: (f"no room beside {path.name}", "free some space"))

    def told(error: Exception) -> tuple[str, int]:
        caplog.clear()
        writer._failed(error)
        assert all(str(writer._stats.error) in record.getMessage() for record in caplog.records)
        return str(writer._stats.error), len(caplog.records)

    locked, lost = (
        sqlite3.OperationalError("database is locked"),
        LostWriteError("h.db: the disk has lost written data"),
    )
    assert [told(locked), told(locked)] == [("database is locked", 1), ("database is locked", 0)]
    assert told(sqlite3.OperationalError("disk I/O error")) == (
        "disk I/O error (no room beside h.db); free some space",
        1,
    )
    assert told(lost)[0] == "h.db: the disk has lost written data (no room beside h.db); free some space"
    known = LostWriteError("h.db: the disk has lost written data (no room beside h.db)")
    assert told(known) == ("h.db: the disk has lost written data (no room beside h.db); free some space", 0)
    assert writer._stats.set_aside == ""


def test_after_a_disk_error_log_is_rewritten_and_file_checked(tmp_path, clock, monkeypatch):
    file, known, again = tmp_path / "h.db", [], []

    def attach(connection, *, same_file):
        known.append(same_file)
        tables(connection)

    writer = Writer(str(file), StoreSettings(), WriteBuffer(), StoreStats(), clock.wall, attach=attach)
    monkeypatch.setattr(wal.Wal, "write_again", lambda _: again.append("again"))

    def opened_after(said: str) -> tuple[list[bool], int, bool]:
        known.clear()
        again.clear()
        writer._check._due_wall = clock.now + 60
        writer._failed(sqlite3.OperationalError(said))
        writer._open()
        assert writer._open() is writer._open()
        return known, len(again), writer._check._due_wall == clock.now

    writer._open()
    assert known == [False]
    assert opened_after("database is locked") == ([True], 0, False)
    assert opened_after("disk I/O error") == ([True], 1, True)
    assert opened_after("database is locked") == ([True], 0, False)
    file.rename(tmp_path / "other.db")
    assert opened_after("disk I/O error") == ([False], 0, True)
    writer._close_connection()
