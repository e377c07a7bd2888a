"""Each way in, on a fresh Debian with its own systemd: it runs, is upgraded, goes back, and leaves nothing.

The Debian package always, the others by hand (``WSLGPUD_SLOW=1``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from wslgpud.service.places import SYSTEM

from .conftest import REPOSITORY, slow
from .container import Container, tree
from .image import GUEST_PYTHON, SUITE, Image, backend, wheelhouse
from .service import CONFIGURATION_FILE, DROP_INS, PATIENCE_SECONDS, READY, Service, eventually
from .test_service_command import another, small_torch

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("ways-in"), pytest.mark.timeout(3000)]

FIRST, NEWER, BROKEN = "0.1.0", "0.2.0", "0.3.0"
CLONE, VENV = "/root/clone", "/root/venv"
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
UNITS = ("wslgpud.service", "wslgpud-stress.socket")
#: with this, systemd does not start one version
DROP_IN = f"{DROP_INS}/refuse.conf"
REFUSE = f"""[Service]
ExecStartPre=/bin/sh -c '! wslgpud --version | grep -qF {BROKEN}'
"""
RUNS = "select version, clean from daemon_run order by id"
#: what the machine itself writes
ELSEWHERE = ("root/.cache", "usr/lib/python3", "var/cache", "var/lib/apt", "var/lib/dpkg", "var/lib/systemd", "var/log")
ACCOUNTS = {f"etc/{name}" for name in (".pwd.lock", "passwd", "group", "shadow", "gshadow", "subuid", "subgid")}

#: Somebody without any rights, and what they replace again and again, wherever they may, by links to what is root's.
INTRUDER, CANARY = "intruder", "/srv/canary"
RACE = f"""
import contextlib, itertools, os, sys
names = {{"wslgpud", "wslgpud.new", "wslgpud.toml", "wslgpud.db", "control.sock", "held.json", "wslgpud.conf"}}
for target in itertools.cycle(["{CANARY}", "{CANARY}/file", "{CANARY}/missing"]):
    for folder in sys.argv[1:]:
        with contextlib.suppress(OSError):
            names |= {{name for name in os.listdir(folder) if len(names) < 500}}
        for path in [f"{{folder}}/{{name}}" for name in names]:
            with contextlib.suppress(OSError):
                os.rename(path, f"{{folder}}/moved")
            with contextlib.suppress(OSError):
                os.symlink(target, path)
"""
#: what has become of root's files: kind, mode, owner, size and each change of these
LOOK_AT_CANARY = ("find", CANARY, "-printf", "%p %y %m %U:%G %s %T@ %C@\\n")
#: Prints each folder, at or above a path in these scripts, in which others than root may exchange something.
OPEN_FOLDERS = r"""
import os, pathlib, re, sys
for path in re.findall(r"(?<![\w.*])/[\w.*+@:-]+(?:/[\w.*+@:-]+)*", sys.stdin.read()):
    for folder in pathlib.Path(path).parents:
        if folder.exists() and (folder.stat().st_uid or folder.stat().st_mode & 0o022):
            print(path, "in", folder)
