"""The figures of the history about itself, and the pace of its upkeep."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from wslgpud.store import engines, wal
from wslgpud.store.errors import LostWriteError
from wslgpud.store.store_metrics import StoreStats, readings


def figures(**known):
    return {reading.spec.name: reading.value for reading in readings(StoreStats(**known))}


def test_what_is_not_known_is_no_figure_and_what_is_wrong_is_one():
    unknown = figures()
    assert (unknown["store_queue_ticks"], unknown["store_failing"], unknown["store_set_aside"]) == (0, 0, 0)
    assert not unknown.keys() & {"store_file_bytes", "store_check_findings", "store_replication_queue_ticks"}
    known = figures(error="full", set_aside="/x", check_findings=("a", "b"), last_commit_seconds=0.5, file_bytes=0)
    assert (known["store_failing"], known["store_set_aside"], known["store_check_findings"]) == (1, 1, 2)
    assert (known["store_commit_duration_seconds"], known["store_file_bytes"]) == (0.5, 0)


@pytest.mark.parametrize(
    ("findings", "aside", "damage"),
    [
        (None, "", ""),
        ((), "", ""),
        (("page 7", "page 8"), "", "page 7"),
        (("page 7",), "/x", "page 7"),
        (None, "/x", "damaged, and set aside as /x"),
        ((), "/x", ""),
    ],
)
def test_damage_is_told_until_a_later_check_finds_none(findings, aside, damage):
    assert str(StoreStats(check_findings=findings, set_aside=aside).damage) == damage


def test_the_history_size_is_that_of_its_file_if_there_is_one(tmp_path):
    (tmp_path / "h.db").write_bytes(bytes(5))
    assert [engines.size_of(path) for path in (tmp_path / "h.db", tmp_path / "none", None)] == [5, None, None]


@pytest.mark.parametrize(
    ("commits", "long"), [([0] * 255, False), ([0] * 256, True), ([255 * 4096 - 1], False), ([255 * 4096], True)]
)
def test_the_log_is_long_from_a_megabyte_until_checkpointed(tmp_path, commits, long):
    file = tmp_path / "h.db"
    log = wal.Wal(engines.writer_engine(str(file)).connect(), file)
    for row_bytes in commits:
        log.grew(row_bytes)

    assert (log.long, log.due) == (long, long)
    log.checkpoint()
    log.grew(254 * 4096)
    assert (log.long, log.due) == (False, False)
    log.grew(0)
    assert (log.long, log.due) == (True, True)
    log.close()


def test_on_a_server_every_commit_is_durable():
    assert wal.Wal(None, None).due
    assert wal.Wal(None, None).inode is None


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free some space"), (errno.EIO, "the disk fails"), (errno.EBADF, "")],
    ids=["full", "broken", "unknown"],
)
def test_the_lock_file_shows_why_the_disk_refuses_a_write(tmp_path, monkeypatch, number, remedy):
    lock = engines.lock_path(tmp_path / "h.db")
    assert [str(text) for text in wal.refusal(tmp_path / "h.db")] == ["No such file or directory", ""]
    lock.touch()
    assert wal.refusal(tmp_path / "h.db") == ("", "")

    def fail(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    why, what = map(str, wal.refusal(tmp_path / "h.db"))
    assert (why, what[: len(remedy) or 1]) == (os.strerror(number), remedy)
    assert lock.stat().st_size == 0


def test_after_a_failed_sync_all_of_the_log_reaches_the_file(tmp_path):
    file = tmp_path / "h.db"
    log = wal.Wal(engines.writer_engine(str(file)).connect(), file)
    log.connection.exec_driver_sql("CREATE TABLE t (x)")
    log.connection.commit()
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM t").fetchall()
        log.connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        log.connection.commit()
        log.connection.exec_driver_sql("PRAGMA busy_timeout = 1")
        log.connection.rollback()
        with pytest.raises(LostWriteError, match="a reader holds the log"):
            log.write_again()
    log.write_again()
    log.close()

    assert b"CREATE TABLE t" in file.read_bytes()


def test_bytes_written_are_what_the_kernel_counts_for_the_thread():
    counts = dict(line.split(": ") for line in Path("/proc/thread-self/io").read_text().splitlines())

    assert wal.written_bytes() == int(counts["write_bytes"])
