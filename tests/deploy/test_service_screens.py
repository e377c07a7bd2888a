"""The words of ``wslgpud service``: the state of the service, what was installed, and who may do it."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import saying
from wslgpud.cli import service
from wslgpud.cli.common import Fault
from wslgpud.cli.console import Console, pairs
from wslgpud.service import install, systemctl
from wslgpud.service.changes import Changes
from wslgpud.service.places import places
from wslgpud.service.systemctl import ServiceState

STATE = ServiceState(
    kind="user",
    version="1.2",
    command_version="1.2",
    state="active",
    enabled=True,
    url="http://127.0.0.1:9655",
    configuration="/c",
    data="/d",
    extras=("apprise", "stress"),
    allowed=(),
)
AS_IT_IS = [
    "  version   1.2",
    "  state     active",
    "  page      http://127.0.0.1:9655/",
    "  settings  /c",
    "  data      /d",
    "  extras    apprise, stress",
]


def printed(rows: list[tuple[str, str]]) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=400).print(pairs(rows))
    return [line.rstrip() for line in text.getvalue().splitlines()]


@pytest.fixture(autouse=True)
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that was started, as its user found it."""
    monkeypatch.setattr("sys.argv", ["/home/me/.local/bin/wslgpud"])


@pytest.mark.parametrize(
    ("changed", "line", "told"),
    [
        ({}, 0, "  version   1.2"),
        (
            {"command_version": "1.3"},
            0,
            "  version   1.2; this command is 1.3: sudo /home/me/.local/bin/wslgpud service upgrade",
        ),
        ({"command_version": "1.3", "kind": "package"}, 0, "  version   1.2"),
        ({"enabled": False}, 1, "  state     active, does not start with the machine"),
        ({"enabled": False, "state": ""}, 1, "  state     unknown: systemd does not answer"),
        ({"state": "failed"}, 2, "  settings  /c"),
        ({"url": ""}, 2, "  settings  /c"),
        ({"allowed": ("docker",)}, 6, "  allowed   docker"),
    ],
)
def test_the_state_has_a_line_for_each_fact(changed: dict[str, Any], line: int, told: str) -> None:
    assert printed(service._rows(STATE, user=False)) == AS_IT_IS
    assert printed(service._rows(replace(STATE, **changed), user=False))[line] == told


@pytest.mark.parametrize(
    ("runs", "version", "status"), [("active", "1.2", 0), ("failed", "1.2", 1), ("inactive", "", 1)]
)
def test_the_exit_status_says_whether_it_runs(
    runs: str, version: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service, "state_of", lambda _: replace(STATE, state=runs, version=version))
    monkeypatch.setattr(service, "use_the_systems_programs", lambda: None)
    with pytest.raises(SystemExit) as end:
        service.status(user=True)

    assert end.value.code == status
    assert ("no service is installed here" in capsys.readouterr().out) == (not version)


@pytest.mark.parametrize(("systems", "shown"), [(True, "system"), (False, "user")])
def test_the_only_service_is_shown_whoever_installed_it(
    systems: bool, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    own = places(user=True)
    system = replace(own, user=False, program=tmp_path / "opt", units=tmp_path / "etc")
    for where in (own, *[system] * systems):
        where.units.mkdir(parents=True)
        (where.units / "wslgpud.service").touch()
    monkeypatch.setattr(service, "places", lambda *, user: own if user else system)
    monkeypatch.setattr(service, "state_of", lambda where: replace(STATE, kind=where.kind))
    monkeypatch.setattr(service, "use_the_systems_programs", lambda: None)
    with pytest.raises(SystemExit):
        service.status(as_json=True)

    assert json.loads(capsys.readouterr().out)["kind"] == shown


@pytest.mark.parametrize("lingers", [True, False])
def test_the_installer_says_where_it_is_and_when_it_ends(
    lingers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setattr(systemctl, "lingers", lambda: lingers)
    where = places(user=True)
    where.data.mkdir(parents=True)
    own = [
        "  page      http://127.0.0.1:9655/",
        "  status    wslgpud status",
        "  log       journalctl --user -u wslgpud",
        f"  settings  {where.configuration}, then: systemctl --user restart wslgpud",
        "  remove    /home/me/.local/bin/wslgpud service uninstall --user",
    ]
    caution = "  caution   it ends when you log out, unless root runs: loginctl enable-linger me"

    with saying(where.data, {"url": "http://127.0.0.1:9655"}):
        assert printed(service._started(where)) == [*own, *[caution] * (not lingers)]
    assert not any("page" in line for line in printed(service._started(where)))
    machine = printed(service._started(replace(where, user=False)))
    assert machine[1] == "  log       journalctl -u wslgpud"
    assert machine[2].endswith("then: sudo systemctl restart wslgpud")
    assert machine[3:] == ["  remove    sudo /home/me/.local/bin/wslgpud service uninstall"]


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("/usr/bin/wslgpud", "wslgpud"),
        ("/opt/wslgpud/bin/wslgpud", "wslgpud"),
        ("/srv/wslgpud.releases/1/bin/wslgpud", "wslgpud"),
        ("bin/wslgpud", "wslgpud"),
        ("/home/a b/wslgpud", "'/home/a b/wslgpud'"),
        ("/home/me/lib/wslgpud/__main__.py", "PYTHON -m wslgpud"),
    ],
)
def test_a_program_not_on_sudos_path_is_shown_with_its_path(
    program: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [program])

    word = word.replace("PYTHON", sys.executable)
    assert service._typed("install", "--keep-alive", user=False) == f"sudo {word} service install --keep-alive"
    assert service._typed("install", user=True) == f"{word} service install --user"


