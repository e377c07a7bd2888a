"""Commands that root runs, as sudo does, in a folder that its owner has prepared for it.

There wait modules named like ours and like others', programs, settings, and links in the place of what is written;
HOME is that user's, as sudo keeps it where it is told to.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from matplotlib.font_manager import FontManager

from tests.store import made
from tests.support.accounts import ALICE, give, needs_root
from wslgpud.app.catalogue import catalogue
from wslgpud.service.release import _PROGRAM
from wslgpud.store import Store

pytestmark = needs_root

PROGRAM = Path(sys.executable).with_name("wslgpud")
MODULES = (
    *("wslgpud", "sitecustomize", "usercustomize", "json", "typing", "pathlib", "tomllib", "tarfile"),
    *("click", "rich", "sqlalchemy", "psutil", "pynvml", "yaml", "matplotlib", "torch", "polib"),
)
PROGRAMS = ("python3", "sh", "nvidia-smi", "powershell.exe", "wslpath", "systemctl", "lsmod", "ps", "make", "nvcc")
SETTINGS = ("wslgpud.toml", "wsl.conf", "matplotlibrc", "pyvenv.cfg", "setup.cfg", ".env")
#: of a user's own Python, below home
SITE = f".local/lib/python3.{sys.version_info.minor}/site-packages"
FONTS = f".cache/matplotlib/fontlist-v{FontManager.__version__}.json"
#: What runs in whose place writes this down; {loot} is a file for everybody.
LOOT = "open({loot!r}, 'a').write(__file__ + '\\n')\n"

COMMANDS = {
    "doctor --bundle": ("doctor", "--no-torch", "--bundle", "help.tar.gz"),
    "wslconfig set": ("wslconfig", "set", "wsl2.memory=8GB", "--file", ".wslconfig", "--yes"),
    "wslconfig set, wsl.conf": ("wslconfig", "set", "boot.systemd=true", "--file", "wsl.conf", "--yes"),
    "export": ("export", "history.csv", "--state", "{state}"),
    "history --plot": ("history", "memory_available_bytes", "--plot", "history.svg", "--state", "{state}"),
    "db backup": ("db", "backup", "copy.db", "--state", "{state}"),
    "record": ("record", "live.jsonl", "--for", "1s"),
    "capture": ("capture", "machine"),
    "guard --log": ("guard", "--log", "build.log", "--state", "{state}", "--", "/bin/true"),
    "dashboards export": ("dashboards", "export", "monitoring"),
    "rules export": ("rules", "export", "monitoring"),
    "config init": ("config", "init", "new.toml"),
    "completion": ("--show-completion", "bash"),
}
#: what they write, and where links lie in its place
WRITTEN = ("help.tar.gz", ".wslconfig", "history.csv", "history.svg", "copy.db", "live.jsonl", "build.log", "new.toml")
FOLDERS = ("machine", "monitoring/grafana", "monitoring/deploy")


class Place:
    """A folder and a home of Alice's, what only root may change, and what came of it."""

    def __init__(self, folder: Path) -> None:
        self.theirs, self.home, self.treasure = (folder / name for name in ("theirs", "home", "treasure"))
        self.state, self.loot = folder / "state", folder / "loot"
        folder.chmod(0o755)
        for path in (self.theirs, self.home, self.treasure, self.home / SITE, self.home / ".config/wslgpud"):
            path.mkdir(parents=True)
        self.loot.touch()
        self.loot.chmod(0o666)
        with Store(self.state / "wslgpud.db") as store:
            store.append(made.snapshot(time.time(), {catalogue()["memory_available_bytes"]: 1}))
        self.code = LOOT.format(loot=str(self.loot))

    def plant_code(self) -> None:
        for name in MODULES:
            (self.theirs / f"{name}.py").write_text(self.code)
            (self.home / SITE / f"{name}.py").write_text(self.code)
        (self.home / SITE / "x.pth").write_text(f"import sys; open({str(self.loot)!r}, 'a').write('pth')\n")
        for name in PROGRAMS:
            (self.theirs / name).write_text(f"#!/bin/sh\necho $0 >>{self.loot}\n")
            (self.theirs / name).chmod(0o755)
        for name in SETTINGS:
            (self.theirs / name).write_text("text.usetex: True\n" if name == "matplotlibrc" else "")

    def plant_links(self, *, folders: bool) -> None:
        for name in WRITTEN:
            (self.treasure / name).write_text("root's")
            (self.theirs / name).symlink_to(self.treasure / name)
        for name in FOLDERS if folders else ():
            (self.treasure / name).mkdir(parents=True)
            (self.theirs / name).parent.mkdir(exist_ok=True)
            (self.theirs / name).symlink_to(self.treasure / name)
        (self.treasure / "settings").write_text("root's")
        (self.home / FONTS).parent.mkdir(parents=True, exist_ok=True)
        (self.home / FONTS).symlink_to(self.treasure / "settings")

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        for folder in (self.theirs, self.home):
            give(folder, ALICE)
        arguments = [word.format(state=self.state) for word in command]
        told = {"PATH": "/usr/bin:/bin::.", "HOME": str(self.home), "LANG": "C.UTF-8", **variables}
        return subprocess.run(
            arguments, cwd=self.theirs, env=told, capture_output=True, text=True, check=False, timeout=120
        )

    def unharmed(self) -> bool:
        files = [path for path in self.treasure.rglob("*") if not path.is_dir()]
        return all(path.read_text() == "root's" for path in files) and len(files) == len(WRITTEN) + 1


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own is closed to Alice
        yield Place(Path(folder))


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_planted_code_is_not_run_and_links_are_not_followed(place: Place, command: tuple[str, ...]) -> None:
    place.plant_code()
    place.plant_links(folders=True)
    done = place.run(str(PROGRAM), *command)

    assert place.loot.read_text() == ""
    assert place.unharmed(), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_without_traps_each_does_what_it_was_asked_for(place: Place, command: tuple[str, ...]) -> None:
    place.home.joinpath(".config/wslgpud").rmdir()
    give(place.home, ALICE)
    own = place.home.parent / "own"
    own.mkdir()
    before = {path.name for path in place.theirs.iterdir()}
    done = place.run(str(PROGRAM), *command, HOME=str(own))

    assert done.returncode in (0, 1), done.stderr
    named = [word for word in command if word in (*WRITTEN, "machine", "monitoring", "wsl.conf")]
    assert {path.name for path in place.theirs.iterdir()} - before >= {*named}


