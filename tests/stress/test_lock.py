"""Where a card's lock lies, who holds it, and how much of the kernel's list of locks is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wslgpud.host import Host
from wslgpud.stress.conditions import GpuLock, lock_entries


def test_the_same_inode_number_on_another_device_is_another_file() -> None:
    text = (
        "1: FLOCK  ADVISORY  WRITE 100 00:1a:456 0 EOF\n"
        "1: -> FLOCK  ADVISORY  READ 101 00:1a:456 0 EOF\n"
        "2: FLOCK  ADVISORY  WRITE 102 fe:01:456 0 EOF\n"
        "3: POSIX  ADVISORY  WRITE 103 00:1a:456 0 EOF\n"
        "4: FLOCK  ADVISORY  WRITE 104 00:1a:4567 0 EOF\n"
        "5: LEASE  ACTIVE    READ 105 00:1a:456 0 EOF\n"
        "6: cut off 00:1a:456 \n"
        "7: FLOCK  ADVISORY  WRITE ? 00:1a:456 0 EOF\n"
        "8: FLOCK  ADVISORY  WRITE 108 00:1a:456 0"
    )
    cut_in_an_inode = "9: FLOCK  ADVISORY  WRITE 109 00:1a:456"
    entries = [(100, False), (101, True), (0, False), (108, False)]

    assert lock_entries(text, os.makedev(0, 0x1A), 456) == entries
    assert lock_entries(cut_in_an_inode, os.makedev(0, 0x1A), 456) == []


def test_a_flood_of_locks_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    lock = GpuLock(0, tmp_path)
    with lock.held():
        place = lock.path.stat()
    device = f"{os.major(place.st_dev):02x}:{os.minor(place.st_dev):02x}"
    waits = f"1: -> FLOCK  ADVISORY  READ 101 {device}:{place.st_ino} 0 EOF\n"
    for flood, wanted in (("", True), ("2: POSIX\n" * 200_000, False)):
        (tmp_path / "proc" / "locks").write_text(flood + waits)

        assert lock.wanted(Host(tmp_path)) is wanted


@pytest.mark.parametrize(
    ("writable", "folder"), [({"/run/lock", "/tmp"}, "/run/lock"), ({"/tmp"}, "/tmp"), (set(), "/tmp")]
)
def test_a_lock_lies_in_the_first_folder_that_can_be_written(
    monkeypatch: pytest.MonkeyPatch, writable: set[str], folder: str
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path in writable and mode == os.W_OK)

    assert GpuLock(3).path == Path(folder, "wslgpud-gpu3.lock")


def test_any_users_training_may_take_a_lock_whatever_the_umask(tmp_path: Path) -> None:
    lock, before = GpuLock(0, tmp_path), os.umask(0o077)
    try:
        with lock.held() as ours:
            assert ours
    finally:
        os.umask(before)

    assert lock.path.stat().st_mode & 0o7777 == 0o666
