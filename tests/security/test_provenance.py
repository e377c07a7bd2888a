"""Who can alter a Python decides whose rights it gets."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from wslgpud.security.provenance import Account, Component, UntrustedProgram, owner, survey, unreachable, way

FOLDER, FILE, LINK = stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK
ME, OTHER, GROUP = 1000, 1001, 2000
MINE = Component("/home/me", ME, ME, FOLDER | 0o755)


def of_root(mode: int, gid: int = 0, *, acl: bool = False, searched: bool = False) -> Component:
    return Component("/opt/x", 0, gid, mode, acl, searched)


@pytest.mark.parametrize(
    ("chain", "uid"),
    [
        ([of_root(FOLDER | 0o755)], None),
        ([of_root(FOLDER | 0o755), MINE], ME),
        ([MINE, Component("/home/other", OTHER, OTHER, FOLDER | 0o755)], None),
        ([of_root(LINK | 0o777), MINE], ME),
        ([of_root(FOLDER | 0o1777), MINE], ME),  # /tmp
        ([of_root(FOLDER | 0o775, GROUP), MINE], ME),  # whose only member is its owner
        ([of_root(FOLDER | 0o755, acl=True), MINE], ME),
    ],
)
def test_what_has_one_ordinary_owner_runs_as_that_one_and_all_else_without_rights(chain, uid):
    assert owner(chain, {GROUP: {ME}}) == uid


@pytest.mark.parametrize(
    ("component", "said"),
    [
        (of_root(FILE | 0o646), r"/opt/x can be written by everybody: .*\(chmod o-w\)"),
        (of_root(FILE | 0o1666), "by everybody"),
        (of_root(FOLDER | 0o1777, searched=True), "by everybody"),
        (of_root(FOLDER | 0o775, GROUP + 1), r"by its group \(2001\): .*\(chmod g-w\)"),  # unknown members
        (of_root(FOLDER | 0o775, GROUP), r"by its group \(2000\)"),
        (of_root(FOLDER | 0o775, GROUP, acl=True), r"by users in its access control list: .*\(chmod g-w\)"),
    ],
)
def test_what_others_can_alter_is_refused_with_its_path_and_the_remedy(component, said):
    with pytest.raises(UntrustedProgram, match=said):
        owner([component, MINE], {GROUP: {ME, OTHER}})


@pytest.mark.parametrize(
    ("kind", "searched", "least"),
    [(FOLDER, False, 0o1), (FOLDER, True, 0o5), (FILE, False, 0o4)],
    ids=["a folder on the path is entered", "a lookup folder is listed as well", "a file is read"],
)
@pytest.mark.parametrize(
    ("uid", "gid", "shift"),
    [(ME, 0, 6), (0, ME, 3), (0, GROUP, 3), (0, 0, 0)],
    ids=["user", "group", "groups", "other"],
)
def test_an_account_reaches_what_its_own_bits_allow_and_no_others(kind, searched, least, uid, gid, shift):
    account = Account("me", ME, ME, (GROUP,))
    others = 0o777 & ~(0o7 << shift)
    enough = Component("/x", uid, gid, kind | least << shift, searched=searched)
    too_little = Component("/x", uid, gid, kind | others | (0o7 & ~least) << shift, searched=searched)

    assert unreachable([enough], account) == ""
    assert unreachable([enough, too_little], account) == "/x"


def test_links_and_access_control_lists_do_not_keep_an_account_out():
    chain = [of_root(LINK | 0o000), of_root(FOLDER | 0o700, acl=True)]
    assert unreachable(chain, Account("me", ME, ME)) == ""


@pytest.mark.parametrize(("uid", "gid", "groups"), [(0, 1, ()), (1, 0, ()), (1, 1, (5, 0))])
def test_no_account_has_a_right_of_root(uid, gid, groups):
    with pytest.raises(ValueError, match="me has the rights of root"):
        Account("me", uid, gid, groups)


def test_the_way_to_a_file_has_each_folder_and_link_and_ends_in_a_loop(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").touch()
    (tmp_path / "link").symlink_to("a")
    found = [component.path for component in way(tmp_path / "link/../a/file")]
    assert found[-3:] == [str(tmp_path / name) for name in ("link", "a", "a/file")]
    assert found[0] == "/"

    for number in range(42):
        (tmp_path / f"{number}").symlink_to(f"{number + 1}")
    (tmp_path / "42").touch()
    assert way(tmp_path / "2")[-1].path == str(tmp_path / "42")  # 40 links, as the kernel follows
    with pytest.raises(UntrustedProgram, match="its links form a loop"):
        way(tmp_path / "1")


def python_with_torch(root: Path, folder: str = "python3.12") -> Path:
    packages = root / "lib" / folder / "site-packages" / "torch"
    packages.mkdir(parents=True)
    (packages / "version.py").touch()
    python = root / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    return python


def test_an_environments_torch_is_its_own_and_everything_on_the_way_to_it_counts(tmp_path):
    found = survey(python_with_torch(tmp_path / "env"))

    paths = {component.path for component in found.chain}
    packages = tmp_path / "env/lib/python3.12/site-packages"
    assert found.torch
    assert {"/", str(tmp_path), str(packages), str(packages / "torch/version.py")} <= paths
    assert not survey(python_with_torch(tmp_path / "pypy", "pypy3.10")).torch
    searched = {component.path: component.searched for component in found.chain}
    assert [searched[f"{path}"] for path in (packages, packages / "torch/version.py", tmp_path)] == [True, False, False]


@pytest.mark.parametrize("rights", [(0, 5, ()), (5, 0, ()), (5, 5, (7, 0))])
def test_an_account_with_roots_rights_is_none(rights):
    uid, gid, groups = rights
    with pytest.raises(ValueError, match="me has the rights of root"):
        Account("me", uid, gid, groups)


def test_an_environment_does_not_see_the_torch_of_the_python_it_is_made_from(tmp_path):
    base = python_with_torch(tmp_path / "base")
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").symlink_to(base)
    (tmp_path / "env/pyvenv.cfg").write_text(f"HOME =  {base.parent} \nversion = 3.12\n")
    found = survey(tmp_path / "env/bin/python")

    assert not found.torch
    assert str(tmp_path / "base/lib/python3.12/site-packages") in {component.path for component in found.chain}
