"""Limits on the daemon's cost, as counts: independent of machine load, but sensitive to expensive changes."""

from __future__ import annotations

import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.bench.bench_cost import fake_library, spent
from tests.bench.bench_store import T0, Clock, Machine
from tests.soak.machine import SoakClock
from tests.support.daemons import PATIENCE_SECONDS, Running, clean_environment, daemon, eventually
from wslgpud.app.daemon import Daemon
from wslgpud.config import Config, StoreSettings
from wslgpud.host import RecordedHost
from wslgpud.model import Sample, Snapshot, SourceReport
from wslgpud.store import Store, upkeep

#: Needed only by commands, scrapes or options. The first parses the command line.
FOREIGN = (
    "apscheduler",
    "click",
    "rich",
    "textual",
    "matplotlib",
    "apprise",
    "opentelemetry",
    "psycopg",
    "pyarrow",
    "torch",
    "numpy",
    "markdown_it",
    "pygments",
    "prometheus_client",
)
#: our own modules, for options that are off
OFF = ("wslgpud.brake.brake", "wslgpud.brake.watchdog")
MODULES = 530
THREADS = 14
HANDLES = 60
#: Goal: 60 MiB with NVIDIA's library. CI may have another Python, and fewer processes that share its pages.
PSS_BYTES = 80 << 20
#: System calls of a tick, excluding those per process.
CALLS, CALLS_A_PROCESS = 150, 4
TICKS = 20
#: Limits for a tick on a recorded machine, in all threads, a third above to twice the current values: calls of
#: functions, C's included; peak bytes allocated; memory blocks still allocated after it
#: (data waiting to be written, the engine's history of some minutes).
CALLS_OF_FUNCTIONS, ALLOCATED_BYTES, KEPT_BLOCKS = 6_500, 160 << 10, 250
#: Pages of the write-ahead log for thirty commits in calm: one each, and those changed by a new period.
COMMITS, PAGES = 30, 36
#: bytes of the log: its header, a page with its header
LOG_HEAD_BYTES, LOG_PAGE_BYTES = 32, 24 + 4096
RECORDED = Path(__file__).parents[1] / "hosts" / "h200-training"


@pytest.fixture
def running(tmp_path: Path):
    settings = {"WSLGPUD_SAMPLING__INTERVAL_SECONDS": "0.5"}
    if shutil.which("cc"):
        settings["WSLGPUD_SAMPLING__NVML_LIBRARY"] = str(fake_library(tmp_path))
    with daemon(tmp_path, settings=settings) as found:
        eventually(lambda: ticks(found) >= 5, "five ticks")
        yield found


def ticks(running: Running) -> float:
    return running.samples().get("wslgpud_ticks_total", 0)


def test_the_daemon_loads_nothing_that_only_commands_need(tmp_path: Path) -> None:
    show = "import sys, wslgpud.app.process, wslgpud.app.daemon; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout.split()

    assert not {name.partition(".")[0] for name in loaded} & set(FOREIGN)
    assert not {*loaded} & {*OFF}
    assert len(loaded) < MODULES


def loaded_by(tmp_path: Path, *words: str) -> set[str]:
    """Return the modules that a command has imported by its end."""
    show = f"""
import os, sys
sys.argv[1:] = {list(words)}
os.execve = lambda *_: sys.exit()
from wslgpud.__main__ import main
try:
    main()
finally:
    print(*sys.modules, file=sys.__stderr__)
"""
    environment = clean_environment(tmp_path, {"WSLGPUD_SERVER__PORT": ""})
    del environment["WSLGPUD_SERVER__PORT"]
    command = [sys.executable, "-c", show]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return set(done.stderr.splitlines()[-1].split())


def test_the_service_becomes_the_daemon_at_once(tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, "run")

    assert {name for name in loaded if name.startswith("wslgpud.")} == {"wslgpud.__main__", "wslgpud.app"}
    assert not loaded & {"click", "json", "pathlib"}


def test_the_list_of_commands_needs_no_library_but_click(tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, "--help")

    assert "click" in loaded
    assert not loaded & {"rich", "sqlalchemy", "wslgpud.host"}


@pytest.mark.parametrize("command", ["doctor", "service"])
def test_a_command_without_history_loads_no_database(command: str, tmp_path: Path) -> None:
    assert "sqlalchemy" not in loaded_by(tmp_path, command, "--help")


def test_the_running_daemon_has_left_the_command_line_behind(running: Running) -> None:
    """Its options were parsed in the same process, before that became the daemon's."""
    environment = Path(f"/proc/{running.process.pid}/environ").read_text().split("\0")

    assert any(one.startswith("WSLGPUD_ORDER={") for one in environment), "what the process was last started with"


