"""Refused and lost writes, in a real process whose system calls strace makes fail.

A disk that fails a sync has lost pages that it had taken, and Linux tells that once; a quota that is used up fails a
write with EDQUOT, which SQLite calls a disk I/O error.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from wslgpud.store import Reader, Store
from wslgpud.store.maintenance import audit

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

PROGRAM = """
import json, sys
from tests.store import made
from wslgpud.config import StoreSettings
from wslgpud.store import Store, upkeep, writer

writer.RETRY_SECONDS = (0.02,)
upkeep.INTERVAL_SECONDS = 0.0
store = Store(sys.argv[1], StoreSettings(commit_seconds=0.01, raw_days=3650), host_name="pc")

def append(seconds):
    for second in seconds:
        store.append(made.snapshot(made.T0 + second, {(made.BYTES, str(i)): second for i in range(5)}))
        if second % 40 == 0:
            # committed in calm
            made.until(lambda: store.stats().queue_ticks == 0 or store.stats().error)
"""


@pytest.fixture
def run(file):
    """Return a function that runs a program on a database while calls on its files fail."""
    Store(file, host_name="pc").close()

    def run(program, failing, suffixes=("-wal",)):
        paths = [argument for suffix in suffixes for argument in ("-P", f"{file}{suffix}")]
        rules = ["-e", f"trace={failing.partition(':')[0]}", "-e", f"inject={failing}", *paths]
        done = subprocess.run(
            [
                "strace",
                "-f",
                "--seccomp-bpf",
                "-qq",
                "-o",
                "/dev/null",
                *rules,
                sys.executable,
                "-c",
                PROGRAM + program,
                file,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def _values(file):
    with Reader(str(file)) as reader:
        assert audit(reader, lambda *_: None) == []
        found = [[p.value for p in reader.read(ref, 0, 1e10)] for ref in reader.series("made_bytes")]
    with closing(sqlite3.connect(file)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert all(values == found[0] for values in found)
    return found[0]


@pytest.mark.slow
def test_a_disk_that_fails_now_and_then_ends_up_complete(run, file):
    """Each error is reported once; what that commit held is written again, and nothing twice."""
    (errors,) = run(
        """
for second in range(0, 2000, 100):
    append(range(second, second + 100))
    assert store.flush()
print(store.stats().write_errors_total)
store.close()
""",
        "fdatasync:error=EIO:when=3+7",
    )
    assert int(errors) >= 3
    assert _values(file) == list(range(2000))


def test_what_a_failing_disk_does_not_keep_waits_in_memory(run):
    said = run(
        """
for second in range(0, 60, 3):
    append(range(second, second + 3))
    made.until(lambda: store.flush(0.1) or store.stats().error)
    if store.stats().error:
        break
# strace counts each kind of call by itself: the first looks at why it fails find nothing yet.
made.until(lambda: "the disk fails: see the kernel log" in str(store.stats().error))
stats = store.stats()
print(stats.queue_ticks > 0, "disk I/O error" in str(stats.error))
""",
        "fdatasync,fsync:error=EIO:when=3+",
        suffixes=("-wal", ".lock"),
    )
    assert said == ["True True"]


def test_after_it_the_whole_file_is_looked_through(run):
    said = run(
        """
append(range(1))
assert store.flush()
append(range(1, 10))
assert store.flush()
made.until(lambda: store.flush() and store.stats().last_check_wall is not None)
print(store.stats().write_errors_total > 0, store.stats().check_findings)
""",
        "fdatasync:error=EIO:when=2",
    )
    assert said == ["True ()"]


@pytest.mark.slow
def test_a_used_up_quota_is_named_and_costs_nothing(run, file):
    said = run(
        """
append(range(300))
seen = []
made.until(lambda: seen.append(store.stats().error) or seen[-1])
print(seen[-1])
assert store.flush()
print(store.stats().error == "", store.stats().queue_ticks)
store.close()
""",
        "pwrite64:error=EDQUOT:when=20..150",
        suffixes=("-wal", ".lock"),
    )
    assert "(Disk quota exceeded); delete files of this user, or raise its quota" in said[0]
    assert said[1] == "True 0"
    assert _values(file) == list(range(300))