@pytest.mark.parametrize(
    ("uid", "user", "dry_run", "refused"),
    [
        (0, True, False, "--user is for the service of an ordinary user"),
        (0, True, True, "--user is for the service of an ordinary user"),
        (0, False, False, ""),
        (1000, True, False, ""),
        (1000, False, True, ""),
        (1000, False, False, "this needs root: sudo /home/me/.local/bin/wslgpud service uninstall (or"),
    ],
)
def test_only_root_changes_the_machines_service(
    uid: int, user: bool, dry_run: bool, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setattr("os.umask", lambda _: 0)
    monkeypatch.setattr(service, "use_the_systems_programs", lambda: None)
    if refused:
        with pytest.raises(Fault) as fault:
            service._begin("uninstall", user=user, dry_run=dry_run)
        assert refused in str(fault.value)
    else:
        where, changes = service._begin("uninstall", user=user, dry_run=dry_run)
        assert (where, changes.dry) == (places(user=user), dry_run)


def test_only_a_service_that_is_installed_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    asked: list[str] = []
    monkeypatch.setattr(service, "_install", lambda action, *_, **__: asked.append(action))
    with pytest.raises(Fault, match=r"no service is installed here: \S+ service install --user does that"):
        service.upgrade(user=True)
    assert asked == []

    program = places(user=True).program
    (program.parent / "1.2").mkdir(parents=True)
    program.symlink_to("1.2")
    service.upgrade(user=True)
    assert asked == ["upgrade"]


@pytest.mark.parametrize(
    ("dry_run", "is_installed", "said"),
    [
        (True, True, "would do:\n  nothing: everything is up to date\n"),
        (False, True, "wslgpud is removed.\n  kept: /d\n"),
        (False, False, "no service was installed here.\n  kept: /d\n"),
    ],
)
def test_a_removal_is_told_only_if_it_has_happened(
    dry_run: bool,
    is_installed: bool,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if is_installed:
        places(user=True).units.mkdir(parents=True)
        (places(user=True).units / "wslgpud.service").touch()
    monkeypatch.setattr(service, "_begin", lambda *_, **__: (places(user=True), Changes(dry=dry_run)))
    monkeypatch.setattr(install, "uninstall", lambda *_, **__: [Path("/d")])
    service.uninstall(user=True, dry_run=dry_run)
    told = capsys.readouterr()

    assert told.out == said
    assert ("stopping and removing" in told.err) == (not dry_run)


@pytest.mark.parametrize(
    ("purge", "said"), [(True, "wslgpud is removed.\n"), (False, "no service was installed here.\n")]
)
def test_a_purge_after_a_removal_is_told(
    purge: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    places(user=True).data.mkdir(parents=True)
    monkeypatch.setattr(service, "_begin", lambda *_, **__: (places(user=True), Changes(dry=False)))
    monkeypatch.setattr(install, "uninstall", lambda where, *_, **__: where.data.rmdir() or [])
    service.uninstall(user=True, purge=purge)

    assert capsys.readouterr().out == said


def test_installed_files_are_readable_by_all_writable_by_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[int] = []
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.umask", masks.append)
    monkeypatch.setattr(service, "use_the_systems_programs", lambda: None)
    service._begin("install", user=False, dry_run=True)

    assert [oct(0o777 & ~mask) for mask in masks] == ["0o755"]
