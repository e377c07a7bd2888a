"""The Debian package: what each Python gets of the lock files, what is shared, and that two builds are the same."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.debian import environments

ROOT = Path(__file__).parents[2]
DEBIAN = ROOT / "deploy" / "debian"
PYTHONS = environments.pythons((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "deploy" / "requirements.txt").read_text()


def dist(folder: Path, name: str, text: str, *files: str) -> None:
    """Put a package there as pip does: its files, and a list of them."""
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    record = folder / f"{name}-1.dist-info/RECORD"
    record.parent.mkdir(parents=True)
    lines = [f"{file},sha256={text},1" for file in files]
    record.write_text("\n".join([*lines, "../../bin/program,,", f"{name}-1.dist-info/RECORD,,"]))


@pytest.mark.parametrize("python", PYTHONS)
def test_each_python_gets_its_locked_packages_with_hashes(python: str) -> None:
    text = environments.locked_for(LOCK, python)
    names = re.findall(r"^([\w.-]+)==", text, flags=re.MULTILINE)

    assert len(names) == len(set(names))
    assert {"sqlalchemy", "click", "psutil"} <= set(names)
    assert ("tomli" in names) == (python == "3.10")
    assert not {"colorama", "tzdata"} & set(names)  # of Windows
    assert ";" not in text
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=\S)", text))


def test_files_that_pythons_share_are_stored_once_for_all(tmp_path: Path) -> None:
    folders = {python: tmp_path / f"lib/python{python}/site-packages" for python in ("3.10", "3.11", "3.12")}
    for python, folder in folders.items():
        dist(folder, "pure", "same", "pure/__init__.py", "pure/data/file")
        dist(folder, "compiled", python, "compiled.so")
        dist(folder, "newer", "old" if python == "3.10" else "new", "newer.py")
    environments.share(folders)

    assert (tmp_path / "lib/python3.10-3.12/pure/data/file").read_text() == "same"
    assert (tmp_path / "lib/python3.11-3.12/newer.py").read_text() == "new"
    assert (folders["3.10"] / "newer.py").read_text() == "old"
    assert [(folder / "compiled.so").read_text() for folder in folders.values()] == [*folders]
    assert not any(path.is_file() for folder in folders.values() for path in folder.glob("pure*/**/*"))
    for folder in folders.values():
        lines = (folder / "shared.pth").read_text().split()
        assert all((folder / line).resolve().is_dir() for line in lines)
        assert "../../python3.10-3.12" in lines


def test_it_may_be_installed_only_with_a_python_it_supports() -> None:
    control = (DEBIAN / "control").read_text()
    first, last = PYTHONS[0], int(PYTHONS[-1].partition(".")[2])

    assert f"python3 (>= {first}), python3 (<< 3.{last + 1})" in control


def test_a_package_whose_python_is_broken_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "py3clean").write_text("#!/bin/sh\nexit 127\n")  # a program in Python
    (tmp_path / "py3clean").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = (DEBIAN / "prerm").read_text().replace("/usr/lib/wslgpud", f"{tmp_path}/package")
    bytecode = tmp_path / "package/lib/__pycache__"
    bytecode.mkdir(parents=True)
    (bytecode / "module.pyc").touch()
    (tmp_path / "package/lib/module.py").touch()

    def removed() -> subprocess.CompletedProcess[str]:
        command = ["sh", "-c", script, "prerm", "remove"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert "the task of Windows that keeps this distribution running, if there is one, remains" in removed().stderr
    assert [path.name for path in (tmp_path / "package/lib").iterdir()] == ["module.py"]
    shutil.rmtree(tmp_path / "package")  # as by hand
    removed()


def test_each_exception_from_the_checker_has_its_reason() -> None:
    lines = (DEBIAN / "wslgpud.lintian-overrides").read_text().splitlines()

    assert all(before.startswith("# ") for before, line in itertools.pairwise(lines) if line[0] != "#")


@pytest.mark.skipif("WSLGPUD_SLOW" not in os.environ, reason="builds it twice, for minutes: set WSLGPUD_SLOW=1")
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_same_commit_builds_the_same_bytes_and_passes_lint(tmp_path: Path) -> None:
    missing = [program for program in ("dh", "lintian") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: apt install debhelper lintian")
    for name in ("one", "two"):
        subprocess.run([ROOT / "deploy" / "deb", tmp_path / name], check=True, cwd=tmp_path)
    one, two = (next((tmp_path / name).glob("*.deb")) for name in ("one", "two"))
    checked = subprocess.run(
        ["lintian", "--allow-root", "--fail-on=error,warning", one], capture_output=True, text=True, check=False
    )

    assert one.read_bytes() == two.read_bytes()
    assert (checked.returncode, checked.stdout) == (0, "")
