"""A release of the service is made of the packages that this program runs with, each file as it was installed."""

from __future__ import annotations

import base64
import hashlib
import sys
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

import wslgpud
from wslgpud.host import SourceError
from wslgpud.service import release
from wslgpud.service.changes import ServiceError, run_shown
from wslgpud.service.places import SYSTEM, places
from wslgpud.service.release import copy, have_file_lists, name_of, needed


def put(folder: Path, name: str, *requires: str, files: tuple[str, ...] = (), more: str = "", **others: str) -> Path:
    """Install a package below ``folder``, as pip does; ``more`` are lines of its RECORD. Return its own folder."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{needs}")
    lines = []
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"of {name}")
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
        lines.append(f"{file},sha256={digest},1\n")
    (info / "RECORD").write_text("".join(lines) + more)
    for other, text in others.items():
        (info / f"{other}.json").write_text(text)
    return info


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_package_is_copied_without_programs_and_bytecode(tmp_path: Path) -> None:
    pages = ("../../../share/man/man1/a.1", "../../../bin/a", "../../../../outside")
    info = put(
        tmp_path / "env/lib/python3.12/site-packages",
        "a",
        files=("a/__init__.py", "a/__pycache__/x.pyc", *pages),
        more="/etc/passwd,,\na/notes,,\n",
    )
    (info.parent / "a/notes").write_text("without a checksum")
    target = tmp_path / "new/lib/python3.12/site-packages"
    copy(Distribution.at(info), target)

    assert files_below(tmp_path / "new") == {
        "share/man/man1/a.1",
        *(f"lib/python3.12/site-packages/a/{name}" for name in ("__init__.py", "notes")),
    }
    assert (target / "a/__init__.py").read_text() == "of a"


@pytest.mark.parametrize("now", [None, "changed"])
def test_a_package_with_a_damaged_file_is_not_copied_but_named(now: str | None, tmp_path: Path) -> None:
    info = put(tmp_path / "here", "a", files=("a.py",))
    (tmp_path / "here/a.py").unlink()
    if now is not None:
        (tmp_path / "here/a.py").write_text(now)
    with pytest.raises(ServiceError, match=r"^a\.py of a is missing or was changed: install a again$"):
        copy(Distribution.at(info), tmp_path / "new/lib/python3.12/site-packages")


def test_only_what_pip_installed_with_a_file_list_is_whole(tmp_path: Path) -> None:
    whole = Distribution.at(put(tmp_path, "whole", files=("a.py",), direct_url='{"dir_info": {}}'))
    without = Distribution.at(put(tmp_path, "debians"))
    editable = Distribution.at(put(tmp_path, "clone", files=("b.py",), direct_url='{"dir_info": {"editable": true}}'))

    assert [have_file_lists([whole]), have_file_lists([whole, without]), have_file_lists([editable, whole])] == [
        True,
        False,
        False,
    ]


def test_needed_packages_are_those_of_the_extras_and_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    extra = "plots_for_test"
    put(tmp_path, "t_ours", "t_one >= 1", "t_two[fast]", "t_absent ; sys_platform", f't_art ; extra == "{extra}"')
    put(tmp_path, "t_one", "t_two", "t_ours")
    put(tmp_path, "t_two", 't_quick ; extra == "fast"', 't_other ; extra == "slow"')
    for name in ("t_art", "t_quick", "t_other"):
        put(tmp_path, name)

    assert sorted(needed("t_ours")) == ["t-one", "t-ours", "t-quick", "t-two", "t_ours"]
    assert sorted(needed("t_ours", [extra])) == ["t-art", "t-one", "t-ours", "t-quick", "t-two", "t_ours"]
    (tmp_path / "t_art-1.dist-info").rename(tmp_path / "gone")
    with pytest.raises(PackageNotFoundError):
        needed("t_ours", [extra])


def test_a_release_is_named_by_version_and_content(tmp_path: Path) -> None:
    one, other = (Distribution.at(put(tmp_path / name, "a", files=(f"{name}.py",))) for name in "xy")
    names = [name_of([one], []), name_of([other], []), name_of([one, other], []), name_of([one], ["plots"])]

    assert len(set(names)) == 4
    assert {name.rpartition("-")[0] for name in names} == {wslgpud.__version__}
    assert {len(name.rpartition("-")[2]) for name in names} == {12}
    assert name_of([other, one], ["b", "a"]) == name_of([one, other], ["a", "b"])


def test_the_service_runs_with_a_python_only_root_can_change(monkeypatch: pytest.MonkeyPatch) -> None:
    own, good = release.own_interpreter(), {Path("/usr/bin/python3.10"), Path("/usr/bin/python3.14")}
    monkeypatch.setattr(Path, "exists", lambda _: True)
    monkeypatch.setattr(sys, "version_info", SimpleNamespace(minor=12))
    monkeypatch.setattr(release, "_will_do", lambda python: python in good)

    assert release.interpreter(places(user=True)) == own
    assert release.interpreter(SYSTEM) == Path("/usr/bin/python3.14")
    good.remove(Path("/usr/bin/python3.14"))
    assert release.interpreter(SYSTEM) == Path("/usr/bin/python3.10")
    good.add(Path("/usr/bin/python3.12"))
    assert release.interpreter(SYSTEM) == Path("/usr/bin/python3.12")
    good.clear()
    with pytest.raises(ServiceError, match=r"install python3 with your package manager$"):
        release.interpreter(SYSTEM)


@pytest.mark.parametrize("path", ["/home/me/bin/python3", "/root/bin/python3", "/no/such/python3"])
def test_a_python_outside_the_services_sandbox_is_refused(path: str) -> None:
    assert not release._will_do(Path(path))


def test_a_failed_program_is_named_and_its_output_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SourceError, match=r"sh -c echo it is full; exit 3 failed \(3\), see above$"):
        run_shown(["sh", "-c", "echo it is full; exit 3"])

    assert capfd.readouterr() == ("", "it is full\n")


def test_pip_installs_only_hashed_wheels_of_a_lock_file(tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 0 ;; esac\necho "$*" > {tmp_path}/asked\n')
    python.chmod(0o755)
    release.fetch(tmp_path, [Path("/lock.txt")])

    assert "--require-hashes --only-binary=:all: --requirement=/lock.txt" in (tmp_path / "asked").read_text()
