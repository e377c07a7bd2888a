"""What ended the last run is found in the kernel's lines, however much was said after it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.alerts.ticks import START, fold, transition
from wslgpud.alerts.incidents import Incident
from wslgpud.alerts.look_back import crash_dumps, examine, kernel_lines
from wslgpud.host import Host
from wslgpud.model import Level
from wslgpud.store import DaemonRun, ProcessPoint

KILL = "2026-11-20T04:06:11+0100 pc kernel: Out of memory: Killed process 812 (python3) total-vm:9kB, anon-rss:8kB"
DXG = "2026-11-20T04:06:12+0100 pc kernel: misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -22"
TCP = "2026-11-20T04:06:13+0100 pc kernel: TCP: out of memory -- consider tuning tcp_mem"


class Journal(Host):
    def __init__(self, *lines: str) -> None:
        super().__init__("/nowhere")
        self.lines = lines

    def run(self, command: object, seconds: float) -> str:
        return "\n".join(self.lines)


def test_a_kill_is_kept_however_many_harmless_lines_follow_it() -> None:
    found = kernel_lines(Journal(KILL, *[DXG] * 49), "boot")

    assert (found[0], len(found)) == (KILL, 40)
    assert set(found[1:]) == {DXG}


def test_of_more_than_can_be_kept_the_last_are() -> None:
    kills = [KILL.replace("812", str(pid)) for pid in range(50)]

    assert kernel_lines(Journal(*kills, DXG), "boot") == kills[10:]


def test_the_limit_of_tcp_is_not_that_of_the_machine() -> None:
    assert kernel_lines(Journal(TCP, KILL), "boot") == [KILL]


def test_the_program_that_grew_most_before_the_end_is_named() -> None:
    gib = 1 << 30
    grew = [("train.py", 42, 1, 30), ("cc1plus", 43, 1, 9), ("bash", 44, 1, 1)]
    points = [
        ProcessPoint(1.0 + last, pid, 7, name, size[last] * gib, 0) for name, pid, *size in grew for last in (0, 1)
    ]
    store = SimpleNamespace(reader=SimpleNamespace(processes=lambda *_: points))
    run = DaemonRun(0.0, 2.0, clean=False, version="", boot_id="same")

    row, kept = examine(Host(), store, run, "same", ())
    assert row.facts["growing"] == "train.py (pid 42)"
    assert kept.events[0].fields["growing"] == "train.py (pid 42)"


def ended(*, machine: bool, before: tuple[Incident, ...] = (), host: Host | None = None) -> Any:
    """Return the row and the event about a run that ended at second 5000."""
    asked: list[tuple[float, float]] = []
    store = SimpleNamespace(reader=SimpleNamespace(processes=lambda *of: asked.append(of) or []))
    run = DaemonRun(START, START + 5000, clean=False, version="", boot_id="old")
    row, kept = examine(host or Host("/nowhere"), store, run, "new" if machine else "old", before)
    assert asked == [(START + 4700, START + 5000)], "the last five minutes"
    return row, kept.events[0].fields


def test_a_machine_crash_is_told_apart_from_a_daemon_crash() -> None:
    row, fields = ended(machine=True, host=Journal(KILL))
    assert (row.resource, row.old, row.new) == ("machine", Level.OK, Level.WARNING)
    assert row.facts == {"ended_wall": START + 5000, "last_wall": START + 5000, "trouble": (KILL,)}
    assert fields == {"ended_wall": START + 5000, "kernel": KILL, "dumps": "", "boot_id": "old"}

    row, fields = ended(machine=False, host=Journal(KILL))
    assert (row.resource, row.new) == ("daemon", Level.INFO)
    assert row.facts == {"ended_wall": START + 5000, "killed_wall": START + 5000}
    assert fields["kernel"] == ""


def test_trouble_before_an_end_is_warnings_fatal_line_and_dump(tmp_path: Path) -> None:
    folder = tmp_path / "mnt/c/Users/me/AppData/Local/Temp/wsl-crashes"
    folder.mkdir(parents=True)
    for name, second in (("old.dmp", 4939), ("panic.txt", 4940)):
        (folder / name).touch()
        os.utime(folder / name, (START + second, START + second))
    host = Journal(KILL, KILL.replace("812", "813") + ".", DXG)
    host.root = str(tmp_path)
    rows = [transition(1, Level.OK, level, resource=level.label, headline=level.label) for level in Level if level]
    before = fold(enumerate(rows))

    row, fields = ended(machine=True, before=tuple(before), host=host)

    dump = "/mnt/c/Users/me/AppData/Local/Temp/wsl-crashes/panic.txt"
    *messages, line, last = row.facts["trouble"]
    assert [str(message) for message in messages] == ["warning", "critical", "emergency"]
    assert (line, last.endswith(dump[-40:])) == (KILL.replace("812", "813"), True)
    assert len(fields["dumps"].splitlines()) == 1
    assert len(fields["kernel"].splitlines()) == 3


def test_of_many_windows_users_and_dumps_some_are_named(tmp_path: Path) -> None:
    for user in range(25):
        folder = tmp_path / f"mnt/c/Users/user{user:02}/AppData/Local/Temp/wsl-crashes"
        folder.mkdir(parents=True)
        (folder / "1.dmp").touch()
    assert len(crash_dumps(Host(tmp_path), 0.0)) == 20
    for number in range(50):
        (tmp_path / f"mnt/c/Users/user03/AppData/Local/Temp/wsl-crashes/{number}.dmp").touch()
    assert len(crash_dumps(Host(tmp_path), 0.0)) == 40


def test_a_line_of_the_kernel_is_kept_up_to_300_characters() -> None:
    (line,) = kernel_lines(Journal(KILL + " and so on" * 50), "boot")

    assert len(line) == 300
