"""``wslgpud service`` from a wheel, as pipx or uv install it: a bare Debian of its own, natively, without a network.

A stand-in answers for systemd; ``test_ways_in`` has the real one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import REPOSITORY, slow
from .image import GUEST_PYTHON
from .image import _downloaded as downloaded  # its own file is part of the images' key: best left alone
from .test_fresh import Newcomer, newcomer
from .test_install import SECRET, Admin, bring_systemd

__all__ = ["newcomer"]  # a fixture

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm-service"), pytest.mark.timeout(3000)]

SOMEBODY = 1000
ENVIRONMENT = "/srv/somebody/venvs/wslgpud"
PROGRAM = f"{ENVIRONMENT}/bin/wslgpud"
RELEASES = "opt/wslgpud.releases"
UNIT = "etc/systemd/system/wslgpud.service"


class User(Admin):
    """Somebody who has the wheel in an environment of their own, and sudo."""

    def __init__(self, newcomer: Newcomer, kept: Path) -> None:
        super().__init__(newcomer)
        self._kept = kept

    def has_installed(self, wheel: Path) -> None:
        """Do what ``pipx install`` does, as an ordinary user."""
        at = f"srv/somebody/{wheel.name}"
        self.put(at)
        shutil.copy(wheel, self.folder / "upper" / at)
        for path in ("wheels", "srv/somebody"):
            self.give(path, SOMEBODY)
        pip = [f"{ENVIRONMENT}/bin/python", "-m", "pip", "install", "-q", "--no-compile"]
        pip += ["--find-links=/wheels", f"/{at}"]
        make = [["python3", "-m", "venv", ENVIRONMENT], pip]
        another_version = [[*pip, "--force-reinstall", "--no-deps"]]
        for command in another_version if (self.folder / f"upper{PROGRAM}").exists() else make:
            done = self.types("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups", *command)
            assert done.returncode == 0, done.stderr

    def has_the_service(self, *words: str) -> None:
        """Have it installed, with these options."""
        self.takes(RELEASES)
        done = self.service("install", *words)
        assert done.returncode == 0, done.stderr
        self.keeps(RELEASES)

    def keeps(self, path: str) -> None:
        """Keep a folder that took as long to make as the rest of a test, for the tests that are not about that."""
        kept = self._kept / path.replace("/", "-")
        if not kept.exists():
            subprocess.run(["cp", "-a", self.folder / "upper" / path, kept], check=True)

    def takes(self, path: str) -> bool:
        """Take the folder that was kept, if any was."""
        kept, folder = self._kept / path.replace("/", "-"), self.folder / "upper" / path
        if kept.exists():
            if folder.is_char_device():  # an overlay's "gone"
                folder.unlink()
            folder.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", kept, folder], check=True)
        return kept.exists()

    def service(self, *words: str, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
        return self.types(program, "service", *words)

    @property
    def release(self) -> str:
        return str((self.folder / "upper/opt/wslgpud").readlink())

    def files(self) -> Iterator[Path]:
        """Yield what has come to the machine, but for what only its log and its caches are."""
        upper = self.folder / "upper"
        for path in upper.rglob("*"):
            name = path.relative_to(upper)
            if (
                name.parts[0] not in ("srv", "wheels", "root", "tmp", "systemctl.log", "proc", "dev")
                and not path.is_dir()
            ):
                yield name


def psycopg() -> Path:
    """Return a folder with the wheels of the extra ``postgresql``, for the guest's Python."""
    options = [f"--python-version={GUEST_PYTHON}"]
    options += [f"--platform=manylinux{version}_x86_64" for version in ("_2_28", "_2_17", "2014")]
    return downloaded("postgresql", REPOSITORY / "deploy/extras/postgresql.txt", *options)


