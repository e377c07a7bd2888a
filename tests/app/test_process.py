"""The process of the daemon, besides the daemon."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from wslgpud.app import process


@pytest.mark.parametrize(
    ("file", "told"), [(None, []), (Path("/etc/wslgpud.toml"), ["--config", "/etc/wslgpud.toml"])], ids=["none", "one"]
)
def test_the_doctor_at_the_start_reads_the_configuration_of_the_daemon_if_there_is_one(
    file: Path | None, told: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: started.append(command))

    process._examine(file, tmp_path)

    (command,) = started
    assert command[command.index("doctor") :] == ["doctor", "--brief", "--no-torch", "--state", str(tmp_path), *told]