def test_processes_threads_handles_and_memory_stay_within_bounds(running: Running) -> None:
    before = spent([running.process.pid])
    for _ in range(50):
        running.get("/metrics")
    eventually(lambda: running.samples()["wslgpud_http_connections"] == 1, "the end of the scrapes")
    after = spent([running.process.pid])

    assert after.processes <= 2
    assert after.threads <= THREADS
    assert after.handles <= HANDLES
    assert after.handles <= before.handles + 8, "scrapes leave no handle behind"
    assert after.threads <= before.threads + 4
    assert after.pss_bytes <= PSS_BYTES


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("strace"), reason="strace is missing; ./tests/run installs it")
def test_a_tick_takes_few_system_calls(running: Running, tmp_path: Path) -> None:
    table = tmp_path / "calls"
    # The number of futex calls of threads that wait for each other depends on machine load.
    command = ["strace", "-f", "-c", "-e", "trace=!futex", "-o", table, "-p", str(running.process.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        said = tracer.stderr.readline() if tracer.stderr else ""
        if "attached" not in said:
            tracer.kill()
            pytest.skip(f"strace may not look at other processes here: {said}")
        first = ticks(running)
        eventually(lambda: (time.sleep(1), ticks(running) - first >= TICKS)[1], f"{TICKS} ticks")
        seen = ticks(running) - first
        tracer.send_signal(signal.SIGINT)
        tracer.wait(PATIENCE_SECONDS)
    total = re.search(r"^100\.00 +\S+ +\S+ +(\d+) .*total", table.read_text(), re.MULTILINE)
    assert total is not None, table.read_text()
    processes = len(list(Path("/proc").glob("[0-9]*")))

    assert int(total[1]) / seen <= CALLS + CALLS_A_PROCESS * processes


@pytest.fixture
def tick(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """The tick of a complete daemon; each advances the machine's time by a second."""
    defaults, clock = Config(), SoakClock()
    config = replace(
        defaults,
        server=replace(defaults.server, port=0),
        alerts=replace(defaults.alerts, desktop="off", windows_toast="off"),
        store=replace(defaults.store, commit_seconds=60.0),  # a commit is not part of a usual tick
    )
    with Daemon(config, RecordedHost(RECORDED, clock), tmp_path, {}) as daemon:

        def one() -> None:
            clock.mono_now += 1.0
            daemon.tick.run()

        for _ in range(TICKS):
            one()
        yield one


def read_bytes() -> int:
    """Return the bytes that this process has read so far, from caches and disks."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


@pytest.fixture
def calls() -> Iterator[list[int]]:
    """Count the calls in this thread and in all started from now on."""
    counted = [0]

    def note(_frame: FrameType, event: str, _what: Any) -> None:
        counted[0] += event in ("call", "c_call")

    threading.setprofile(note)
    sys.setprofile(note)
    yield counted
    sys.setprofile(None)
    threading.setprofile(None)


def usual(look: Callable[[], int]) -> int:
    """Return the median: occasional work, also in other threads, is not part of a usual tick."""
    return sorted(look() for _ in range(TICKS))[TICKS // 2]


@pytest.mark.slow
def test_a_commit_in_calm_writes_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes written by the program, not by the kernel, which depend on when they were synced."""
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)
    file, machine, clock = tmp_path / "wslgpud.db", Machine(150), Clock()

    with Store(file, StoreSettings(commit_seconds=300, raw_days=3650), clock=clock) as store:

        def commits(seconds: range) -> None:
            for second in seconds:
                clock.now = T0 + second
                sample = Sample(machine.tick(second))
                report = SourceReport("bench", "ok", sample, clock.now, 0.001)
                store.append(Snapshot(clock.now, clock.now, second, (report,)))
                if second % 10 == 9:
                    assert store.flush()

        commits(range(1000))  # a quarter of an hour is sealed, and its rows are reused by the next
        eventually(lambda: store.flush() and store.reader.oldest().minute_wall, "a sealed chunk")
        with closing(sqlite3.connect(file)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        commits(range(1000, 1000 + 10 * COMMITS))
        written = file.with_name("wslgpud.db-wal").stat().st_size

    assert COMMITS <= (written - LOG_HEAD_BYTES) / LOG_PAGE_BYTES <= PAGES


@pytest.mark.slow
def test_a_commit_at_risk_reads_hardly_anything_back(tmp_path: Path) -> None:
    """Where memory runs out, what it reads comes from the disk; looking through all batches took 1.4 MB here."""
    machine, clock = Machine(150), Clock()

    with Store(tmp_path / "wslgpud.db", StoreSettings(commit_seconds=300), clock=clock) as store:

        def commits(seconds: range) -> None:
            for second in seconds:
                clock.now = T0 + second
                report = SourceReport("bench", "ok", Sample(machine.tick(second)), clock.now, 0.001)
                store.append(Snapshot(clock.now, clock.now, second, (report,)), urgent=True)
                assert store.flush()

        commits(range(400))
        before = read_bytes()
        commits(range(400, 400 + COMMITS))

        assert (read_bytes() - before) / COMMITS <= 64 << 10


def test_a_tick_takes_few_calls(calls: list[int], tick: Callable[[], None]) -> None:
    def added() -> int:
        before = calls[0]
        tick()
        return calls[0] - before

    assert CALLS_OF_FUNCTIONS / 20 < usual(added) <= CALLS_OF_FUNCTIONS


def test_a_tick_allocates_little_and_keeps_less(tick: Callable[[], None]) -> None:
    def kept() -> int:
        before = sys.getallocatedblocks()
        tick()
        return sys.getallocatedblocks() - before

    def height() -> int:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        tick()
        return tracemalloc.get_traced_memory()[1] - before

    assert usual(kept) <= KEPT_BLOCKS
    tracemalloc.start()
    try:
        assert ALLOCATED_BYTES / 20 < usual(height) <= ALLOCATED_BYTES
    finally:
        tracemalloc.stop()
