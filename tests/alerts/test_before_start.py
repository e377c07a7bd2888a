"""Somebody who installs this after a crash is told of it, from the logs that are still there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.alerts.ticks import START
from wslgpud.alerts.look_back import MAX_INCIDENTS, earlier_kills
from wslgpud.alerts.rules import KILLED_BEFORE
from wslgpud.host import Clock, Host, NoData, StoppedClock
from wslgpud.model import Level, Transition

BOOT, EARLIER = "11111111-2222-3333-4444-555555555555", "99999999222233334444555555555555"
#: what the kernel has written so far: half an hour since the boot
UPTIME = 1800.0


def kill(pid: int, name: str = "python3", *, group: str = "") -> list[str]:
    limit = f"CONSTRAINT_MEMCG,nodemask=(null),oom_memcg={group},task_memcg={group}" if group else "CONSTRAINT_NONE"
    head = "Memory cgroup out" if group else "Out"
    return [
        f"oom-kill:constraint={limit},task={name},pid={pid},uid=1000",
        (
            f"{head} of memory: Killed process {pid} ({name}) total-vm:9000kB, anon-rss:2048kB, file-rss:0kB, "
            "shmem-rss:0kB"
        ),
    ]


class Machine(Host):
    """A machine whose kernel log and journal hold these lines: seconds since the boot or the epoch, and a text."""

    def __init__(
        self, folder: Path, log: list[tuple[float, str]] | None, journal: list[tuple[float, str, str]], counted: int = 0
    ) -> None:
        super().__init__(folder, clock())
        self._journal = journal
        (folder / "proc").mkdir()
        (folder / "proc/vmstat").write_text(f"oom_kill {counted}\n")
        if log is not None:
            (folder / "dev").mkdir()
            lines = (f"6,{at},{1e6 * seconds:.0f},-;{text}\n" for at, (seconds, text) in enumerate(log))
            (folder / "dev/kmsg").write_text("".join(lines))

    def run(self, command: object, timeout_seconds: float) -> str:
        if not self._journal:
            raise NoData("no journal")
        entries = (
            {"__REALTIME_TIMESTAMP": f"{1e6 * at:.0f}", "_BOOT_ID": b, "MESSAGE": m} for at, b, m in self._journal
        )
        return "\n".join(map(json.dumps, entries))


def clock() -> Clock:
    return StoppedClock(START, UPTIME)


def headlines(rows: list[Transition]) -> list[tuple[float, str, str, int]]:
    return [(row.wall - START, row.resource, str(row.facts.get("who")), row.facts.get("kills", 1)) for row in rows]


def test_a_kill_in_the_log_of_this_boot_is_an_incident(tmp_path: Path) -> None:
    log = [*((600.0, line) for line in kill(42)), *((1200.0, line) for line in kill(43, "cc1plus", group="/build"))]

    rows = earlier_kills(Machine(tmp_path, log, []), BOOT)

    assert headlines(rows) == [
        (-1200.0, "ram", "python3 (pid 42)", 1),
        (-600.0, "cgroup:/build", "cc1plus (pid 43)", 1),
    ]
    assert {(row.rule, row.old, row.new) for row in rows} == {(KILLED_BEFORE, Level.OK, Level.WARNING)}


def test_earlier_boots_are_looked_up_in_the_journal(tmp_path: Path) -> None:
    journal = [(START - 86400, EARLIER, line) for line in kill(7)]
    journal += [(START - 600, BOOT.replace("-", ""), line) for line in kill(42)]

    rows = earlier_kills(Machine(tmp_path, [(1200.0, line) for line in kill(42)], journal), BOOT)

    assert headlines(rows) == [(-86400.0, "ram", "python3 (pid 7)", 1), (-600.0, "ram", "python3 (pid 42)", 1)]


def test_without_the_kernel_log_the_journal_has_this_boot_too(tmp_path: Path) -> None:
    journal = [(START - 600, BOOT.replace("-", ""), line) for line in kill(42)]

    assert headlines(earlier_kills(Machine(tmp_path, None, journal, counted=1), BOOT)) == [
        (-600.0, "ram", "python3 (pid 42)", 1)
    ]


def test_without_any_log_the_number_of_kills_is_told(tmp_path: Path) -> None:
    (row,) = earlier_kills(Machine(tmp_path, None, [], counted=2), BOOT)

    assert row.facts == {"count": 2, "boot_wall": START - UPTIME}


def test_a_machine_without_kills_has_no_incident(tmp_path: Path) -> None:
    assert earlier_kills(Machine(tmp_path, [(1.0, "Linux version 6.6")], []), BOOT) == []


@pytest.mark.parametrize(("apart_seconds", "told"), [(600.0, 1), (601.0, 2)])
def test_kills_within_ten_minutes_are_one_incident(tmp_path: Path, apart_seconds: float, told: int) -> None:
    log = [(at, line) for at, pid in ((100.0, 1), (100.0 + apart_seconds, 2)) for line in kill(pid)]

    rows = earlier_kills(Machine(tmp_path, log, []), BOOT)

    assert (len(rows), rows[-1].facts.get("kills")) == (told, 2 if told == 1 else None)


def test_of_a_month_of_kills_the_last_twenty_are_told(tmp_path: Path) -> None:
    journal = [(START - 3600 * (100 - pid), EARLIER, line) for pid in range(100) for line in kill(pid)]

    rows = earlier_kills(Machine(tmp_path, None, journal), BOOT)

    assert [row.facts["pid"] for row in rows] == list(range(100 - MAX_INCIDENTS, 100))


def test_lines_of_the_journal_that_are_no_entries_are_ignored(tmp_path: Path) -> None:
    class Odd(Machine):
        def run(self, command: object, timeout_seconds: float) -> str:
            return '{"MESSAGE": [1, 2]}\nnonsense\n[]\n{"MESSAGE": "Killed process 1 (x)"}'

    assert earlier_kills(Odd(tmp_path, None, []), BOOT) == []
