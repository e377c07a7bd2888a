"""Dashboards and rules come with the program: the exported files equal the repository's, and no user's file is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from deploy.prometheus import generate
from wslgpud.cli import app

REPOSITORY = Path(__file__).parents[2]
RULES = "deploy/prometheus/wslgpud.rules.yml"
FOLDERS = ("grafana/dashboards", "grafana/provisioning")
FILES = ("grafana/compose.yml", "deploy/prometheus/alertmanager.yml", "deploy/prometheus/scrape.yml", RULES)
#: what 'wslgpud service install' needs
SERVICE = tuple(f"deploy/{name}" for name in ("drop-ins", "extras", "requirements.txt", "system", "user"))
IN_FOLDERS = (file for folder in FOLDERS for file in (REPOSITORY / folder).rglob("*") if file.is_file())
SHIPPED = sorted([*FILES, *(str(file.relative_to(REPOSITORY)) for file in IN_FOLDERS)])


def typed(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def test_both_commands_together_write_what_compose_starts(tmp_path: Path) -> None:
    for command in ("dashboards", "rules"):
        code, told = typed(command, "export", tmp_path)
        assert (code, "files in" in told) == (0, True), told

    found = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file())
    assert found == SHIPPED
    assert all((tmp_path / name).read_bytes() == (REPOSITORY / name).read_bytes() for name in found)
    compose = yaml.safe_load((tmp_path / "grafana/compose.yml").read_text())
    mounts = [volume.split(":")[0] for service in compose["services"].values() for volume in service["volumes"]]
    assert all((tmp_path / "grafana" / mount).is_dir() for mount in mounts if mount.startswith("."))


def test_exported_links_lead_to_the_given_grafana_and_daemon(tmp_path: Path) -> None:
    where = ("--grafana", "https://grafana.example/", "--daemon", "https://pc.example:9655")
    assert typed("rules", "export", tmp_path, *where)[0] == 0

    made = generate.text("https://grafana.example", "https://pc.example:9655")
    # Its lines break elsewhere, for they are longer.
    assert yaml.safe_load((tmp_path / RULES).read_text()) == yaml.safe_load(made)


def test_what_somebody_has_changed_is_replaced_only_by_force(tmp_path: Path) -> None:
    assert typed("rules", "export", tmp_path)[0] == typed("rules", "export", tmp_path)[0] == 0
    (tmp_path / RULES).write_text("mine")
    code, told = typed("rules", "export", tmp_path)

    assert (code, "--force replaces it" in told) == (2, True)
    assert (tmp_path / RULES).read_text() == "mine"
    assert typed("rules", "export", tmp_path, "--force")[0] == 0
    assert (tmp_path / RULES).read_text() == (REPOSITORY / RULES).read_text()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, told = typed("dashboards", "export", tmp_path / "file")

    assert (code, str(tmp_path / "file") in told) == (2, True)


def test_the_wheel_is_told_to_hold_them_all() -> None:
    tomllib = pytest.importorskip("tomllib")
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]

    places = (*FILES, *FOLDERS, *SERVICE)
    assert wheel["force-include"] == {place: f"wslgpud/shipped/{place}" for place in places}