@pytest.fixture
def user(newcomer: Newcomer, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> User:
    one = User(newcomer, tmp_path_factory.getbasetemp())
    bring_systemd(one)
    if not one.takes("srv/somebody/venvs"):
        one.has_installed(wheel)
        one.keeps("srv/somebody/venvs")
    return one


def another(wheel: Path, folder: Path, version: str, *more: str) -> Path:
    """Return the wheel of another version, with ``more`` empty modules; its RECORD vouches for no file."""
    made = folder / wheel.name.replace("0.1.0", version)
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w") as new:
        texts = {name.replace("0.1.0", version): old.read(name) for name in old.namelist()}
        for name in (f"wslgpud-{version}.dist-info/METADATA", "wslgpud/__init__.py"):
            texts[name] = texts[name].replace(b"0.1.0", version.encode())
        texts |= {f"wslgpud/{name}": b"" for name in more}
        texts[f"wslgpud-{version}.dist-info/RECORD"] = "".join(f"{name},,\n" for name in texts).encode()
        for name, text in texts.items():
            new.writestr(name, text)
    return made


def test_the_service_survives_removal_of_the_users_environment(user: User) -> None:
    done = user.service("install")
    user.keeps(RELEASES)
    as_somebody = ("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups")
    removed = user.types(*as_somebody, "rm", "-r", ENVIRONMENT)

    assert done.returncode == 0, done.stderr
    assert (removed.returncode, removed.stderr) == (0, ""), "root has left nothing in it that its user cannot remove"
    assert "wslgpud 0.1.0 runs, and starts with the machine." in done.stdout
    assert user.types("/opt/wslgpud/bin/wslgpud", "--version").stdout == "wslgpud 0.1.0\n"
    release = user.folder / f"upper{user.release}"
    assert {path.lstat().st_uid for path in release.rglob("*")} == {0}
    assert not any(path.name.startswith("pip") for path in (release / "lib").glob("python3*/site-packages/*"))
    assert user.read(UNIT).count("/opt/wslgpud/bin/wslgpud") == 2
    assert user.access(user.folder / "upper/etc/wslgpud/wslgpud.toml") == "root:wslgpud 640"


def test_a_second_install_has_nothing_left_to_do(user: User) -> None:
    user.has_the_service("--allow", "home")
    user.put("tmp/active")
    again = user.service("install", "--dry-run")
    status = json.loads(user.service("status", "--json").stdout)

    assert again.stdout == "would do:\n  nothing: everything is up to date\n"
    assert status["version"] == status["command_version"] == "0.1.0"
    assert (status["kind"], status["allowed"], status["configuration"]) == (
        "system",
        ["home"],
        "/etc/wslgpud/wslgpud.toml",
    )


def test_an_upgrade_keeps_settings_and_rolls_back_on_failure(user: User, wheel: Path, tmp_path: Path) -> None:
    user.has_the_service("--allow", "save-signal")
    user.put("etc/wslgpud/wslgpud.toml", SECRET, 0o640)
    first = user.release
    user.has_installed(another(wheel, tmp_path, "0.2.0", "broken.py"))
    told = user.service("status").stdout
    failed = user.service("upgrade")

    assert f"this command is 0.2.0: sudo {PROGRAM} service upgrade" in told
    assert (failed.returncode, user.release) == (2, first)
    assert "the previous one runs again" in failed.stderr

    user.has_installed(another(wheel, tmp_path, "0.3.0"))
    done = user.service("upgrade")
    assert done.returncode == 0, done.stderr
    assert "/0.3.0-" in user.release
    assert user.read("etc/wslgpud/wslgpud.toml") == SECRET
    assert [path.name for path in (user.folder / "upper/opt/wslgpud.releases").iterdir() if path.is_dir()] == [
        Path(user.release).name
    ]
    assert user.has("etc/systemd/system/wslgpud.service.d/wslgpud-save-signal.conf")


def test_the_service_never_runs_a_file_changed_since_install(user: User) -> None:
    name = next((user.folder / f"upper{ENVIRONMENT}/lib").glob("python3*/site-packages/h11/_state.py"))
    name.write_text(name.read_text() + "\n")
    done = user.service("install")

    assert done.returncode == 2
    assert "h11/_state.py of h11 is missing or was changed: install h11 again" in done.stderr
    assert not any(user.has(path) for path in ("opt/wslgpud", UNIT, "etc/wslgpud"))


@slow
def test_an_extra_is_installed_as_locked_and_kept_by_upgrades(user: User, wheel: Path, tmp_path: Path) -> None:
    without = user.service("install", "--extra", "postgresql")
    assert (without.returncode, user.has(UNIT)) == (2, False)  # there is no network here

    for file in psycopg().iterdir():
        shutil.copy(file, user.folder / "upper/wheels")
    done = user.types(PROGRAM, "service", "install", "--extra", "postgresql", PIP_FIND_LINKS="/wheels")
    user.has_installed(another(wheel, tmp_path, "0.2.0"))
    upgraded = user.types(PROGRAM, "service", "upgrade", PIP_FIND_LINKS="/wheels")
    asked = user.types("/opt/wslgpud/bin/python", "-c", "import psycopg, wslgpud; print(wslgpud.__version__)")

    assert (done.returncode, upgraded.returncode) == (0, 0), done.stderr + upgraded.stderr
    assert asked.stdout == "0.2.0\n"
    assert json.loads(user.service("status", "--json").stdout)["extras"] == ["postgresql"]
    assert "there is no apprize: one of apprise, otlp" in user.service("install", "--extra", "apprize").stderr


def small_torch(folder: Path) -> tuple[Path, str]:
    """Return a wheel that calls itself torch, and a lock file that names it; the real one has gigabytes."""
    wheel = folder / "torch-2.13.0-py3-none-any.whl"
    info = "torch-2.13.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch/__init__.py", "")
        archive.writestr("torch/version.py", "__version__ = '2.13.0'\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return wheel, f"torch==2.13.0 \\\n    --hash=sha256:{digest}\n# downloads {wheel.stat().st_size} bytes on x86-64\n"


def with_lock(wheel: Path, folder: Path, version: str, lock: str) -> Path:
    """Return the wheel of another version, which locks another torch."""
    made = another(wheel, folder, version)
    with zipfile.ZipFile(made) as archive:
        texts = {name: archive.read(name) for name in archive.namelist()}
    texts["wslgpud/shipped/deploy/extras/stress.txt"] = lock.encode()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    return made


@slow
def test_torch_gets_its_own_environment_that_upgrades_keep(user: User, wheel: Path, tmp_path: Path) -> None:
    torch, lock = small_torch(tmp_path)
    user.has_installed(with_lock(wheel, tmp_path, "0.2.0", lock))
    without = user.service("install", "--extra", "stress")
    shutil.copy(torch, user.folder / "upper/wheels")
    shown = user.service("install", "--extra", "stress", "--dry-run").stdout
    done = user.types(PROGRAM, "service", "install", "--extra", "stress", PIP_FIND_LINKS="/wheels")
    at, release = user.folder / "upper/opt/wslgpud.stress", user.folder / f"upper{user.release}"
    made = (at / "stress.txt").stat()
    user.has_installed(with_lock(wheel, tmp_path, "0.3.0", lock.replace("on x86", "on every x86")))
    upgraded = user.service("upgrade")  # from nowhere: PIP_NO_INDEX, and no folder
    found = user.types(
        "/opt/wslgpud/bin/python",
        "-c",
        "from pathlib import Path; from wslgpud.stress.find_python import find_python;"
        " x = find_python('', {}, Path('/var/lib/wslgpud')); print(x.path, x.account.name)",
    )

    assert without.returncode == 2, "the service runs, and torch could not be had"
    assert "/opt/wslgpud.stress cannot be made" in without.stderr
    assert "No matching distribution found for torch" in without.stderr
    assert "make /opt/wslgpud.stress: an environment of /usr/bin/python3.11 with torch (downloads 1 KiB)" in shown
    assert done.returncode == 0, done.stderr
    assert "torch for the nightly test: downloading 1 KiB" in done.stderr
    assert not [*release.glob("lib/python3*/site-packages/torch")]
    assert {path.lstat().st_uid for path in at.rglob("*")} == {0}
    assert upgraded.returncode == 0, upgraded.stderr
    assert (at / "stress.txt").stat().st_mtime == made.st_mtime
    assert found.stdout == "/opt/wslgpud.stress/bin/python3 wslgpud-stress\n", found.stderr
    assert json.loads(user.service("status", "--json").stdout)["extras"] == ["stress"]

    again = user.types(PROGRAM, "service", "install", "--extra", "stress", PIP_FIND_LINKS="/wheels")
    assert again.returncode == 0, again.stderr
    assert "on every x86" in (at / "stress.txt").read_text()
    removed = user.service("uninstall", program="/usr/local/bin/wslgpud")
    assert (removed.returncode, user.has("opt/wslgpud.stress")) == (0, False), removed.stderr


def test_without_root_users_are_told_what_to_type(user: User) -> None:
    plain = user.types(
        "setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups", PROGRAM, "service", "install"
    )

    assert plain.returncode == 2
    assert f"this needs root: sudo {PROGRAM} service install (or, without root" in plain.stderr
    assert "no service is installed here" in user.service("upgrade").stderr
    assert user.service("status").returncode == 1


def test_uninstall_explains_the_wait_and_purge_leaves_nothing(user: User) -> None:
    before = {*user.files()}
    user.has_the_service("--allow", "home")
    kept = user.service("uninstall", program="/usr/local/bin/wslgpud")
    assert "kept: /etc/wslgpud" in kept.stdout
    assert kept.stderr == "wslgpud: stopping and removing the service (half a minute at most)\n"
    assert user.has("etc/wslgpud/wslgpud.toml")
    user.service("install")
    done = user.service("uninstall", "--purge", program="/usr/local/bin/wslgpud")

    assert (done.returncode, done.stdout) == (0, "wslgpud is removed.\n")
    accounts = {
        Path("etc") / name for name in (".pwd.lock", "passwd", "group", "shadow", "gshadow", "subuid", "subgid")
    }
    left = {path for path in {*user.files()} - before if path.with_name(path.name.rstrip("-")) not in accounts}
    assert {
        path for path in left if not (user.folder / "upper" / path).is_char_device()
    } == set()  # an overlay's "gone"
    assert "wslgpud" not in user.read("etc/passwd") + user.read("etc/group")
