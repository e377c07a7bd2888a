"""Somebody types every command of the README, in its order, into a bare Debian without a network.

Where a command has an ID in it, he takes the newest that the command before has shown.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.docs import commands
from tests.stress.support import night
from tests.support.daemons import eventually
from wslgpud.store import Store

from .conftest import REPOSITORY
from .image import GUEST_PYTHON, _downloaded  # its own file is part of the images' key: best left alone
from .test_fresh import CLONE, Newcomer, newcomer
from .test_install import SYSTEMCTL

__all__ = ["newcomer"]  # a fixture

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm"), pytest.mark.timeout(3000)]

#: what a user has and a bare Debian has not
STAND_INS = {
    "sudo": 'exec "$@"\n',
    "systemctl": SYSTEMCTL.partition("\n")[2],
    "make": "echo made with $MAX_JOBS jobs\n",
    "on-warning": "cat >>/warnings\n",
}
CONFIGURATION = '[alerts]\ncommand = ["/stand-ins/on-warning"]\n'
TRAIN = """import sys, time
held = b"x" * (int(sys.argv[2] if len(sys.argv) > 2 else 1) << 20)
time.sleep(1)
print("trained")
"""
#: what shows the IDs that the next commands take
LISTS = ("wslgpud incidents", "wslgpud stress history", "wslgpud alerts list")
#: a problem found is no failure
STATUS = {"wslgpud doctor": {0, 1}}
#: the word by which one knows that it did what the README promises
SAYS = {
    "wslgpud replay tests/traces/ram-leak_linear-1.jsonl.gz": "warning",
    "wslgpud incidents": "wslgpud was killed",
    "wslgpud incidents ID": "Last sample before the end",
    "wslgpud history ram --since 12h": "memory_available_bytes",
    "wslgpud stress history": "passed",
    "wslgpud stress show ID": "passed",
    "wslgpud alerts test": "command",
    "wslgpud alerts list": "was killed",
    "wslgpud guard --pause --timeout 30m -- make": "made with",
    "wslgpud guard --inside -- python train.py": "trained",
}


class Typist:
    """A terminal beside the daemon's, in the folder of the clone."""

    def __init__(self, newcomer: Newcomer, daemon_pid: int) -> None:
        self._beside = ["nsenter", f"--target={daemon_pid}", "--mount", "--root"]
        self._id = ""

    def types(self, command: str) -> subprocess.CompletedProcess[str]:
        meant = command.replace(" ID", f" {self._id}")
        shell = f'cd "{CLONE}" && PATH="$PWD/.venv/bin:/stand-ins:$PATH" && {meant}'
        done = subprocess.run(
            [*self._beside, "sh", "-c", shell],
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/root",
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": "/wheels",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            check=False,
        )
        if command in LISTS and (newest := re.search(r"^ *(\d+) ", done.stdout, re.MULTILINE)):
            self._id = newest[1]
        return done


@pytest.fixture
def desk(newcomer: Newcomer) -> Path:
    """Put there what a user has: programs, a configuration, a training, a night of stress."""
    machine = newcomer.folder / "upper"
    for name, script in STAND_INS.items():
        for folder in ("stand-ins", "usr/local/bin"):  # root, who installs, looks where only root puts programs
            file = machine / folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"#!/bin/sh\n{script}")
            file.chmod(0o755)
    wheels = _downloaded("apprise", REPOSITORY / "deploy/extras/apprise.txt", f"--python-version={GUEST_PYTHON}")
    shutil.copytree(wheels, machine / "wheels", dirs_exist_ok=True)
    (machine / "run/systemd/system").mkdir(parents=True)
    (machine / "etc/wslgpud").mkdir(parents=True)
    (machine / "etc/wslgpud/wslgpud.toml").write_text(CONFIGURATION)
    clone = machine / CLONE[1:]
    (clone / "train.py").write_text(TRAIN)
    trace = "tests/traces/ram-leak_linear-1.jsonl.gz"
    (clone / trace).parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / trace, clone / trace)
    state = machine / "var/lib/wslgpud"
    state.mkdir(parents=True)
    with Store(state / "wslgpud.db") as store:
        store.record_stress(night(1))
    return machine


def test_every_command_of_the_readme_works_as_it_stands(newcomer: Newcomer, desk: Path) -> None:
    first, *others = commands.typed()
    assert first == "./deploy/run"
    daemon = newcomer.run({"PIP_FIND_LINKS": "/wheels"})
    eventually(lambda: daemon.samples().get("wslgpud_ticks_total", 0) > 5, "some samples")
    daemon.end(signal.SIGKILL)
    daemon = newcomer.run({})
    eventually(lambda: daemon.status().get("incidents"), "the report of the crash")
    typist = Typist(newcomer, daemon.process.pid)
    eventually(lambda: typist.types("wslgpud history ram").returncode == 0, "the first samples on the disk")

    failed = {}
    for command in others:
        done = typist.types(command)
        good = done.returncode in STATUS.get(command, {0}) and SAYS.get(command, "") in done.stdout
        if not good or not done.stdout or "Traceback" in done.stdout:
            failed[command] = f"{done.returncode}: {done.stdout[-2000:]}"
    daemon.end()

    assert not failed, "\n\n".join(f"{command}\n{said}" for command, said in failed.items())
