"""Somebody who installs this after a crash is told of it, from the logs that are still there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.alerts.ticks import START
from wslgpud.alerts.look_back import BURST_SECONDS, MAX_INCIDENTS, earlier_kills
from wslgpud.alerts.messages import compose
from wslgpud.alerts.rules import KILLED_BEFORE
from wslgpud.host import Clock, Host, NoData, StoppedClock
from wslgpud.model import Level, Transition
from wslgpud.words import HEADLINE_CHARACTERS

#: what the kernel has written so far: half an hour since the boot
UPTIME = 1800.0
BOOT = "0d5b6a4e-1f0c-4c7e-9b1e-2f3a4b5c6d7e"


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
    """A machine whose journal holds these lines, with seconds since the epoch; this boot began at one of them."""

    def __init__(
        self, folder: Path, journal: list[tuple[float, str]], counted: int = 0, booted: float = START - UPTIME
    ) -> None:
        super().__init__(folder, clock())
        self._journal, self._booted = journal, booted
        (folder / "proc").mkdir()
        (folder / "proc/vmstat").write_text(f"oom_kill {counted}\n")

    def run(self, command: object, timeout_seconds: float) -> str:
        if not self._journal:
            raise NoData("no journal")
        entries = (
            {
                "__REALTIME_TIMESTAMP": f"{1e6 * at:.0f}",
                "MESSAGE": text,
                "_BOOT_ID": BOOT.replace("-", "") if at >= self._booted else "another",
            }
            for at, text in self._journal
        )
        return "\n".join(map(json.dumps, entries))


def clock() -> Clock:
    return StoppedClock(START, UPTIME)


def headlines(rows: list[Transition]) -> list[tuple[float, str, str, int]]:
    return [(row.wall - START, row.resource, str(row.facts.get("who")), row.facts.get("kills", 1)) for row in rows]


def test_a_kill_in_the_journal_is_an_incident(tmp_path: Path) -> None:
    journal = [(START - 86400, line) for line in kill(42)]
    journal += [(START - 600, line) for line in kill(43, "cc1plus", group="/build")]

    rows = earlier_kills(Machine(tmp_path, journal, counted=1), BOOT)

    assert headlines(rows) == [
        (-86400.0, "ram", "python3 (pid 42)", 1),
        (-600.0, "cgroup:/build", "cc1plus (pid 43)", 1),
    ]
    assert {(row.rule, row.old, row.new) for row in rows} == {(KILLED_BEFORE, Level.OK, Level.WARNING)}


def test_without_a_journal_the_number_of_kills_is_told(tmp_path: Path) -> None:
    (row,) = earlier_kills(Machine(tmp_path, [], counted=2), BOOT)

    assert row.facts == {"count": 2, "boot_wall": START - UPTIME}
    assert len(str(compose(row).headline)) <= HEADLINE_CHARACTERS, "the number stands at its end"


def test_kills_of_this_boot_that_only_the_kernel_counts_are_told(tmp_path: Path) -> None:
    rows = earlier_kills(Machine(tmp_path, [(START - 86400, line) for line in kill(42)], counted=2), BOOT)

    assert [row.facts.get("count") for row in rows] == [None, 2]


def test_a_kill_before_the_machine_slept_is_not_counted_again(tmp_path: Path) -> None:
    """In sleep the monotonic clock stands still, so that the boot seems to be later."""
    journal = [(START - 8 * 3600, line) for line in kill(42)]

    (row,) = earlier_kills(Machine(tmp_path, journal, counted=1, booted=START - 9 * 3600), BOOT)

    assert row.facts["pid"] == 42


def test_a_machine_without_kills_has_no_incident(tmp_path: Path) -> None:
    assert earlier_kills(Machine(tmp_path, [(START - 9, "Linux version 6.6")]), BOOT) == []


@pytest.mark.parametrize(("apart_seconds", "told"), [(800.0, 1), (901.0, 2)])
def test_kills_soon_after_one_another_are_one_incident(tmp_path: Path, apart_seconds: float, told: int) -> None:
    began = START // BURST_SECONDS * BURST_SECONDS - 9 * BURST_SECONDS
    journal = [(began + at, line) for at, pid in ((0.0, 1), (apart_seconds, 2)) for line in kill(pid)]

    rows = earlier_kills(Machine(tmp_path, journal), BOOT)

    assert (len(rows), rows[-1].facts.get("kills")) == (told, 2 if told == 1 else None)


def test_of_a_month_of_kills_the_last_twenty_are_told(tmp_path: Path) -> None:
    journal = [(START - 3600 * (100 - pid), line) for pid in range(100) for line in kill(pid)]

    rows = earlier_kills(Machine(tmp_path, journal), BOOT)

    assert [row.facts["pid"] for row in rows] == list(range(100 - MAX_INCIDENTS, 100))


def test_lines_of_the_journal_that_are_no_entries_are_ignored(tmp_path: Path) -> None:
    class Odd(Machine):
        def run(self, command: object, timeout_seconds: float) -> str:
            return '{"MESSAGE": [1, 2]}\nnonsense\n[]\n{"MESSAGE": "Killed process 1 (x)"}'

    assert earlier_kills(Odd(tmp_path, []), BOOT) == []
