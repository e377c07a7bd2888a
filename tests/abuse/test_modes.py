"""What the daemon and its commands keep is closed to other users, whatever the umask and whatever was there before."""

from __future__ import annotations

import grp
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.accounts import ALICE, needs_root
from tests.support.daemons import daemon, eventually
from wslgpud.cli import app
from wslgpud.client import SOCKET
from wslgpud.model import EMPTY, Snapshot, SourceReport
from wslgpud.security import safe_files
from wslgpud.store import Store

#: by design: every user may ask the daemon; the kernel says who does
FOR_ALL = {SOCKET}


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """The most careless umask there is."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: mode(path) for path in folder.iterdir() if not path.is_dir()}


def ticked(file: Path) -> None:
    """Let a history be written, and leave its log behind as a crash does."""
    with Store(file) as store:
        store.append(Snapshot(1.0, 1.0, 0, (SourceReport("memory", "ok", EMPTY, 1.0, 0.0),)))
        assert store.flush()
        found = modes(file.parent)
        assert {found[f"{file.name}{part}"] for part in ("", "-wal", "-shm")} == {safe_files.file_mode()}
        assert found[f"{file.name}.lock"] == 0o600


def test_all_a_running_daemon_keeps_is_private_but_its_socket(tmp_path: Path) -> None:
    with daemon(tmp_path) as running:
        eventually(lambda: (running.state / "wslgpud.db-wal").exists() and (running.state / SOCKET).exists(), "")
        found = modes(running.state)

        assert mode(running.state) == 0o700
        assert {name for name, bits in found.items() if bits & 0o077} == FOR_ALL
        assert found[SOCKET] == 0o666


def test_what_was_open_is_closed_at_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "wslgpud"
    ticked(folder / "wslgpud.db")
    for name in ("wslgpud.db.damaged-20260101T000000Z", "wslgpud.db-wal", "wslgpud.db-shm"):
        (folder / name).touch()
    for path in (folder, *folder.iterdir()):
        path.chmod(0o777 if path.is_dir() else 0o666)
    ticked(folder / "wslgpud.db")

    assert mode(folder) == 0o700
    assert set(modes(folder).values()) == {0o600}


def test_a_shared_folder_and_what_others_keep_in_it_stay_as_is(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(0o777)
    (folder / "page.html").touch(0o644)
    (folder / "elsewhere").touch(0o644)
    (folder / "wslgpud.db.old").symlink_to(folder / "elsewhere")
    with Store(folder / "wslgpud.db"):
        found = modes(folder)

    assert mode(folder) == 0o777
    assert (found["page.html"], found["elsewhere"], found["wslgpud.db"]) == (0o644, 0o644, 0o600)


@needs_root
def test_an_ordinary_users_history_is_private_as_well() -> None:
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, ALICE, ALICE)
        folder = Path(home) / "wslgpud"
        os.seteuid(ALICE)
        try:
            ticked(folder / "wslgpud.db")
            assert mode(folder) == 0o700
            theirs = folder / "wslgpud.db.copy"
            theirs.touch(0o644)
        finally:
            os.seteuid(0)
        folder.chmod(0o755)
        with Store(folder / "wslgpud.db"):
            assert mode(folder) == 0o755
            assert mode(theirs) == 0o644


def test_the_service_group_may_read_and_all_reach_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "var" / "wslgpud"
    monkeypatch.setattr(safe_files, "SYSTEM_STATE", folder)
    ticked(folder / "wslgpud.db")
    assert mode(folder) == 0o711
    monkeypatch.setattr(safe_files, "_GROUP", grp.getgrgid(os.getegid()).gr_name)
    served = tmp_path / "lib" / "wslgpud"
    monkeypatch.setattr(safe_files, "SYSTEM_STATE", served)
    ticked(served / "wslgpud.db")
    assert mode(served) == 0o751  # as StateDirectoryMode= of the unit

    assert {modes(served)["wslgpud.db"], modes(folder)["wslgpud.db"]} == {0o640, 0o600}
    assert safe_files.folder_mode(tmp_path) == 0o750


def test_what_commands_write_about_the_machine_is_for_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    ticked(tmp_path / "wslgpud.db")
    commands = (
        ("record", "a.jsonl.gz", "--for", "1s"),
        ("record", "a.jsonl", "--for", "1s"),
        ("capture", "captured"),
        ("doctor", "--bundle", "bundle.tar.gz", "--state", str(tmp_path), "--no-torch"),
        ("guard", "--state", str(tmp_path / "kept" / "wslgpud"), "--", "true"),
    )
    for command in commands:
        done = CliRunner().invoke(app, [*command])
        assert done.exit_code in (0, 1), (command, done.output)  # the doctor may find something

    assert [mode(tmp_path / name) for name in ("a.jsonl.gz", "a.jsonl", "bundle.tar.gz")] == [0o600] * 3
    assert [mode(tmp_path / name) for name in ("captured", "kept/wslgpud", "kept/wslgpud/guard")] == [0o700] * 3
    assert {mode(log) for log in (tmp_path / "kept/wslgpud/guard").iterdir()} == {0o600}
