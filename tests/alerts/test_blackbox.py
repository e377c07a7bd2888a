"""What ended the last run is found in the kernel's lines, however much was said after it."""

from __future__ import annotations

from types import SimpleNamespace

from wslgpud.alerts.blackbox import examine, kernel_lines
from wslgpud.host import Host
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


def test_of_all_who_grew_before_the_end_the_one_who_grew_most_is_named() -> None:
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
