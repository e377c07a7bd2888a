"""An installation that was damaged is repaired, or at least described, by the commands that meet it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from wslgpud.cli import service
from wslgpud.service import install as installing
from wslgpud.service import release
from wslgpud.service.changes import Changes
from wslgpud.service.install import Options
from wslgpud.service.places import places
from wslgpud.service.systemctl import is_enabled


@pytest.fixture
def where(tmp_path, monkeypatch):
    """The places of a service in an empty home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return places(user=True)


@pytest.fixture
def torch_environment(where):
    """An environment as ``--extra stress`` makes it, with its copy of the lock file."""
    (where.stress / "bin").mkdir(parents=True)
    (where.stress / "bin/python3").symlink_to(sys.executable)
    copied = where.stress / release.TORCH_LOCK.name
    copied.write_bytes(release.TORCH_LOCK.read_bytes())
    return copied


def test_a_user_service_is_run_by_that_users_own_systemd(where):
    assert where.systemctl("stop") == ("systemctl", "--user", "stop")
    assert places(user=False).systemctl("stop") == ("systemctl", "stop")


@pytest.mark.parametrize(
    ("wsl", "wanted", "already", "told"),
    [(2, False, False, True), (2, True, False, False), (2, False, True, False), (None, False, False, False)],
    ids=["under WSL", "asked for", "seen to before", "bare Linux"],
)
def test_installing_under_wsl_says_what_keeps_the_daemon_alive(wsl, wanted, already, told, where, monkeypatch, capsys):
    for module, name, answer in (
        (service, "_begin", (where, Changes(dry=False))),
        (service, "generation", wsl),
        (service, "print_brief", None),
        (service.doctors, "run", []),
        (installing, "install", "1.0"),
        (installing, "keeps_alive", already),
    ):
        monkeypatch.setattr(module, name, lambda *_, answer=answer, **__: answer)
    monkeypatch.setattr(service, "signal", Mock())  # its handlers would stay
    where.settings.mkdir(parents=True)
    where.configuration.touch()

    service._install("install", Options((), (), wanted), user=True, dry_run=False)

    said = capsys.readouterr()
    assert "preparing the service (half a minute at most)" in said.err
    assert "wslgpud 1.0 runs, and starts with the machine" in said.out
    assert ("Windows stops this distribution 15 s after" in said.out) == told


def asked(where):
    """Return the changes that ``service install --extra stress`` would make for the nightly test."""
    changes = Changes(dry=True)
    release.put_torch(Path(sys.executable), where, changes, asked=True)
    return changes.descriptions


def test_a_torch_environment_of_this_version_is_left_as_it_is(where, torch_environment):
    assert asked(where) == []


@pytest.mark.parametrize("damage", [Path.unlink, lambda copied: copied.write_bytes(b"\xff")])
def test_a_torch_environment_without_its_lock_file_is_rebuilt(where, torch_environment, damage):
    damage(torch_environment)

    (change,) = asked(where)
    assert change.startswith(f"make {where.stress}: an environment of {sys.executable} with torch")


def test_readable_names_in_a_damaged_list_of_extras_are_kept(where):
    where.releases.mkdir(parents=True)
    where.extras.write_bytes(b"apprise\n\xff\xfe\x00\n")

    assert where.added_extras == ["apprise"]


def test_a_daemon_is_not_enabled_just_because_its_other_unit_is(tmp_path, monkeypatch):
    systemctl = tmp_path / "systemctl"  # succeeds if any of the units is enabled, as systemctl(1) says
    systemctl.write_text('#!/bin/sh\ncase "$*" in *wslgpud-stress.socket*) exit 0 ;; *) exit 1 ;; esac\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    assert not is_enabled(places(user=False))
