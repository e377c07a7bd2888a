"""systemd-oomd and earlyoom: their journal lines become events, and no one else's do."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError, StoppedClock
from wslgpud.model import Sample
from wslgpud.sources import logs
from wslgpud.sources.logs import OomDaemonSource

#: Writes down how it was started and that it lives; then says what stands in a file, and waits.
JOURNALCTL = """#!{python}
import os, sys, time
from pathlib import Path
here = Path(sys.argv[0]).parent
(here / "arguments").write_text(" ".join(sys.argv[1:]))
sys.stdout.write((here / "journal").read_text())
sys.stdout.flush()
(here / "pid").write_text(str(os.getpid()))
(here / "said").touch()
while not (here / "end").exists():
    time.sleep(0.01)
"""
OOMD, EARLYOOM = "systemd-oomd.service", "earlyoom.service"
SCOPE = "/user.slice/user-1001.slice/user@1001.service/app.slice/vte-spawn-dbb4a75e.scope"
PRESSURE = "memory pressure for /user.slice being 51.07% > 50.00% for > 20s with reclaim activity"
SWAP = "memory used (8147308544) / total (8340758528) and swap used (3865) / total (4294) being more than 90.00%"
#: whose line, the line, and who died of what
LINES = [
    # systemd/systemd#23606
    (OOMD, f"Killed {SCOPE} due to {PRESSURE}", SCOPE, PRESSURE),
    # systemd/systemd#24185; src/oom/oomd-manager.c of 250 to 259
    (OOMD, f"Killed /system.slice/httpd.service due to {SWAP}", "/system.slice/httpd.service", SWAP),
    # systemd/systemd#42321; src/oom/oomd-manager.c of 260
    (OOMD, f"Marked /system.slice/a.service for killing due to {PRESSURE}", "/system.slice/a.service", PRESSURE),
    (OOMD, f"Marked {SCOPE} for killing due to {SWAP}", SCOPE, SWAP),
    # rfjakob/earlyoom#230 (1.6), #344 (1.8), #373 (1.9)
    (
        EARLYOOM,
        'sending SIGTERM to process 4173 uid 0 "metrics-server": badness 1001, VmRSS 31 MiB',
        "metrics-server",
        "badness 1001, VmRSS 31 MiB",
    ),
    (
        EARLYOOM,
        'sending SIGTERM to process 1024668 uid 1000 "Web Content": oom_score 823, VmRSS 79 MiB, cmdline "firefox -"',
        "Web Content",
        'oom_score 823, VmRSS 79 MiB, cmdline "firefox -"',
    ),
    (
        EARLYOOM,
        'sending SIGKILL to process 7 uid 0 "a": b": oom_score 774, oom_score_adj 0, cmdline "a": b"',
        'a": b',
        'oom_score 774, oom_score_adj 0, cmdline "a": b"',
    ),
]


class Machine:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *units: str) -> None:
        self.bin = root / "bin"
        self.bin.mkdir()
        for unit in units:
            (root / "machine/sys/fs/cgroup/system.slice" / unit).mkdir(parents=True)
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        self.says()
        self.source = OomDaemonSource(Host(root / "machine", StoppedClock(1.8e9, 0.0)), Config())

    def says(self, *entries: tuple[str, object]) -> None:
        lines = [json.dumps({"_SYSTEMD_UNIT": unit, "MESSAGE": message}) + "\n" for unit, message in entries]
        (self.bin / "journal").write_text("".join(lines))
        program = self.bin / "journalctl"
        program.write_text(JOURNALCTL.format(python=sys.executable))
        program.chmod(0o755)

    def read(self) -> Sample:
        """Read until all that the journal says has come."""
        sample = self.source.read()
        while not (self.bin / "said").exists():
            time.sleep(0.01)
        more = self.source.read()
        return Sample(more.readings, events=(*(sample.events or ()), *(more.events or ())))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path, monkeypatch, OOMD, EARLYOOM)
    yield made
    made.source.close()


def kills(sample: Sample) -> dict[str, float]:
    return {reading.labels[0]: reading.value for reading in sample.readings}


@pytest.mark.parametrize(("unit", "line", "victim", "reason"), LINES)
def test_a_kill_is_told_with_its_victim_and_the_daemons_reason(
    machine: Machine, unit: str, line: str, victim: str, reason: str
) -> None:
    machine.says((unit, line))
    sample = machine.read()
    (event,) = sample.events

    daemon = unit.removesuffix(".service")
    assert (event.kind, event.fields["daemon"], event.fields["victim"]) == ("oom_daemon_kill", daemon, victim)
    assert event.fields["reason"] == reason
    assert kills(sample)[daemon] == 1
    assert sum(kills(sample).values()) == 1


def test_a_victim_whose_name_cannot_be_printed_is_told(machine: Machine) -> None:
    """Journald writes such a line as a list of its bytes."""
    line = b'sending SIGTERM to process 7 uid 1000 "\x07\xff": oom_score 774, VmRSS 79 MiB'
    machine.says((EARLYOOM, list(line)))
    (event,) = machine.read().events

    assert (event.fields["victim"], event.fields["pid"]) == ("\N{REPLACEMENT CHARACTER}" * 2, 7)


def test_other_words_and_other_peoples_say_nothing(machine: Machine) -> None:
    machine.says(
        # systemd/systemd#32304, #22032
        (OOMD, "Considered 97 cgroups for killing, top candidates were:"),
        (OOMD, f"        Path: {SCOPE}"),
        (OOMD, "oomd attempting to kill 113 with KILL"),
        (OOMD, "Failed to kill any cgroup(s) under /user.slice based on pressure: No such device"),
        (OOMD, [75, 105]),
        (OOMD, [-1, "Ki"]),
        (EARLYOOM, "mem avail: 10 of 100 MiB (10.00%), swap free: 0 of 0 MiB (0.00%)"),
        ("user@1000.service", LINES[0][1]),
        (EARLYOOM, LINES[0][1]),
    )
    sample = machine.read()

    assert sample.events == ()
    assert kills(sample) == {"systemd-oomd": 0, "earlyoom": 0}
    arguments = (machine.bin / "arguments").read_text()
    assert arguments.endswith("_SYSTEMD_UNIT=systemd-oomd.service + _SYSTEMD_UNIT=earlyoom.service")
    assert "--lines=0" in arguments


def test_where_neither_runs_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch)
    with pytest.raises(NoData, match="neither systemd-oomd nor earlyoom"):
        machine.source.read()
    (tmp_path / "machine/sys/fs/cgroup/system.slice" / EARLYOOM).mkdir(parents=True)
    assert machine.source.period_seconds == 60
    machine.read()

    assert (machine.bin / "arguments").read_text().endswith(" _SYSTEMD_UNIT=earlyoom.service")
    machine.source.close()


def test_a_daemon_is_seen_beside_version_1_of_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch)
    (tmp_path / "machine/sys/fs/cgroup/systemd/system.slice" / EARLYOOM).mkdir(parents=True)
    machine.says((EARLYOOM, LINES[-1][1]))

    assert kills(machine.read()) == {"earlyoom": 1}
    machine.source.close()


def test_an_unreadable_journal_is_a_fault_retried_in_a_minute(machine: Machine) -> None:
    (machine.bin / "end").touch()

    def until_it_fails() -> None:
        while True:
            machine.source.read()
            time.sleep(0.01)

    with pytest.raises(SourceError, match="may this user read the journal"):
        until_it_fails()
    assert machine.source.period_seconds == 60
    (machine.bin / "end").unlink()
    machine.says((EARLYOOM, LINES[-1][1]))
    (machine.bin / "said").unlink()
    assert len(machine.read().events) == 1


def test_what_follows_the_journal_ends_with_us(machine: Machine) -> None:
    """As the pipe is closed, in whatever way the daemon ends."""
    machine.read()
    status = Path(f"/proc/{(machine.bin / 'pid').read_text()}/status")
    assert status.exists()

    machine.source.close()
    with contextlib.suppress(OSError):
        while "State:\tZ" not in status.read_text():
            time.sleep(0.01)


def test_what_it_starts_needs_no_call_that_the_unit_denies(machine: Machine) -> None:
    """setpriv(1) calls capset(2), which is @privileged."""
    machine.read()
    command = Path(f"/proc/{machine.source._child.pid}/cmdline").read_text()

    assert "journalctl" in command
    assert "setpriv" not in command


def test_a_line_without_an_end_is_not_kept(machine: Machine) -> None:
    (machine.bin / "journal").write_text("x" * (1 << 20))
    machine.source.read()
    while not (machine.bin / "said").exists():
        machine.source.read()
        assert len(machine.source._rest) <= logs._MAX_LINE
