"""The process of the daemon, besides the daemon."""

from __future__ import annotations

import subprocess
from pathlib import Path
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest

from wslgpud.app import process
from wslgpud.app.daemon import Daemon
from wslgpud.config import Config
from wslgpud.host import Host


@pytest.mark.parametrize(
    ("file", "told"), [(None, []), (Path("/etc/wslgpud.toml"), ["--config", "/etc/wslgpud.toml"])], ids=["none", "one"]
)
def test_the_startup_doctor_reads_the_daemons_configuration(
    file: Path | None, told: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: started.append(command))

    process._examine(file, tmp_path)

    (command,) = started
    assert command[command.index("doctor") :] == ["doctor", "--brief", "--no-torch", "--state", str(tmp_path), *told]


class MissedSignal:
    """A queue whose item came just before a wait, which it therefore does not end."""

    def __init__(self, waits: int) -> None:
        self.waits: list[float] = []
        self._missed = waits

    def get(self, timeout: float) -> None:
        self.waits.append(timeout)
        if len(self.waits) <= self._missed:
            raise Empty


def test_a_signal_just_before_a_wait_is_seen_within_a_second(tmp_path: Path) -> None:
    ticks: list[int] = []
    assessor = SimpleNamespace(delay_seconds=600.0)
    daemon: Any = Daemon(Config(), Host(), tmp_path, {})
    daemon.tick = SimpleNamespace(run=lambda: ticks.append(1), assessor=assessor)
    daemon._stop = missed = MissedSignal(waits=5)

    daemon.run()

    assert len(ticks) == 1
    assert missed.waits == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
