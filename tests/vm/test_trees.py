"""A share of the quick tests passes with the Pythons of later Debians, another share with each commit."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.parts import LIGHT

from . import trees
from .image import REPOSITORY, ImageError

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3000)]

SHARES = 24  # half a minute of a core each


def share() -> list[str]:
    """Return every twenty-fourth file of tests: which of them, the commit says, so that a failure stays where it is."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    files = sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "tests").rglob("test_*.py"))
    return files[int(commit.stdout, 16) % SHARES :: SHARES]


@pytest.mark.parametrize("suite", trees.SUITES)
def test_a_share_of_the_quick_tests_passes_in(suite: str, able_to_boot: None) -> None:
    try:
        done = trees.run(suite, "-q", "-n0", "-m", LIGHT, *share(), capture=True)
    except ImageError as error:
        pytest.skip(f"Debian {suite} cannot be had here: {error}")

    assert done.returncode == 0, done.stdout[-20000:] + done.stderr
    print(done.stdout.splitlines()[-1])
