"""What is written is there as a whole or not at all, with the rights that it is to have."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from wslgpud.security import safe_files


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("synced", [False, True])
def test_a_file_is_replaced_with_its_mode_whatever_the_umask(tmp_path: Path, synced: bool) -> None:
    path = tmp_path / f"{'y' * 200}.json"
    path.write_text("before")
    safe_files.put(path, "secret", synced=synced)
    assert (path.read_text(), mode(path)) == ("secret", 0o600)
    safe_files.put(path, "public", mode=0o666)
    assert (path.read_text(), mode(path)) == ("public", 0o666)
    assert list(tmp_path.iterdir()) == [path]


def test_a_draft_is_private_whatever_the_umask(tmp_path: Path) -> None:
    with safe_files.draft(tmp_path / "chart.png") as path:
        path.write_text("picture")
    assert ((tmp_path / "chart.png").read_text(), mode(tmp_path / "chart.png")) == ("picture", 0o600)


def test_a_new_file_is_private_and_replaces_none(tmp_path: Path) -> None:
    with safe_files.Folder(tmp_path) as folder:
        with folder.create("history") as file:
            file.write(b"rows")
        with pytest.raises(FileExistsError):
            folder.create("history")
    assert ((tmp_path / "history").read_bytes(), mode(tmp_path / "history")) == (b"rows", 0o600)


def test_a_failed_draft_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "chart.png"
    target.write_text("before")
    with contextlib.suppress(KeyError), safe_files.draft(target) as path:
        path.write_text("half")
        raise KeyError
    assert (target.read_text(), list(tmp_path.iterdir())) == ("before", [target])


def test_a_file_may_be_as_large_as_allowed_and_no_larger(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"y" * 1000)
    (tmp_path / "link").symlink_to("file")

    assert safe_files.contents(tmp_path / "file", 1000) == b"y" * 1000
    with pytest.raises(OSError, match="larger than any such file may be"):
        safe_files.contents(tmp_path / "file", 999)
    assert safe_files.contents(tmp_path / "link", follow=True) == b"y" * 1000
    with pytest.raises(OSError, match="this is a link, not a plain file"):
        safe_files.contents(tmp_path / "link")


@pytest.mark.parametrize(("document", "said"), [("[1]", "not a JSON object"), ("[" * 200_000, "nested too deeply")])
def test_json_that_is_no_object_or_nests_without_end_is_refused(document: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        safe_files.parsed(document)
