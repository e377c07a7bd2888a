"""Where a command finds the history and the daemon: the folder named, the user's own, or the service's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.daemons import saying
from wslgpud import config
from wslgpud.cli.common import daemon_folders, data_folder, database_of, own_database, picture, state_folder


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return the user's own folder and the service's, neither of which exists."""
    service = tmp_path / "service"
    monkeypatch.setattr(config, "SYSTEM_STATE", service)
    monkeypatch.setattr(config, "state_folder", lambda _: tmp_path / "own")
    return tmp_path / "own", service


def test_the_service_has_the_history_where_the_user_has_none(folders: tuple[Path, Path], tmp_path: Path) -> None:
    own, service = folders

    assert data_folder(None) == own
    service.mkdir()
    assert data_folder(None) == service
    assert data_folder(tmp_path / "named") == tmp_path / "named"
    own.mkdir()
    assert data_folder(None) == service
    (own / "wslgpud.db").touch()
    assert data_folder(None) == own


def test_the_history_of_a_running_daemon_comes_before_another(folders: tuple[Path, Path]) -> None:
    own, service = folders
    for folder in folders:
        folder.mkdir()
    (own / "wslgpud.db").touch()
    with saying(service, {}):
        assert data_folder(None) == service, "the own one is that of a trial before the installation"
        with saying(own, {}):
            assert data_folder(None) == own


def test_the_daemon_is_sought_in_the_named_own_or_service_folder(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, service = folders

    assert daemon_folders(tmp_path / "named") == [tmp_path / "named"]
    assert daemon_folders(None) == [own, service]
    monkeypatch.setattr(config, "state_folder", lambda _: service)
    assert daemon_folders(None) == [service]


def test_a_link_to_a_state_folder_is_followed_once(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there")

    assert state_folder(tmp_path / "link") == tmp_path / "there"


@pytest.mark.parametrize(
    ("path", "reads", "keeps"),
    [
        ("", "{named}/wslgpud.db", "{named}/wslgpud.db"),
        ("/data/all.db", "/data/all.db", "/data/all.db"),
        ("postgresql://db/all", "postgresql://db/all", "{named}/wslgpud.db"),
    ],
)
def test_history_is_read_from_the_server_and_kept_in_a_file_too(
    path: str, reads: str, keeps: str, tmp_path: Path
) -> None:
    file, named = tmp_path / "wslgpud.toml", tmp_path / "named"
    file.write_text(f'[store]\npath = "{path}"\n')
    file.chmod(0o600)

    assert database_of(file, named) == reads.format(named=named)
    assert own_database(file, named) == keeps.format(named=named)


def test_a_plot_without_a_name_is_for_the_terminal() -> None:
    assert (picture(None), picture(Path("-")), picture(Path("a.png"))) == (None, None, Path("a.png"))
