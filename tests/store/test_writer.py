"""When the thread that writes tries again, and what it tells of a database that it cannot write."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from wslgpud.config import StoreSettings
from wslgpud.store import engines, errors
from wslgpud.store.store_metrics import StoreStats
from wslgpud.store.writer import CHECKPOINT_PAGES, WriteBuffer, Writer


class Waits(threading.Condition):
    """Keeps how long the writer would wait each time, and ends it after so many times."""

    def __init__(self, writer, times):
        super().__init__()
        self.writer, self.times, self.seconds = writer, times, []

    def wait_for(self, _predicate, timeout=None):
        self.seconds.append(timeout)
        self.writer._stopping = len(self.seconds) == self.times
        return True


def tables(connection):
    """Create the tables of a newly opened database."""
    with connection.begin():
        engines.create(connection, "h.db")


@pytest.fixture
def writer(tmp_path, clock):
    """A writer that nobody has started."""
    settings, buffer = StoreSettings(commit_seconds=7.0), WriteBuffer(clock.wall)
    return Writer(tmp_path / "h.db", settings, buffer, StoreStats(), clock.wall, attach=tables)


def test_an_unwritable_database_is_retried_less_and_less_often(writer, caplog):
    caplog.set_level("INFO")
    failing, more = iter(range(6)), iter([True, True, False, False])

    def attach(connection):
        if next(failing, None) is not None:
            raise sqlite3.OperationalError("database is locked")
        tables(connection)

    writer._attach, writer.upkeep = attach, lambda *_: next(more)
    writer._wake = Waits(writer, times=11)
    writer._loop()

    assert writer._wake.seconds == [0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0, 0, 0, 7.0, 7.0]
    assert (writer._stats.write_errors_total, writer._stats.error) == (6, "")
    said = [(record.levelname, record.getMessage().rpartition(": ")[2]) for record in caplog.records]
    assert said == [("ERROR", "database is locked"), ("INFO", "written again")]
    assert writer.last_commit_mono is None, "there was no row"


def test_a_bug_in_upkeep_is_told_as_one_and_the_writing_goes_on(writer, caplog):
    def upkeep(*_):
        raise ValueError("odd")

    writer.upkeep, writer._wake = upkeep, Waits(writer, times=3)
    writer._loop()

    assert [record.getMessage() for record in caplog.records][:2] == [
        "please report this",
        "history is kept in memory: odd",
    ]
    assert (writer._wake.seconds, writer._stats.error) == ([0.0, 0.5, 1.0], "")


def test_the_log_is_copied_into_the_file_once_it_is_long(writer, tmp_path):
    connection = writer._open()
    begun = (tmp_path / "h.db").stat().st_size
    writer._log_grew(connection, CHECKPOINT_PAGES - 1)
    assert (tmp_path / "h.db").stat().st_size == begun
    writer._log_grew(connection, 1)
    assert (tmp_path / "h.db").stat().st_size > begun
    writer._close_connection()


def test_a_write_failure_is_logged_once_with_reason_and_remedy(writer, monkeypatch, caplog):
    monkeypatch.setattr(errors, "refusal", lambda path: (f"no room beside {path.name}", "free some space"))

    def told(text: str) -> tuple[str, int]:
        caplog.clear()
        writer._failed(sqlite3.OperationalError(text))
        assert all(str(writer._stats.error) in record.getMessage() for record in caplog.records)
        return str(writer._stats.error), len(caplog.records)

    assert [told("database is locked"), told("database is locked")] == [
        ("database is locked", 1),
        ("database is locked", 0),
    ]
    assert told("disk I/O error") == ("disk I/O error (no room beside h.db.lock); free some space", 1)
    assert writer._stats.set_aside == ""


def test_after_a_disk_error_the_file_is_checked(writer, clock):
    writer._open()
    writer._check._due_wall = clock.now + 60
    for text, soon in (("database is locked", False), ("disk I/O error", True)):
        writer._failed(sqlite3.OperationalError(text))
        assert (writer._check._due_wall == clock.now) is soon


@pytest.mark.parametrize(
    ("error", "damage"),
    [
        (sqlite3.OperationalError("database disk image is malformed"), True),
        (sqlite3.OperationalError("file is not a database"), True),
        (sqlite3.OperationalError("database or disk is full"), False),
        (sqlite3.OperationalError("h.db: is damaged (page 7)"), False),
        (errors.DamagedError("what the check found"), True),
        (errors.ForeignDatabaseError("this is not a database of ours"), False),
        (ValueError("malformed"), False),
    ],
)
def test_a_file_is_set_aside_for_damage_and_nothing_else(writer, error, damage):
    writer._failed(error)
    assert writer._damaged is damage


def test_real_damage_is_recognized_through_its_explanation(writer, tmp_path):
    (tmp_path / "h.db").write_bytes(b"no database" * 1000)
    with pytest.raises(errors.StoreError) as told, errors.explained(str(tmp_path / "h.db")):
        writer._open()
    writer._failed(told.value)
    assert writer._damaged
