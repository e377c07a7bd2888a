"""``wslgpud config show`` on a terminal: each key, where it comes from, and its help within the lines."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from wslgpud import config as configuration
from wslgpud.cli import app


@pytest.fixture
def service_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The service's configuration, which this user may not read."""
    file = tmp_path / "etc/wslgpud.toml"
    file.parent.mkdir()
    monkeypatch.setattr(configuration, "SYSTEM_FILE", file)
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != file and allowed(path, mode))
    return file


def shown(home: Path, *arguments: str, columns: int = 80) -> tuple[str, str]:
    environment = {"HOME": str(home), "COLUMNS": str(columns), "LC_ALL": "C.UTF-8"}
    done = CliRunner().invoke(app, ["config", "show", *arguments], env=environment)
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def test_only_a_key_that_was_set_has_an_origin(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[sampling]\ninterval_seconds = 7\n")
    lines = shown(tmp_path, "--config", str(file), columns=300)[0].splitlines()

    origins = [number for number, line in enumerate(lines) if line.startswith("    from ")]
    assert [lines[number - 1] for number in origins] == ["sampling.interval_seconds = 7.0"]
    assert str(file) in lines[origins[0]]


@pytest.mark.parametrize(("columns", "widest"), [(60, 60), (99, 99), (101, 100), (300, 100)])
def test_help_fills_the_lines_of_the_terminal_to_100_characters(columns: int, widest: int, tmp_path: Path) -> None:
    lines = shown(tmp_path, columns=columns)[0].splitlines()
    wrapped = [(one, after) for one, after in pairwise(lines) if one.startswith("    ") and after.startswith("    ")]

    assert wrapped
    assert max(len(line) for line in lines if line.startswith("    ")) <= widest
    assert all(len(f"{one} {after.split()[0]}") > widest for one, after in wrapped)


def test_users_who_may_not_read_the_service_config_are_told(service_file: Path, tmp_path: Path) -> None:
    told = f"the service has a configuration that you may not read: {service_file}"
    own = tmp_path / "own.toml"
    own.touch()

    assert told in shown(tmp_path)[1].replace("\n", " ")
    assert shown(tmp_path, "--config", str(own))[1] == ""
    service_file.parent.rmdir()
    assert shown(tmp_path)[1] == ""


@pytest.mark.parametrize(("uid", "own"), [(0, False), (1, True), (1000, True)])
def test_root_writes_the_service_config_and_others_their_own(
    uid: int, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = tmp_path / "etc/wslgpud/wslgpud.toml"
    monkeypatch.setattr(configuration, "SYSTEM_FILE", service)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    done = CliRunner().invoke(app, ["config", "init"], env={"HOME": str(tmp_path), "XDG_CONFIG_HOME": ""})
    written = configuration.user_file({"HOME": str(tmp_path)}) if own else service

    assert done.exit_code == 0, done.output
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [written]
    assert done.stdout.split() == ["wrote", str(written)]


def test_a_new_configuration_of_the_service_is_for_its_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service, given = tmp_path / "etc/wslgpud/wslgpud.toml", []
    monkeypatch.setattr(configuration, "SYSTEM_FILE", service)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("grp.getgrnam", lambda name: SimpleNamespace(gr_gid={"wslgpud": 990}[name]))
    monkeypatch.setattr(os, "chown", lambda path, *ids: given.append((path, *ids)))
    CliRunner().invoke(app, ["config", "init"])

    assert given == [(service.parent, -1, 990), (service, -1, 990)]
    assert [path.stat().st_mode & 0o7777 for path, *_ in given] == [0o750, 0o640]


def test_a_check_says_which_file_is_good_or_that_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "SYSTEM_FILE", tmp_path / "none.toml")
    file = tmp_path / "own.toml"
    file.touch()

    def checked(*arguments: str) -> str:
        return CliRunner().invoke(app, ["config", "check", *arguments], env={"HOME": str(tmp_path)}).stdout

    assert checked("--config", str(file)).replace("\n", "") == f"{file}: good"
    assert checked() == "no file, only defaults: good\n"


def test_a_new_configuration_is_closed_to_other_users(tmp_path: Path) -> None:
    kept = os.umask(0)
    try:
        CliRunner().invoke(app, ["config", "init", str(tmp_path / "new/wslgpud.toml")])
    finally:
        os.umask(kept)

    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o750
    assert (tmp_path / "new/wslgpud.toml").stat().st_mode & 0o7777 == 0o600
