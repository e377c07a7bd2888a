"""Who can change a program decides whether it is started, and as whom."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from tests.support.accounts import ALICE, BOB, needs_root
from wslgpud.security import run_as
from wslgpud.security.run_as import Account, UntrustedProgram, refuse_others, replaceable, users_mounts, walk_path


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (0o757, r"/bin can be written by everybody: .*\(chmod o-w\)"),
        (0o1757, r"/bin/python can be written by everybody"),
        (0o775, r"/bin can be written by its group \(54321\): .*\(chmod g-w\)"),
    ],
    ids=["a folder", "the end itself", "a group that nobody knows"],
)
@needs_root
def test_what_others_can_write_is_refused_with_the_remedy(public: Path, mode: int, said: str) -> None:
    python = public / "bin/python"
    python.parent.mkdir()
    python.touch()
    os.chown(python.parent, 0, 54321)
    python.parent.chmod(mode)
    python.chmod(0o757 if mode & 0o1000 else 0o755)

    with pytest.raises(UntrustedProgram, match=said):
        refuse_others(python, 0)


@needs_root
def test_a_part_of_a_third_user_is_refused_by_name(public: Path) -> None:
    python = public / "bin/python"
    python.parent.mkdir()
    python.touch()
    for path in (python.parent, python):
        os.chown(path, ALICE, ALICE)
    refuse_others(python, ALICE)

    assert str(replaceable(python, BOB)) == f"{python.parent} belongs to uid {ALICE}"
    os.chown(python, BOB, BOB)
    assert str(replaceable(python, ALICE)) == f"{python} belongs to uid {BOB}"


@needs_root
def test_a_link_counts_as_well_as_what_it_leads_to(public: Path) -> None:
    (public / "python").symlink_to("/usr/bin/env")
    os.lchown(public / "python", ALICE, ALICE)

    refuse_others(public / "python", ALICE)
    with pytest.raises(UntrustedProgram, match=f"belongs to uid {ALICE}"):
        refuse_others(public / "python", 0)


@needs_root
def test_a_group_may_write_if_all_its_members_may_anyway(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(public, ALICE, ALICE)
    public.chmod(0o775)
    people = [("alice", ALICE), ("root", 0)]
    rows = [run_as.pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh")) for name, uid in people]
    named: list[str] = ["root"]
    monkeypatch.setattr(run_as.pwd, "getpwall", lambda: rows)
    monkeypatch.setattr(run_as.grp, "getgrgid", lambda gid: run_as.grp.struct_group(("alice", "x", gid, named)))

    assert replaceable(public, ALICE) == ""
    named.append("somebody-of-the-network")
    assert f"its group ({ALICE})" in str(replaceable(public, ALICE))


@needs_root
def test_an_access_control_list_hides_behind_the_groups_bits(public: Path) -> None:
    anybody = 2**32 - 1
    entries = ((1, 7, anybody), (2, 7, BOB), (4, 5, anybody), (16, 7, anybody), (32, 5, anybody))
    try:
        granted = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
        os.setxattr(public, "system.posix_acl_access", granted)
    except OSError:
        pytest.skip("this file system has no access control lists")

    assert "users in its access control list" in str(replaceable(public, 0))


def test_a_sticky_folder_may_lie_on_the_way_but_not_be_the_end(public: Path) -> None:
    (public / "inner").mkdir(mode=0o755)
    public.chmod(0o1777)

    assert replaceable(public / "inner") == ""
    assert "everybody" in str(replaceable(public))


def test_the_way_has_each_folder_and_link_and_ends_in_a_loop(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").touch()
    (tmp_path / "link").symlink_to("a")
    found = [path for path, _ in walk_path(tmp_path / "link/../a/file")]
    assert (found[0], found[-1], tmp_path / "link" in found) == (Path("/"), tmp_path / "a/file", True)

    for number in range(42):
        (tmp_path / f"{number}").symlink_to(f"{number + 1}")
    (tmp_path / "42").touch()
    assert [*walk_path(tmp_path / "2")][-1][0] == tmp_path / "42"  # 40 links, as the kernel follows
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        [*walk_path(tmp_path / "1")]


def test_a_file_system_of_a_users_own_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its statements about owners are only that user's word, and it may never answer."""
    monkeypatch.setattr(run_as, "users_mounts", lambda: {str(tmp_path): ALICE})

    with pytest.raises(UntrustedProgram, match=f"{tmp_path} is a file system of user {ALICE}"):
        refuse_others(tmp_path / "python", ALICE)


def test_file_systems_of_users_are_known_by_who_mounted_them(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "36 35 0:50 / /home/me/far\\040away rw - fuse.sshfs me@far: rw,user_id=1000,group_id=1\n"
        "37 35 0:51 / /mnt/data rw - fuseblk /dev/sdb1 rw,user_id=0,group_id=0,allow_other\n"
        "38 35 8:1 / / rw - ext4 /dev/sda1 rw\n"
    )
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)

    assert users_mounts() == {"/home/me/far away": 1000}


@pytest.mark.parametrize("rights", [(0, 1, ()), (1, 0, ()), (1, 1, (5, 0))])
def test_no_account_has_a_right_of_root(rights: tuple[int, int, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="x has the rights of root"):
        Account("x", *rights)
