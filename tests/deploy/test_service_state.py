"""The state of a service, the removal of its accounts, the package's steps and the room for torch, without systemd."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import wslgpud
from tests.support.daemons import saying
from wslgpud.service import install, release, systemctl
from wslgpud.service import places as service_places
from wslgpud.service.changes import Changes, ServiceError, use_the_systems_programs
from wslgpud.service.places import SYSTEM, Places, places
from wslgpud.service.systemctl import state_of

GIB = 1 << 30
SYSTEMCTL = '#!/bin/sh\ncase "$*" in *is-enabled*) exit 0 ;; *show*) echo active ;; esac\n'


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """The places of a user's service in an empty home, with a systemd that says that it runs."""
    program(tmp_path / "programs/systemctl", SYSTEMCTL)
    program(tmp_path / "programs/journalctl", '#!/bin/sh\necho "$*"\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "programs"), prepend=os.pathsep)
    return places(user=True)


def test_a_user_services_state_comes_from_systemd_and_its_files(home: Places) -> None:
    expected = {
        "kind": "user",
        "version": "",
        "command_version": wslgpud.__version__,
        "state": "active",
        "enabled": True,
        "url": "",
        "configuration": str(home.configuration),
        "data": str(home.data),
        "extras": (),
        "allowed": (),
    }
    assert asdict(state_of(home)) == expected, "nothing is installed"

    program(home.program / "bin/wslgpud", "#!/bin/sh\necho wslgpud 1.2\n")
    home.stress.mkdir()
    home.drop_ins.mkdir(parents=True)
    (home.drop_ins / "wslgpud-docker.conf").touch()
    home.data.mkdir(parents=True)
    with saying(home.data, {"url": "http://127.0.0.1:9655"}):
        known = asdict(state_of(home))
    assert known == expected | {
        "version": "1.2",
        "url": "http://127.0.0.1:9655",
        "extras": ("stress",),
        "allowed": ("docker",),
    }


def test_the_version_of_the_package_is_that_of_its_own_program(
    home: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = tmp_path / "wslgpud.service"
    unit.touch()
    monkeypatch.setattr(service_places, "_PACKAGED_UNIT", unit)
    monkeypatch.setattr(systemctl, "PACKAGED_PROGRAM", program(tmp_path / "packaged", "#!/bin/sh\necho wslgpud 3.4\n"))
    program(home.program / "bin/wslgpud", "#!/bin/sh\necho wslgpud 1.2\n")
    machines = state_of(replace(home, user=False))

    assert (machines.kind, machines.version) == ("package", "3.4")
    assert (state_of(home).kind, state_of(home).version) == ("user", "1.2"), "a user's own is never the package's"


def test_the_last_words_are_five_lines_of_the_right_journal(home: Places) -> None:
    asked = "--unit=wslgpud --lines=5 --output=cat --no-pager\n"

    assert systemctl.last_words(home) == f"--user {asked}"
    assert systemctl.last_words(SYSTEM) == asked


@pytest.mark.parametrize(
    ("users", "groups", "told"),
    [
        ({"wslgpud"}, {"wslgpud"}, ["userdel wslgpud", "groupdel wslgpud"]),
        ({"wslgpud-stress"}, set(), ["userdel wslgpud-stress"]),
        (set(), {"wslgpud"}, ["groupdel wslgpud"]),  # an earlier removal stopped between the two
        (set(), set(), []),
    ],
)
def test_only_accounts_and_groups_that_exist_are_removed(
    users: set[str], groups: set[str], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "account_exists", users.__contains__)
    monkeypatch.setattr(install, "_members", lambda name: [] if name in groups else None)
    planned = Changes(dry=True)
    install.remove_accounts(planned)

    assert planned.descriptions == told


def test_the_package_compiles_its_own_packages_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "PACKAGE", tmp_path / "wslgpud")
    folders = [tmp_path / "wslgpud/python3", tmp_path / "wslgpud-of-another"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "module.py").write_text("x = 1\n")
    monkeypatch.setattr(sys, "path", [*map(str, folders), *sys.path])
    install.compile_packages()

    assert [(folder / "__pycache__").exists() for folder in folders] == [True, False]


def test_torch_is_downloaded_if_three_times_its_size_is_free(
    home: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "stress.txt"
    lock.write_text(f"# the packages\n# downloads {2 * GIB} bytes on x86-64\n")
    monkeypatch.setattr(release, "TORCH_LOCK", lock)
    monkeypatch.setattr(release, "output", lambda *words: words[-1].mkdir(parents=True))
    monkeypatch.setattr(release, "fetch", lambda *_: None)
    home.stress.parent.mkdir(parents=True)

    def made(free_bytes: int) -> bool:
        usage = SimpleNamespace(free=free_bytes)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        applied = Changes(dry=False)
        release.put_torch(Path("/usr/bin/python3"), home, applied, asked=True)
        assert applied.descriptions == [
            f"make {home.stress}: an environment of /usr/bin/python3 with torch (downloads 2.0 GiB)"
        ]
        return (home.stress / "stress.txt").read_text() == lock.read_text()

    with pytest.raises(ServiceError, match=r"needs 6\.0 GiB, and 6\.0 GiB are free there"):
        made(6 * GIB - 1)
    assert not home.stress.exists()
    assert made(6 * GIB)


def test_a_lock_file_without_sizes_downloads_an_unknown_amount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "stress.txt"
    lock.write_text("# the packages\n")
    monkeypatch.setattr(release, "TORCH_LOCK", lock)

    assert release.download_bytes() == 0


@pytest.mark.parametrize("root", [True, False])
def test_only_root_gives_up_the_programs_of_a_users_path(monkeypatch: pytest.MonkeyPatch, *, root: bool) -> None:
    monkeypatch.setenv("PATH", "/home/me/bin:/usr/bin")
    monkeypatch.setattr("os.geteuid", lambda: 0 if root else 1000)
    use_the_systems_programs()

    assert ("/home/me/bin" in os.environ["PATH"]) is not root
    assert "/usr/bin" in os.environ["PATH"].split(":")
