"""A command's peak is its real use: shared pages count once, and unobserved values are not reported."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.advise.guard.box import box
from tests.advise.guard.test_guard import GUARD
from tests.support.elsewhere import hearing

MIB = 1 << 20
#: 100 MiB of its own and 100 MiB of shared memory, all read by three workers, each with 40 MiB more.
WORKERS = f"""
import mmap, os, sys
own, shared = b"x" * (100 * {MIB}), mmap.mmap(-1, 100 * {MIB})
for _ in range(100):
    shared.write(b"x" * {MIB})
for _ in range(3):
    if os.fork() == 0:
        more = b"x" * (40 * {MIB})
        sum(own[::4096]), sum(shared[::4096])
        sys.stdin.read()
        os._exit(0)
sys.stdin.read()
"""
#: A guard that takes every run for a brief one, however slow this machine is.
PATIENT = (
    "from wslgpud.advise.guard import runner; runner._BRIEF_SECONDS = float('inf')\nfrom wslgpud.cli import app; app()"
)


def remembered(state: Path) -> int | None:
    (facts,) = json.loads((state / "guard.json").read_text())["commands"].values()
    return facts["peak_bytes"]


def test_what_workers_share_counts_once_and_shared_memory_counts(tmp_path):
    with box(1024 * MIB) as inside, hearing(tmp_path) as runs:
        command = [*inside, *GUARD, "--jobs", "off", "--state", str(tmp_path), "--", sys.executable, "-c", WORKERS]
        guard = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        seen = 0
        while seen < 310 * MIB:
            assert guard.poll() is None
            seen = max([seen, *(run.document.get("peak_bytes", 0) for run in runs.read() if run.who.pid == guard.pid)])
            time.sleep(0.05)
        guard.communicate()

    # Each process is read at another moment: one that forks or first touches shared memory meanwhile counts some of it
    # again, at most 100 x (1/2 + 1/3 + 1/4) MiB here. Were each counted in each, it would be 920.
    assert 310 * MIB < remembered(tmp_path) < 450 * MIB


def brief(state: Path, *command: str) -> str:
    guard = [sys.executable, "-c", PATIENT, "guard", "--state", str(state), "--", *command]
    return subprocess.run(guard, capture_output=True, text=True, check=True).stderr


def test_a_command_of_which_nothing_was_seen_has_no_peak(tmp_path):
    said = brief(tmp_path, "true")

    assert remembered(tmp_path) is None
    assert "peak RAM unknown: it ended too soon" in said
