"""./tests/run skips the heavy parts, unless all are requested or tests are named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.parts import PARTS

ROOT = Path(__file__).parent.parent
SLOW = "tests/live/test_terminal.py::test_each_state_looks_as_it_was_found_good"
LIGHT = "tests/live/test_terminal.py::test_without_colour_there_is_none"


def chosen(*arguments: str) -> str:
    """Return which tests would run; where none is named, the folder stands for all of them."""
    command = ["-m", "pytest", "--collect-only", "-q", "-p", "xdist", "-p", "timeout", "-o", "testpaths=tests/live"]
    done = subprocess.run(
        [sys.executable, *command, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "slow_too"),
    [((), False), (("--all",), True), (("tests/live/test_terminal.py",), True), (("-k", "colour or each_state"), True)],
    ids=["none named", "all", "a path", "a word"],
)
def test_heavy_tests_are_left_out_only_where_no_test_is_named(arguments: tuple[str, ...], *, slow_too: bool) -> None:
    found = chosen(*arguments)

    assert LIGHT in found
    assert (SLOW in found) == slow_too


def test_who_uses_a_parts_fixture_belongs_to_it_unmarked() -> None:
    assert "test_the_real_worker_gives_everything_back" in chosen("-m", "torch", "tests/stress/test_parent.py")


def test_the_readme_names_each_part() -> None:
    page = (ROOT / "tests/README.md").read_text()

    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == ["slow", "servers", "browser", "torch", "vm", "bench"]
    assert {"slow", "servers", "browser", "torch", "vm"} == PARTS.keys()
