"""What the daemon may cost at most, as counts: no busy machine makes them fail, no dear change passes."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench.bench_cost import fake_library, spent
from tests.support.daemons import PATIENCE_SECONDS, Running, daemon, eventually

#: What only commands or options need. The first three come with typer, which reads the command line.
FOREIGN = (
    "pydantic", "typer", "rich", "textual", "matplotlib", "apprise", "opentelemetry", "psycopg", "pyarrow",
    "torch", "numpy", "markdown_it", "pygments",
)  # fmt: skip
MODULES = 800
THREADS = 24
HANDLES = 60
#: Goal: 60 MiB with NVIDIA's library. A CI machine's Python may be another, and pages are shared with fewer.
PSS_BYTES = 100 << 20
#: System calls of a whole tick, beside what the look at each process takes.
CALLS, CALLS_A_PROCESS = 400, 16
TICKS = 20


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
    show = "import sys, wslgpud.daemon, wslgpud.app; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", show], capture_output=True, text=True, check=True
    ).stdout.split()

    assert not {name.partition(".")[0] for name in loaded} & set(FOREIGN)
    assert len(loaded) < MODULES


def test_the_running_daemon_has_left_the_command_line_behind(running: Running) -> None:
    mapped = Path(f"/proc/{running.process.pid}/maps").read_text()

    assert "/_sqlite3." in mapped or "libsqlite3" in mapped, "this is what the maps of the daemon look like"
    assert "pydantic" not in mapped


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


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is missing; ./tests/run installs it")
def test_a_tick_takes_few_system_calls(running: Running, tmp_path: Path) -> None:
    table = tmp_path / "calls"
    # Threads that wait for each other call futex as often as the machine is busy.
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
