"""Where a card's lock lies, who holds it, and how much of the kernel's list of locks is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sampling.test_pipeline import SteppingClock
from wslgpud.active_runs.note_reader import RunNotes
from wslgpud.config import Stress
from wslgpud.host import Host
from wslgpud.stress.cards_under_test import UNPROVEN_SECONDS, CardsUnderTest, LockHolder
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


def test_any_users_training_may_take_a_lock_whatever_the_umask(tmp_path: Path) -> None:
    lock, before = GpuLock(0, tmp_path), os.umask(0o077)
    try:
        with lock.held() as ours:
            assert ours
    finally:
        os.umask(before)

    assert lock.path.stat().st_mode & 0o7777 == 0o666


class Recorded:
    """A machine on which process 7 holds the lock of card 0."""

    def __init__(self, folder: Path) -> None:
        for name in ("etc", "proc/7", "run/lock"):
            (folder / name).mkdir(parents=True)
        self.clock, self.folder = SteppingClock(), folder
        lock = GpuLock(0, folder / "run" / "lock")
        lock.path.touch()
        status = lock.path.stat()
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        (folder / "proc" / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 7 {place} 0 EOF\n")
        self.process()
        self.host = Host(folder, clock=self.clock)
        self.tests = CardsUnderTest(self.host, Stress(), RunNotes(self.host))

    def process(self, uids: str = "0 0 0 0", start_ticks: int = 500) -> None:
        (self.folder / "proc" / "7" / "stat").write_text(f"7 (flock) S 1{' 0' * 17} {start_ticks}")
        (self.folder / "proc" / "7" / "status").write_text(f"Uid:\t{uids}\nGroups:\t\n")

    def held(self, seconds: float = 0.0) -> list[LockHolder]:
        """Return what is complained of so many seconds later."""
        self.clock.now += seconds
        self.tests.look([0])
        return self.tests.held


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


@pytest.mark.parametrize(
    ("uids", "user"), [("1000 1000 1000 1000", "alice"), ("1000 0 0 0", "alice, root"), ("77 77 77 77", "77")]
)
def test_a_locks_holder_is_named_by_its_users(recorded: Recorded, uids: str, user: str) -> None:
    (recorded.folder / "etc" / "passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nodd:x\n\nalice:x:1000\nbob:x:1001:1001::/:\n"
    )
    recorded.process(uids)
    recorded.held()

    assert [holder.user for holder in recorded.held(UNPROVEN_SECONDS)] == [user]


def test_a_lock_holder_whose_user_has_no_name_is_shown_by_number(recorded: Recorded) -> None:
    recorded.process("1000 0 0 0")
    recorded.held()

    assert [holder.user for holder in recorded.held(UNPROVEN_SECONDS)] == ["0/1000"]


def test_a_reused_pid_gets_as_long_as_the_first_to_prove_itself(recorded: Recorded) -> None:
    assert recorded.held() == []
    assert len(recorded.held(UNPROVEN_SECONDS)) == 1
    recorded.process(start_ticks=900)
    assert recorded.held(1.0) == []
    assert len(recorded.held(UNPROVEN_SECONDS)) == 1


def test_a_lock_its_first_holder_passed_on_is_reported_nameless(recorded: Recorded) -> None:
    for name in ("stat", "status"):
        (recorded.folder / "proc" / "7" / name).unlink()
    recorded.held()
    (held,) = recorded.held(UNPROVEN_SECONDS)

    assert (held.pid, held.program, held.user) == (7, "", "")
    assert "is held by a process that has ended (pid 7), which is no stress run" in str(held.note)
