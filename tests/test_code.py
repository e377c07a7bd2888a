"""The code's manners: types, lint, format, shell scripts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        [str(BIN / "mypy")],
        [str(BIN / "ruff"), "check", "--quiet", "."],
        [str(BIN / "ruff"), "format", "--check", "--quiet", "."],
    ],
    ids=["mypy", "ruff check", "ruff format"],
)
def test_checkers_have_nothing_to_say(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_names_of_tests_have_at_most_60_characters() -> None:
    names = (
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    )

    assert [name for name in names if len(name) > 60] == []


def test_shell_scripts_pass_shellcheck() -> None:
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    names = ("run", "install", "uninstall", "environment.sh", "lock")
    scripts = [*(f"deploy/{name}" for name in names), "tests/run", ".ci/run"]

    done = subprocess.run(
        ["shellcheck", "-x", "-P", "SCRIPTDIR", *scripts], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout
