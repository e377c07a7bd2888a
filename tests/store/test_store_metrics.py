"""The figures of the history about itself, and the pace of its upkeep."""

from __future__ import annotations

import errno
import os

import pytest

from wslgpud.store import engines, errors
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
    ("number", "remedy"),
    [(errno.ENOSPC, "free some space"), (errno.EIO, "the disk fails"), (errno.EBADF, "")],
    ids=["full", "broken", "unknown"],
)
def test_the_lock_file_shows_why_the_disk_refuses_a_write(tmp_path, monkeypatch, number, remedy):
    lock = engines.lock_path(tmp_path / "h.db")
    assert [str(text) for text in errors.refusal(lock)] == ["No such file or directory", ""]
    lock.touch()
    assert errors.refusal(lock) == ("", "")

    def fail(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    why, what = map(str, errors.refusal(lock))
    assert (why, what[: len(remedy) or 1]) == (os.strerror(number), remedy)
    assert lock.stat().st_size == 0
