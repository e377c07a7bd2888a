"""What the brake reads of each process, from a folder like /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.brake.trees import ALICE
from wslgpud.brake.process_tree import ScannedProcess, scan
from wslgpud.host import Host

#: after the name: state, parent, group, session, terminal, ...; the 20th is the start time, the 21st the address space
STAT = "{pid} ({name}) {state} {parent} 20 20 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} {size} 500\n"
STATUS = """Name:\tpython3
Uid:\t{uids}
VmRSS:\t  9000 kB
RssAnon:\t  3000 kB
RssFile:\t  5000 kB
RssShmem:\t  700 kB
VmSwap:\t  40 kB
"""


def process(
    top: Path,
    pid: int,
    name: str = "python3",
    uids: str = "1000\t1000\t1000\t1000",
    exe: str = "/usr/bin/python3.12",
    **more: object,
) -> None:
    folder = top / f"proc/{pid}"
    folder.mkdir(parents=True)
    facts = {"state": "S", "parent": 10, "start": 777, "size": 100_000, **more}
    (folder / "stat").write_text(STAT.format(pid=pid, name=name, **facts))
    (folder / "status").write_text(STATUS.format(uids=uids))
    (folder / "exe").symlink_to(exe)
    (folder / "cgroup").write_text("1:name=systemd:/old\n0::/user.slice/job.scope\n")


def test_a_process_has_private_memory_shared_memory_and_a_parent(tmp_path: Path) -> None:
    process(tmp_path, 20, "python (3) x")
    (tmp_path / "proc/meminfo").touch()

    seen = scan(Host(str(tmp_path)))

    assert seen.pids == {20}
    assert seen.processes == (
        ScannedProcess(
            20,
            777,
            10,
            ALICE,
            "python (3) x",
            3040 * 1024,
            "python3.12",
            "/user.slice/job.scope",
            shared_bytes=700 * 1024,
        ),
    )


@pytest.mark.parametrize(("state", "stopped"), [("S", False), ("T", True), ("t", True), ("R", False)])
def test_whether_it_is_stopped(tmp_path: Path, state: str, stopped: bool) -> None:
    process(tmp_path, 20, state=state)

    (one,) = scan(Host(str(tmp_path))).processes
    assert one.stopped == stopped


def test_a_process_between_two_users_belongs_to_neither(tmp_path: Path) -> None:
    process(tmp_path, 20, uids="1000\t0\t0\t0", exe="/usr/bin/sudo (deleted)")

    (one,) = scan(Host(str(tmp_path))).processes
    assert (one.uid, one.program) == (None, "sudo")


def test_kernel_threads_and_unreadable_processes_are_only_pids(tmp_path: Path) -> None:
    process(tmp_path, 2, "kthreadd", size=0)
    (tmp_path / "proc/3").mkdir()
    (tmp_path / "proc/4").mkdir()
    (tmp_path / "proc/4/stat").write_text("4 (short) S 1 4 4 0\n")
    process(tmp_path, 5, start="soon")
    process(tmp_path, 6, parent="nobody")

    assert scan(Host(str(tmp_path))) == ((), frozenset({2, 3, 4, 5, 6}))


def test_memory_that_the_kernel_does_not_tell_is_none(tmp_path: Path) -> None:
    process(tmp_path, 20)
    (tmp_path / "proc/20/status").write_text("Name:\tpython3\nUid:\t1000\t1000\t1000\t1000\n")

    (one,) = scan(Host(str(tmp_path))).processes
    assert (one.memory_bytes, one.shared_bytes) == (0, 0)
