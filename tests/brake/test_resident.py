"""Daemon and watchdog lock their memory if RLIMIT_MEMLOCK is unlimited."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = """
import os, resource, sys
from wslgpud.brake.resident import stay_resident
if "limited" in sys.argv:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 << 20, 8 << 20))
    if os.geteuid() == 0: os.setuid(65534)
print(stay_resident())
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmLck:")))
"""


def locked(*words: str) -> tuple[str, int]:
    """Return, from a process of its own, why memory was not locked (or an empty text) and the KiB locked."""
    done = subprocess.run([sys.executable, "-c", CODE, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    why, kib = done.stdout.splitlines()
    return why, int(kib)


def test_memory_is_not_locked_under_a_finite_limit() -> None:
    assert locked("limited") == ("RLIMIT_MEMLOCK is 8388608, not unlimited", 0)


def test_memory_is_locked_without_a_limit() -> None:
    why, kib = locked()

    assert kib > 1 << 10 if why == "" else why.startswith("RLIMIT_MEMLOCK is ")
