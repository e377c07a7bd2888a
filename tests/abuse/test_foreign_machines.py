"""A recorded machine that somebody has made to harm whoever looks at it, as root say, with ``--host-root``."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.hosts.machines import HERE as HOSTS
from wslgpud import host as hosts
from wslgpud.cli import app

SECRET = "root:of-nobodys-business:0:0"
COMMANDS = {
    "status": ("status",),
    "monitor -o": ("monitor", "-o"),
    "doctor": ("doctor", "--no-torch"),
    "doctor --bundle": ("doctor", "--no-torch", "--bundle", "{folder}.tar.gz"),
    "wslconfig check": ("wslconfig", "check"),
}
Spoil = Callable[[Path], object]


def _facts(**changed: Any) -> Spoil:
    def spoil(machine: Path) -> None:
        file = machine / "host.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))

    return spoil


def _instead(name: str, put: Callable[[Path], object]) -> Spoil:
    def spoil(machine: Path) -> None:
        (machine / name).parent.mkdir(parents=True, exist_ok=True)
        (machine / name).unlink(missing_ok=True)
        put(machine / name)

    return spoil


SPOILS: dict[str, Spoil] = {
    "a pipe as its facts": _instead("host.json", os.mkfifo),
    "a pipe as Windows' answers": _instead("windows.json", os.mkfifo),
    "a pipe as NVML's answers": _instead("nvml.json", os.mkfifo),
    "a file without end": _instead("host.json", lambda path: path.symlink_to("/dev/zero")),
    "a link to what only root may read": _instead(
        "root/etc/wsl.conf", lambda path: path.symlink_to(path.parents[3] / "secret")
    ),
    "a link to a folder": _instead("root/etc/more", lambda path: path.symlink_to(path.parents[3])),
    "a file of terabytes": _instead("root/proc/stat", lambda path: (path.touch(), os.truncate(path, 1 << 42))),
    "no number as a time": _facts(wall=float("nan")),
    "a time without end": _facts(mono=float("inf")),
    "a number of 400 digits": _facts(disks={"/": [10**400] * 5}),
    "a disk of three numbers": _facts(disks={"/": [1, 2, 3]}),
    "words as a disk": _facts(disks={"/": ["a"] * 5}),
    "a list of links": _facts(links=[1]),
    "a program that said a number": _facts(commands={"lsmod": 7}),
    "nothing": lambda machine: (machine / "host.json").write_text(""),
    "nested without end": lambda machine: (machine / "host.json").write_text("[" * 200_000),
}


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET)
    return Path(shutil.copytree(HOSTS / "wsl2-idle", tmp_path / "machine"))


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_each_command_refuses_it_in_one_line(machine: Path, spoil: Spoil) -> None:
    spoil(machine)
    for command in COMMANDS.values():
        words = [word.format(folder=machine) for word in command]
        done = CliRunner().invoke(app, [*words, "--host-root", str(machine)])

        assert done.exit_code == 2, (command, done.output, done.exception)
        (line,) = done.stderr.splitlines()
        assert f"{machine} is not a machine recorded by 'wslgpud capture': " in line
        assert SECRET not in done.output
        assert not machine.with_name("machine.tar.gz").exists()


def test_more_files_than_any_machine_has_are_not_looked_at(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_MAX_RECORDED_FILES", 10)
    with pytest.raises(ValueError, match="too long"):
        hosts.RecordedHost(machine)


def test_a_bad_memory_table_costs_only_the_memory_checks(machine: Path) -> None:
    (machine / "root/proc/meminfo").write_text("")
    done = CliRunner().invoke(app, ["doctor", "--no-torch", "--all", "--host-root", str(machine)])

    assert done.exit_code in (0, 1), done.exception
    assert "does not say how much memory there is" in done.output


def test_a_harmless_one_is_shown_and_archived(machine: Path) -> None:
    for command in COMMANDS.values():
        words = [word.format(folder=machine) for word in command]
        done = CliRunner().invoke(app, [*words, "--host-root", str(machine)])
        assert done.exit_code in (0, 1), done.output

    with tarfile.open(machine.with_name("machine.tar.gz")) as archive:
        assert any(name.endswith("root/proc/meminfo") for name in archive.getnames())
