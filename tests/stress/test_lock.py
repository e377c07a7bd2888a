"""Where a card's lock lies, who holds it, and how much of the kernel's list of locks is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sampling.test_pipeline import SteppingClock
from wslgpud.active_runs.note_reader import RunNotes
from wslgpud.config import Stress
from wslgpud.host import Host
from wslgpud.stress.cards_under_test import UNPROVEN_SECONDS, CardsUnderTest
from wslgpud.stress.lock import GpuLock, lock_entries, locks


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
    entries = [(100, True, False), (101, False, True), (0, True, False), (108, True, False)]

    assert lock_entries(text, os.makedev(0, 0x1A), 456) == entries
    assert lock_entries(cut_in_an_inode, os.makedev(0, 0x1A), 456) == []


def test_a_flood_of_locks_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    with (tmp_path / "proc" / "locks").open("wb") as flood:
        flood.truncate(1 << 30)

    assert len(locks(Host(tmp_path))) == 1 << 20


@pytest.mark.parametrize(
    ("writable", "folder"), [({"/run/lock", "/tmp"}, "/run/lock"), ({"/tmp"}, "/tmp"), (set(), "/tmp")]
)
def test_a_lock_lies_in_the_first_folder_that_can_be_written(
    monkeypatch: pytest.MonkeyPatch, writable: set[str], folder: str
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path in writable and mode == os.W_OK)

    assert GpuLock(3).path == Path(folder, "wslgpud-gpu3.lock")


def test_a_locks_holder_is_named_by_its_users_and_by_numbers_where_they_have_no_name(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "run" / "lock").mkdir(parents=True)
    host, lock = Host(tmp_path), GpuLock(0, tmp_path / "run" / "lock")
    lock.path.touch()
    status = lock.file()
    assert status is not None
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    (tmp_path / "proc" / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 7 {place} 0 EOF\n")
    (tmp_path / "proc" / "7" / "stat").write_text("7 (flock) S 1" + " 0" * 18)

    def user(uids: str, passwd: str | None) -> str:
        (tmp_path / "proc" / "7" / "status").write_text(f"Uid:\t{uids}\nGroups:\t\n")
        if passwd is not None:
            (tmp_path / "etc" / "passwd").write_text(passwd)
        clock = host.clock = SteppingClock()
        tests = CardsUnderTest(host, Stress(), RunNotes(host))
        tests.look([0])
        clock.now += UNPROVEN_SECONDS
        tests.look([0])
        (held,) = tests.held
        return held.user

    passwd = "root:x:0:0:root:/root:/bin/sh\nodd:x\n\nalice:x:1000\nbob:x:1001:1001::/:\n"
    assert user("1000 0 0 0", None) == "0/1000"
    assert user("1000 1000 1000 1000", passwd) == "alice"
    assert user("1000 0 0 0", passwd) == "alice, root"
    assert user("77 77 77 77", passwd) == "77"
