"""Data that must survive a power cut is on the disk when we say so, not just handed to the kernel.

Seen by strace: SQLite's log is synced between what was written and the moment it was promised.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from wslgpud.store import Store

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

STRACE = ["strace", "-f", "-y", "-e", "trace=write,pwrite64,fdatasync,fsync", "-o"]
BEGIN = """
import os, sys
from tests.store import made
from wslgpud.config import StoreSettings
from wslgpud.store import Store

store = Store(sys.argv[1], StoreSettings(commit_seconds=float(sys.argv[2])), host_name="pc", boot_id="second")
"""
COMMIT_IN_CALM_THEN_ASK = """
store.append(made.snapshot(made.T0, {made.BYTES: 1}))
while not store.reader.latest():
    pass
store.flush()
"""
DIE = """
os.write(2, b"promised")
os._exit(0)
"""


@pytest.fixture
def calls(file, tmp_path):
    """Return a function that runs a program on a database and returns its calls on the log and stderr."""
    Store(file, host_name="pc", boot_id="first").close()

    def run(program, commit_seconds):
        log = tmp_path / "strace"
        subprocess.run(
            [*STRACE, log, sys.executable, "-c", program, file, str(commit_seconds)],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        lines = (line.split(maxsplit=1) for line in log.read_text().splitlines())
        return [(pid, call) for pid, call in lines if f"{file}-wal>" in call or "write(2<" in call]

    return run


def test_that_a_run_has_begun(calls):
    made = calls(BEGIN + DIE, commit_seconds=600)
    (main,) = (thread for thread, call in made if '"promised"' in call)
    written, synced, promised = [call for thread, call in made if thread == main][-3:]

    assert written.startswith("pwrite64")
    assert synced.startswith("fdatasync")
    assert '"promised"' in promised


def test_what_was_committed_in_calm_and_is_then_asked_for(calls):
    made = [call for _, call in calls(BEGIN + COMMIT_IN_CALM_THEN_ASK + DIE, commit_seconds=0.01)]
    promised = next(n for n, call in enumerate(made) if '"promised"' in call)
    written = max(n for n, call in enumerate(made[:promised]) if call.startswith("pwrite64"))

    assert any(call.startswith("fdatasync") for call in made[written:promised])