"""


@dataclass(frozen=True)
class Way:
    """How somebody gets the program: what they type for a version, and to be rid of it."""

    container: Container
    wheel: Path
    folder: Path
    package: Callable[[], Path]

    def types(self, *words: str, check: bool = True) -> str:
        done = self.container.run(*words, environment=OFFLINE, timeout_seconds=4 * PATIENCE_SECONDS, check=check)
        return done.stdout + done.stderr

    def get_ready(self) -> None:
        """Bring what is there before anything is installed."""

    def install(self, version: str, *, check: bool = True) -> str:
        raise NotImplementedError

    def go_back(self) -> None:
        """Try a version that does not start."""
        with self.refused():
            assert "the previous one runs again" in self.install(BROKEN, check=False)

    def add_torch(self) -> None:
        """Have torch brought for the nightly test: a small one, which this version says it was locked with."""

    @contextmanager
    def refused(self) -> Iterator[None]:
        self.container.write(DROP_IN, REFUSE)
        self.types("systemctl", "daemon-reload")
        yield
        self.types("rm", DROP_IN)

    def purge(self) -> None:
        raise NotImplementedError


class Run(Way):
    def get_ready(self) -> None:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "wslgpud", "deploy", "grafana"]
        names = subprocess.run(listed, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.split("\0")
        for name in ["pyproject.toml", "README.md", "LICENSE", *filter(None, names)]:
            target = self.folder / "clone" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, target)
        for folder in (wheelhouse(), backend()):
            shutil.copytree(folder, self.folder / "wheels", dirs_exist_ok=True)
        self.container.copy_in(self.folder / "wheels", "/wheels")
        self.container.copy_in(self.folder / "clone", CLONE)

    def has_pulled(self, version: str) -> None:
        line = f'__version__ = "{version}"'
        self.types("sed", "-i", f"s/^__version__ = .*/{line}/", f"{CLONE}/wslgpud/__init__.py")

    def install(self, version: str, *, check: bool = True) -> str:
        self.has_pulled(version)
        self.types("systemctl", "stop", "foreground", check=False)
        given = [f"--setenv={name}={value}" for name, value in OFFLINE.items()]
        return self.types("systemd-run", "--unit=foreground", "--collect", *given, f"{CLONE}/deploy/run")

    def go_back(self) -> None:
        """Nobody but who typed it starts what is in the foreground: they take the other version again."""
        self.install(BROKEN)
        history(self, BROKEN)
        self.install(NEWER)

    def purge(self) -> None:
        self.types("systemctl", "stop", "foreground")
        self.types("rm", "-r", CLONE, "/wheels", "/var/lib/wslgpud")


class Clone(Run):
    def install(self, version: str, *, check: bool = True) -> str:
        self.has_pulled(version)
        return self.types(f"{CLONE}/deploy/install", check=check)

    def purge(self) -> None:
        self.types(f"{CLONE}/deploy/uninstall", "--purge")
        self.types("rm", "-r", CLONE, "/wheels")


class Wheel(Run):
    def get_ready(self) -> None:
        super().get_ready()
        self.types("rm", "-r", CLONE)
        self.types("python3", "-m", "venv", VENV)

    def install(self, version: str, *, check: bool = True) -> str:
        wheel = self.wheel if version == FIRST else another(self.wheel, self.folder, version)
        self.container.write(f"/root/{wheel.name}", wheel.read_bytes())
        self.types(f"{VENV}/bin/pip", "install", "--quiet", f"/root/{wheel.name}")
        return self.types(f"{VENV}/bin/wslgpud", "service", "install" if version == FIRST else "upgrade", check=check)

    def purge(self) -> None:
        self.types("wslgpud", "service", "uninstall", "--purge")
        self.types("sh", "-c", f"rm -r {VENV} /wheels /root/*.whl")


class Package(Way):
    def install(self, version: str, *, check: bool = True) -> str:
        package = self.package() if version == FIRST else another_package(self.package(), self.folder, version)
        self.container.write(f"/root/{package.name}", package.read_bytes())
        return self.apt("install", "--allow-downgrades", f"/root/{package.name}", check=check)

    def go_back(self) -> None:
        """Try a version that does not start: dpkg has no way back by itself, and its output says how."""
        with self.refused():
            typed = self.install(BROKEN).partition("to go back: sudo apt install ./")[2].split()[0]
            self.apt("install", "--allow-downgrades", f"/root/{typed}")

    def add_torch(self) -> None:
        torch, lock = small_torch(self.folder)
        self.container.write(f"/wheels/{torch.name}", torch.read_bytes())
        listed = self.types("dpkg", "--listfiles", "wslgpud").splitlines()
        self.container.write(next(name for name in listed if name.endswith("/extras/stress.txt")), lock)
        self.types("wslgpud", "service", "install", "--extra", "stress")
        assert json.loads(self.types("wslgpud", "service", "status", "--json"))["extras"] == ["stress"]
        self.types("/opt/wslgpud.stress/bin/python3", "-c", "import torch")
        refused = self.types("wslgpud", "service", "install", "--extra", "apprise", check=False)
        assert "for apprise: sudo apt remove wslgpud && pipx install wslgpud && sudo" in refused

    def apt(self, *words: str, check: bool = True) -> str:
        return self.types("apt-get", "--yes", "--quiet", *words, check=check)

    def purge(self) -> None:
        self.apt("remove", "wslgpud")
        assert self.container.has(CONFIGURATION_FILE)
        assert self.container.has("/var/lib/wslgpud/wslgpud.db")
        self.apt("purge", "wslgpud")
        self.types("sh", "-c", "rm -r /wheels /root/*.deb")


def another_package(package: Path, folder: Path, version: str) -> Path:
    """Return the same package as another version."""
    content = folder / version
    subprocess.run(["dpkg-deb", "--raw-extract", package, content], check=True)
    control, program = content / "DEBIAN/control", next(content.glob("usr/lib/wslgpud/lib/**/wslgpud/__init__.py"))
    control.write_text(control.read_text().replace(f"\nVersion: {FIRST}-", f"\nVersion: {version}-"))
    program.write_text(program.read_text().replace(FIRST, version))
    made = folder / package.name.replace(FIRST, version)
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", content, made], check=True)
    return made


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """The Debian package of this repository, built once, when somebody asks for it; what takes long is left out."""
    built: list[Path] = []

    def build() -> Path:
        if not built:
            if shutil.which("dh") is None:
                pytest.skip("no debhelper: install what tests/vm/PACKAGES lists")
            environment = {**os.environ, "DPKG_DEB_COMPRESSOR_TYPE": "none"}
            if "WSLGPUD_SLOW" not in os.environ:
                environment["PYTHONS"] = GUEST_PYTHON
            output = tmp_path_factory.mktemp("package")
            subprocess.run([REPOSITORY / "deploy/deb", output], env=environment, check=True)
            built.extend(output.glob("*.deb"))
        return built[0]

    return build


@pytest.fixture
def boots(disk: Image, wheel: Path, package: Callable[[], Path], tmp_path: Path) -> Iterator[Callable[..., Way]]:
    """Boot a fresh Debian for somebody who comes a certain way."""
    running: list[Container] = []

    def boot(kind: type[Way], suite: str) -> Way:
        container = Container(disk.tree if suite == SUITE else tree(suite), tmp_path)
        running.append(container)
        container.boot()
        way = kind(container, wheel, tmp_path, package)
        way.get_ready()
        return way

    yield boot
    for container in running:
        container.kill()
    shutil.rmtree(tmp_path / "upper")  # hundreds of MB, and pytest keeps the folders of three runs


def files(container: Container) -> set[str]:
    """Return what has come to the machine, but for what it writes itself."""
    found = set()
    for path in container.upper.rglob("*"):
        name = str(path.relative_to(container.upper))
        own = name.startswith(ELSEWHERE) or name.rstrip("-") in ACCOUNTS
        folder, gone = path.is_dir() and not path.is_symlink(), path.is_char_device()
        if not (own or folder or gone):
            found.add(name)
    return found


def history(way: Way, version: str) -> list[list[object]]:
    """Wait until this version has taken a sample; return the runs that its history knows."""
    container = way.container

    def told() -> bool:
        said = container.run("wslgpud", "status", "--json", check=False).stdout
        ready = container.run("python3", "-c", READY, check=False).stdout
        return ready == "200\n" and json.loads(said or "{}").get("version") == version

    eventually(told, f"version {version}", lambda: container.run("journalctl", "-n50", "--no-pager").stdout)
    return Service(container).query(RUNS)


def check_service(way: Way) -> None:
    """The same however it came: who it runs as, what starts with the machine, who may read its configuration."""
    service = Service(way.container)
    assert service.ctl("is-active", *UNITS) == "active\nactive"
    assert service.ctl("is-enabled", *UNITS) == "enabled\nenabled"
    assert service.property("User") == "wslgpud"
    assert way.types("stat", "-c", "%U %G %a", CONFIGURATION_FILE, "/var/lib/wslgpud") == (
        "root wslgpud 640\nwslgpud wslgpud 751\n"
    )
    assert json.loads(way.types("wslgpud", "service", "status", "--json"))["state"] == "active"
    assert "systemd-journal" in way.types("id", "-nG", "wslgpud").split()


@pytest.mark.parametrize(
    ("kind", "suite"),
    [
        pytest.param(Package, SUITE, id="package"),
        pytest.param(Package, "trixie", id="package-trixie", marks=slow),
        pytest.param(Wheel, SUITE, id="wheel", marks=slow),
        pytest.param(Clone, SUITE, id="clone", marks=slow),
        pytest.param(Run, SUITE, id="run", marks=slow),
    ],
)
def test_it_runs_upgrades_goes_back_and_leaves_nothing_behind(
    boots: Callable[..., Way], kind: type[Way], suite: str
) -> None:
    way = boots(kind, suite)
    way.container.write("/srv/of-somebody", "")
    before = files(way.container)
    for version, runs in ((FIRST, [[FIRST, 0]]), (NEWER, [[FIRST, 1], [NEWER, 0]])):
        way.install(version)
        assert history(way, version) == runs
        if kind is not Run:
            check_service(way)

    way.add_torch()
    way.go_back()
    kept = [run for run in history(way, NEWER) if run[0] != BROKEN]
    assert (kept[:2], kept[-1]) == ([[FIRST, 1], [NEWER, 1]], [NEWER, 0])

    if kind is not Run:
        way.container.kill()
        way.container.boot()
        assert history(way, NEWER)[-2:] == [[NEWER, 0], [NEWER, 0]]

    way.types("ln", "-s", "/srv", "/var/lib/wslgpud/planted")
    way.purge()
    assert way.container.has("/srv/of-somebody")
    assert files(way.container) - before == set()
    assert way.types("getent", "passwd", "wslgpud", "wslgpud-stress", check=False) == ""
    assert Service(way.container).property("LoadState") == "not-found"


def test_a_package_does_not_take_over_another_kind_of_install(boots: Callable[..., Way]) -> None:
    way = boots(Package, SUITE)
    way.container.write("/opt/wslgpud/bin/wslgpud", "of another way", 0o755)
    package = way.package()
    way.container.write(f"/root/{package.name}", package.read_bytes())
    said = way.types("apt-get", "--yes", "install", f"/root/{package.name}", check=False)

    assert "sudo wslgpud service uninstall" in said
    assert not way.container.has("/usr/lib/wslgpud")
    assert not way.container.has("/usr/lib/systemd/system/wslgpud.service")


def race(way: Way, user: str, *folders: str) -> None:
    """Have somebody exchange what is in these folders until it is over."""
    way.container.write("/srv/race.py", RACE)
    way.types("systemd-run", f"--unit=race-{user}", f"--uid={user}", "python3", "/srv/race.py", *folders)
    # What it lists goes while it looks (SQLite's log, the racer's own links): its status says nothing.
    look = ("find", folders[0], "-lname", f"{CANARY}*")
    eventually(lambda: way.container.run(*look, check=False).stdout, "the first link")


def open_folders(way: Way, scripts: str) -> str:
    return way.container.run("python3", "-c", OPEN_FOLDERS, stdin=scripts.encode()).stdout


def test_nobody_makes_root_write_elsewhere_during_an_install(boots: Callable[..., Way]) -> None:
    way = boots(Package, SUITE)
    way.types("useradd", INTRUDER)
    way.container.write(f"{CANARY}/file", "root's", 0o600)
    before = way.types(*LOOK_AT_CANARY)
    race(way, INTRUDER, "/tmp", "/var/tmp", "/dev/shm", "/run/lock", "/etc", "/opt", "/run", "/usr/lib", "/var/lib")
    for version in (FIRST, NEWER):
        way.install(version)
        assert history(way, version)
    scripts = way.types("sh", "-c", "cat /var/lib/dpkg/info/wslgpud.p*; dpkg --listfiles wslgpud")
    assert open_folders(way, "/tmp/x /var/lib/wslgpud/x").count(" in ") == 2  # the control
    assert "/var/lib/wslgpud" in scripts
    assert open_folders(way, f"{scripts} {SYSTEM}") == ""

    race(way, "wslgpud", "/var/lib/wslgpud")
    way.install(FIRST, check=False)
    way.types("apt-get", "--yes", "purge", "wslgpud", check=False)  # refused while the racer fills the folder, or runs
    assert way.types(*LOOK_AT_CANARY) == before

    way.types("systemctl", "stop", f"race-{INTRUDER}", "race-wslgpud", check=False)
    way.types("dpkg", "--purge", "wslgpud")
    assert not way.container.has("/var/lib/wslgpud")
    assert way.types("getent", "passwd", "wslgpud", check=False) == ""
    assert way.types(*LOOK_AT_CANARY) == before
