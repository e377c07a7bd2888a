"""Secrets that people put into our files stay theirs: files are made closed, and an open one is named."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.daemons import daemon
from wslgpud import config as configuration
from wslgpud.advise.doctor.checking import Evidence
from wslgpud.advise.doctor.checks_machine import secrets
from wslgpud.cli import app
from wslgpud.config import Config, config_files, load
from wslgpud.host import Host

SECRET = '[alerts]\nurls = ["ntfy://ntfy.sh/my-topic"]\n'
HARMLESS = "[sampling]\ninterval_seconds = 2\n"


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder to which everybody has a way; pytest's own are closed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        if not all(above.stat().st_mode & stat.S_IXOTH for above in folder.parents):
            pytest.skip(f"{folder} lies in a folder that is closed to others")
        yield folder


def put(file: Path, text: str, mode: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_new_configuration_is_private_before_it_holds_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, seen, real = tmp_path / "new" / "wslgpud.toml", [], os.fdopen

    def watched(descriptor: int, *arguments: object, **options: object) -> object:
        found = os.fstat(descriptor)
        seen.append((stat.S_IMODE(found.st_mode), found.st_size))
        return real(descriptor, *arguments, **options)

    monkeypatch.setattr(os, "fdopen", watched)
    before = os.umask(0)
    try:
        done = CliRunner().invoke(app, ["config", "init", str(file)])
    finally:
        os.umask(before)

    assert done.exit_code == 0
    assert seen == [(0o600, 0)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o750
    assert load(file, {}).config == Config()


@pytest.mark.parametrize("target", ["nothing-yet", "something"])
def test_a_link_in_its_place_is_not_followed(tmp_path: Path, target: str) -> None:
    put(tmp_path / "something", "another's", 0o644)
    (tmp_path / "wslgpud.toml").symlink_to(tmp_path / target)
    done = CliRunner().invoke(app, ["config", "init", str(tmp_path / "wslgpud.toml")])

    assert done.exit_code == 2
    assert "exists already" in done.stderr
    assert not (tmp_path / "nothing-yet").exists()
    assert (tmp_path / "something").read_text() == "another's"


@pytest.mark.parametrize(
    ("text", "mode", "folder_mode", "found"),
    [
        (SECRET, 0o644, 0o755, True),
        ('[store]\npath = "postgresql://me:word@db/history"\n', 0o604, 0o755, True),
        (SECRET, 0o640, 0o755, False),
        (SECRET, 0o644, 0o750, False),  # as the service's lies
        (HARMLESS, 0o644, 0o755, False),
    ],
)
def test_a_world_readable_configuration_with_secrets_is_found(
    public: Path, text: str, mode: int, folder_mode: int, found: bool
) -> None:
    file = put(public / "here" / "wslgpud.toml", text, mode)
    file.parent.chmod(folder_mode)

    assert config_files.exposed(load(file, {}).config, file) == ([file] if found else [])


@pytest.mark.parametrize("key", ["alerts.urls_file", "server.web_config_file"])
def test_files_of_secrets_that_it_names_are_found_as_well(public: Path, key: str) -> None:
    named = put(public / "named", "", 0o644)
    section, _, name = key.partition(".")
    file = put(public / "wslgpud.toml", f'[{section}]\n{name} = "{named}"\n', 0o644)

    assert config_files.exposed(load(file, {}).config, file) == [named]
    named.chmod(0o640)
    assert config_files.exposed(load(file, {}).config, file) == []


def test_the_daemon_warns_in_one_line_and_the_doctor_has_a_fix(
    public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(public / ".config" / "wslgpud" / "wslgpud.toml", HARMLESS, 0o644)
    urls = put(public / "urls", "json://127.0.0.1:1/hook\n", 0o644)
    settings = {"WSLGPUD_ALERTS__URLS_FILE": str(urls)}
    with daemon(tmp_path, settings={**settings, "HOME": str(public)}) as running:
        _, said = running.end()
    warned = [line for line in said.splitlines() if "every user can read" in line]
    monkeypatch.setattr(configuration, "SYSTEM_FILE", public / "no-service.toml")
    for name in ("XDG_CONFIG_HOME", "STATE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(public))

    def doctor() -> tuple[str, str, str]:
        state, *texts = secrets(Evidence(Host(), load(file, settings).config, None, str(tmp_path)))
        return (state, *map(str, texts))

    assert len(warned) == 1
    assert f"{urls}, which holds secrets: {config_files.remedy(urls)}" in warned[0]
    assert doctor() == ("problem", f"every user can read {urls}", config_files.remedy(urls))
    assert f"chmod {640 if os.geteuid() == 0 else 600} {urls}" in doctor()[2]
    urls.chmod(0o640)
    assert doctor()[0] == "good"


def test_the_service_never_silently_skips_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = put(tmp_path / "etc" / "wslgpud.toml", SECRET, 0o640)
    own = put(tmp_path / "home" / "wslgpud" / "wslgpud.toml", HARMLESS, 0o600)
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    monkeypatch.setattr(configuration, "SYSTEM_FILE", closed)
    assert configuration.find_file(environ) == closed

    # Root, which tests may run as, would be let in.
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed)
    assert configuration.find_file(environ) == own
    assert configuration.find_file({}) is None or configuration.find_file({}) != closed
    assert configuration.find_file({**environ, "STATE_DIRECTORY": "/var/lib/wslgpud"}) == closed

    shown = CliRunner().invoke(app, ["config", "show"], env=environ)
    assert str(closed) in shown.stderr
    assert shown.exit_code == 0
