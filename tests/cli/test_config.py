"""``wslgpud config``, run in this process: what it prints, where it writes, and what it says of a file out of reach."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from wslgpud import config as configuration
from wslgpud.cli import app


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The service's configuration file, in a folder of the test, and a home without one."""
    for name in [name for name in os.environ if name.startswith("WSLGPUD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    file = tmp_path / "etc" / "wslgpud.toml"
    monkeypatch.setattr(configuration, "SYSTEM_FILE", file)
    return file


def run(*words: str, columns: int = 200) -> Result:
    return CliRunner().invoke(app, ["config", *words], env={"COLUMNS": str(columns)})


def widest(lines: list[str]) -> int:
    """Return the width of the widest line of explanations; paths and addresses are never broken."""
    return max(len(line) for line in lines if line.startswith("    ") and "/" not in line)


def test_a_set_key_is_shown_with_its_origin_and_all_with_their_meaning_in_at_most_a_hundred_columns(
    service: Path,
) -> None:
    service.parent.mkdir()
    service.write_text("[store]\nraw_days = 3\n")
    lines = run("show", "--config", str(service)).output.splitlines()
    place = lines.index("store.raw_days = 3.0")

    assert lines[place + 1] == f"    from {service}"
    assert lines[place + 2].startswith("    ")
    assert sum(line.startswith("    from ") for line in lines) == 1
    assert 90 < widest(lines) <= 100
    assert 50 < widest(run("show", columns=60).output.splitlines()) <= 60


def test_a_check_names_the_file_or_says_that_there_is_none(service: Path) -> None:
    assert run("check").output == "no file, only defaults: good\n"

    service.parent.mkdir()
    service.write_text("[store]\nraw_days = 3\n")
    assert run("check", "--config", str(service)).output == f"{service}: good\n"


def test_a_new_file_goes_where_its_user_is_looked_for(
    service: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert run("init").output == f"wrote {service}\n"

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    mine = tmp_path / ".config" / "wslgpud" / "wslgpud.toml"
    assert run("init").output == f"wrote {mine}\n"
    assert mine.read_text() == service.read_text()


def test_only_the_services_own_file_out_of_reach_is_worth_a_notice(
    service: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = f"the service has a configuration that you may not read: {service}"
    assert notice not in run("check").output  # there is no service

    service.parent.mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: path != service)
    assert notice in run("check").output

    other = service.with_name("other.toml")
    other.write_text("")
    assert notice not in run("check", "--config", str(other)).output

    monkeypatch.setattr(os, "access", lambda *_: True)
    assert notice not in run("check").output
