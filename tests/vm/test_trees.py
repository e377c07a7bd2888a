"""A share of the quick tests passes with the Python of a later Debian, another share and Debian with each commit."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.parts import LIGHT

from . import trees
from .image import REPOSITORY, ImageError

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3000)]

SHARES = 48  # a quarter of a minute of a core


def chosen() -> tuple[str, list[str]]:
    """Return a Debian and every forty-eighth file of tests: the commit says which, so that a failure stays there."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    turn, share = divmod(int(commit.stdout, 16), SHARES)
    files = sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "tests").rglob("test_*.py"))
    return trees.SUITES[turn % len(trees.SUITES)], files[share::SHARES]


def test_a_share_of_the_quick_tests_passes(able_to_boot: None) -> None:
    suite, share = chosen()
    try:
        done = trees.run(suite, "-q", "-n0", "-m", LIGHT, *share, capture=True)
    except ImageError as error:
        pytest.skip(f"Debian {suite} cannot be had here: {error}")

    assert done.returncode == 0, done.stdout[-20000:] + done.stderr
    print(done.stdout.splitlines()[-1])