ISOLATED = {
    "PYTHONPATH": "{theirs}:",
    "PYTHONHOME": "{theirs}",
    "PYTHONSTARTUP": "{theirs}/sitecustomize.py",
    "PYTHONINSPECT": "1",
    "PYTHONUSERBASE": "{home}/.local",
    "PYTHONPYCACHEPREFIX": "{theirs}",
}


def test_the_installed_program_goes_by_no_variable_of_python(place: Place) -> None:
    """Not even those that sudo removes: root's shell may have them."""
    place.plant_code()
    program = place.home.parent / "wslgpud"
    program.write_text(_PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    variables = {name: value.format(theirs=place.theirs, home=place.home) for name, value in ISOLATED.items()}
    done = place.run(str(program), "doctor", "--no-torch", "--brief", **variables)

    assert place.loot.read_text() == ""
    assert done.returncode in (0, 1), done.stderr
    control = subprocess.run(
        [sys.executable, "-c", ""], env={"PYTHONPATH": str(place.theirs)}, capture_output=True, check=False
    )
    assert place.loot.read_text(), control.stderr


def test_root_refuses_another_users_configuration_under_sudo(place: Place) -> None:
    """It names a library to load."""
    file = place.home / ".config/wslgpud/wslgpud.toml"
    file.write_text(f'[sampling]\nnvml_library = "{place.theirs}/evil.so"\n')
    refused = place.run(str(PROGRAM), "config", "show")

    assert refused.returncode == 2
    assert refused.stderr == f"wslgpud: {file} belongs to user {ALICE}: use sudo -H, or name it with --config\n"
    named = place.run(str(PROGRAM), "config", "show", "--config", str(file))
    assert "evil.so" in named.stdout
    os.chown(file, 0, 0)
    file.parent.chmod(0o755)


def test_a_pipe_in_place_of_an_output_file_blocks_no_command(place: Place) -> None:
    for name in (*WRITTEN, "monitoring/grafana/compose.yml"):
        (place.theirs / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(place.theirs / name)
    for command in COMMANDS.values():
        done = place.run(str(PROGRAM), *command)
        assert "Traceback" not in done.stderr, command
