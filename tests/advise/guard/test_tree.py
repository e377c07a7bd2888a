"""The watched processes: who belongs to the tree, what each holds, and who catches a signal."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from wslgpud.advise.guard import tree
from wslgpud.advise.guard.tree import Process
from wslgpud.host import Host

STATUS = "RssAnon:\t     10 kB\nVmSwap:\t      5 kB\nRssShmem:\t      3 kB\nSigCgt:\t202\nUid:\t7\t7\n"


def machine(folder: Path, **stats: str) -> Host:
    for pid, stat in stats.items():
        made = folder / "proc" / pid.lstrip("_")
        made.mkdir(parents=True)
        (made / "stat").write_text(stat)
        (made / "status").write_text(STATUS)
    return Host(folder)


def stat(pid: int, parent: int, state: str = "S", name: str = "cc1plus", start: int = 77) -> str:
    return f"{pid} ({name}) {state} {parent} " + "0 " * 17 + f"{start} 9 9\n"


def test_the_tree_is_every_living_descendant_with_its_memory(tmp_path: Path) -> None:
    host = machine(
        tmp_path,
        _1=stat(1, 0),
        _2=stat(2, 1, name="a (b) c"),
        _3=stat(3, 2, "T"),
        _4=stat(4, 2, "t"),
        _5=stat(5, 2, "Z"),
        _6=stat(6, 1),
        _7=stat(7, 6),
        _8=stat(8, 99),
        _9="9 (torn) S 1 0 0\n",
    )
    found = {process.pid: process for process in tree.descendants(host, 1, without={6})}

    assert found.keys() == {2, 3, 4}
    assert found[2] == Process(2, 77, "a (b) c", 15 << 10, stopped=False, shared_bytes=3 << 10, uid=7, caught=0x202)
    assert found[3].stopped
    assert found[4].stopped


@pytest.mark.parametrize(
    ("number", "catches"), [(1, False), (2, True), (3, False), (9, False), (10, True), (11, False)]
)
def test_a_program_with_a_handler_catches_the_signal(tmp_path: Path, number: int, catches: bool) -> None:
    (process,) = tree.descendants(machine(tmp_path, _2=stat(2, 1)), 1)

    assert process.catches(number) is catches


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_signal_reaches_only_the_process_seen_and_is_counted(sleeper: subprocess.Popen[bytes]) -> None:
    (seen,) = (one for one in tree.descendants(Host(), os.getpid()) if one.pid == sleeper.pid)
    another = seen._replace(start_ticks=seen.start_ticks + 1)

    assert tree.send([another], signal.SIGKILL) == 0
    assert sleeper.poll() is None
    assert tree.send([another, seen, another], signal.SIGTERM) == 1
    assert sleeper.wait(60) == -signal.SIGTERM
