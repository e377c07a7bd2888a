"""Half a day of the daemon's life with random faults; the whole month is run manually."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler (cc) to build the fake NVML library with")
def test_nothing_is_lost_and_every_fault_and_its_end_is_told() -> None:
    # A process of its own: the limit that makes writes fail holds for all of it.
    # RSS alone says little after so few ticks; what grows is judged over a hundred thousand.
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--ticks=1200", "--days=0", "--most-growth-bytes=33554432"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    faults = re.search(r"^faults, .*: (.*)", done.stdout, re.MULTILINE)
    assert faults is not None
    assert sum(int(part.split()[-1]) for part in faults[1].split(", ")) >= 20, done.stdout
    assert len(faults[1].split(", ")) >= 8, done.stdout
