"""``deploy/install`` and ``deploy/uninstall`` in a clone of a few files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wslgpud.toml import tomllib

ROOT = Path(__file__).parents[2]
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
SHIPPED = [*WHEEL["packages"], *WHEEL["force-include"], *WHEEL["shared-data"]]
#: a Python 3.10 without packages, as in Ubuntu 22.04; called with -I -B -c CODE ARGUMENT...
OLD_PYTHON = f"""#!/bin/sh
shift 3
exec '{sys.executable}' -I -S -B -c 'import sys
sys.version_info = (3, 10, 0)
exec(sys.argv.pop(1))' "$@"
"""
#: instead of deploy/environment.sh: tells what it was to make a release in
ENVIRONMENT = """
find_python() { echo "${0%/*}/python"; }
release_of() { echo a-release; }
make_release() {
    mkdir -p "$1/bin"
    stat -c 'made in %a' "$(dirname "$1")"
    printf '#!/bin/sh\\necho "$@"\\n' >"$1/bin/wslgpud"
    chmod +x "$1/bin/wslgpud"
}
"""


def name_of(clone: Path) -> str:
    script = f". '{ROOT}/deploy/environment.sh' && release_of '{clone}' ''"
    return subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True).stdout


def test_whatever_is_shipped_gives_a_release_another_name(tmp_path: Path) -> None:
    for name in SHIPPED:
        file = tmp_path / name if (ROOT / name).is_file() else tmp_path / name / "file"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (tmp_path / "wslgpud/__init__.py").write_text('__version__ = "1.2"\n')
    (tmp_path / "deploy/build.txt").touch()
    (tmp_path / "pyproject.toml").touch()
    names = [name_of(tmp_path)]
    for file in sorted(path for path in tmp_path.rglob("*") if path.is_file() and path.name != "__init__.py"):
        file.write_text("changed")
        names.append(name_of(tmp_path))

    assert len({*names}) == len(names)
    assert all(name.startswith("1.2-") for name in names)


@pytest.mark.parametrize("python", ["#!/bin/sh\n", OLD_PYTHON], ids=["any", "3.10"])
def test_a_dry_run_makes_its_release_in_a_private_folder(python: str, tmp_path: Path) -> None:
    for name in ("deploy", "home", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    shutil.copy(ROOT / "deploy/install", tmp_path / "deploy")
    (tmp_path / "deploy/environment.sh").write_text(ENVIRONMENT)
    (tmp_path / "deploy/python").write_text(python)
    (tmp_path / "deploy/python").chmod(0o755)
    (tmp_path / "wslgpud").symlink_to(ROOT / "wslgpud")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run(
        [tmp_path / "deploy/install", "--dry-run"], env=environment, capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("made in 700\nservice install --dry-run\n", "")
    assert not any((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize(
    ("option", "status", "stays"), [("--help", 0, True), ("--pruge", 2, True), ("--purge", 0, False)]
)
def test_only_an_option_that_there_is_removes_anything(option: str, status: int, stays: bool, tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy/uninstall", tmp_path / "deploy")
    torch = tmp_path / "home/.local/share/wslgpud.stress"  # of a program that is gone
    torch.mkdir(parents=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [tmp_path / "deploy/uninstall", "--user", option], env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, torch.exists()) == (status, stays)
    assert ("usage: " in done.stdout + done.stderr) is stays


def test_a_service_whose_program_is_gone_is_not_called_removed(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy/uninstall", tmp_path / "deploy")
    unit = tmp_path / "home/.config/systemd/user/wslgpud.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [tmp_path / "deploy/uninstall", "--user"], env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("the service is installed, but its program is gone: ")
