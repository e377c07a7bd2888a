"""Record what a Windows host does to WSL: memory taken back, paged out, or never there.

    python -m tests.vm.record_host_traces FOLDER [NAME ...]

writes ``NAME.jsonl.gz`` and ``NAME.truth.json`` for each scenario named (all by default), one machine after another.
Beside the samples of the machine itself there is what Windows told then (``windows``), which the daemon asks for.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.traces.labels import label
from wslgpud.risk.trace import observation_from_row
from wslgpud.sources.windows import next_period

from .image import image
from .machine import Machine, MachineError
from .traces.recorder import BLOCK_BYTES, INTERVAL_SECONDS
from .windows_host import WindowsHost

HERE = Path(__file__).parent
LEAD_IN_SECONDS = 30.0
#: of Windows' RAM: with less left it has none to give; with the first it writes to its page file, where it has one
PAGED_SHARE, EXHAUSTED_SHARE = 0.06, 0.01
#: how often the daemon asks Windows while its memory does not shrink
WINDOWS_SECONDS = 10.0
MAX_ROWS = 4000
DROP_CACHE = "while :; do sleep 20; sync; echo 1 > /proc/sys/vm/drop_caches; done"


@dataclass(frozen=True)
class Scenario:
    """A workload of ``traces/workloads.py`` in a machine, and what Windows does about it.

    ``spare_mib`` is what Windows has left once the machine has booted; ``program`` the MiB and seconds of a program of
    its own; ``taken`` the MiB that the balloon takes back in so many seconds, in so many steps; ``paged`` that Windows
    writes the machine's memory to its page file rather than end it, ``disk_mib_per_second`` how slowly it reads there.
    """

    name: str
    workload: str
    seconds: float
    memory_mib: int = 1024
    spare_mib: int = 4096
    program: tuple[int, float] | None = None
    taken: tuple[int, float, int] | None = None
    given_back: bool = False
    paged: bool = False
    disk_mib_per_second: int = 0
    drops_cache: bool = False


SCENARIOS = [
    Scenario("balloon", "prealloc", 150, taken=(420, 100, 50)),
    Scenario("balloon-fast", "leak_that_stops", 60, taken=(500, 30, 30)),
    Scenario("balloon-steps", "prealloc", 170, taken=(420, 130, 7)),
    Scenario("balloon-slow", "sawtooth_safe", 300, taken=(600, 260, 130)),
    Scenario("balloon-given_back", "idle_half", 150, taken=(250, 50, 25), given_back=True),
    Scenario("balloon-idle", "warm_up", 100, 2048, taken=(500, 60, 30)),
    Scenario("drop_cache", "page_cache", 150, drops_cache=True),
    Scenario("small_host-leak", "leak_linear", 160, 1536, spare_mib=700),
    Scenario("small_host-steps", "leak_steps", 200, 2048, spare_mib=900),
    Scenario("small_host-page_cache", "page_cache", 150, 1536, spare_mib=800),
    Scenario("small_host-build", "build_safe", 120, 1536, spare_mib=1300),
    Scenario("small_host-fits", "leak_that_stops", 120, 1024, spare_mib=1300),
    Scenario("paged_out", "leak_hot", 150, 1024, spare_mib=400, paged=True),
    Scenario("paged_out-works", "prealloc", 150, 1024, spare_mib=450, paged=True),
    Scenario("paged_out-slow", "leak_hot", 150, 1024, spare_mib=300, paged=True, disk_mib_per_second=3),
    Scenario("neighbour", "warm_up", 170, 1024, spare_mib=1400, program=(1200, 120)),
    Scenario("neighbour-paged", "prealloc", 170, 1024, spare_mib=1200, program=(900, 80), paged=True),
    Scenario("neighbour-stops", "warm_up", 170, 1024, spare_mib=1800, program=(700, 60)),
    Scenario("neighbour-starts", "prealloc", 120, 1024, spare_mib=2400, program=(900, 8)),
]


def act(host: WindowsHost, scenario: Scenario, over: threading.Event) -> None:
    """Do to the machine what the scenario says."""
    if over.wait(LEAD_IN_SECONDS):
        return
    if scenario.program:
        host.start_program(*scenario.program)
    if scenario.taken:
        mib, seconds, steps = scenario.taken
        sizes = [scenario.memory_mib - mib * step / steps for step in range(1, steps + 1)]
        for size in sizes + list(reversed(sizes)) * scenario.given_back:
            host.balloon(size)
            if over.wait(seconds / steps):
                return


def samples(drive: Path, over: threading.Event) -> Iterator[dict[str, Any]]:
    """Yield what the recorder in the machine writes, as it comes."""
    with drive.open("rb") as file:
        last = False
        while not last:
            last = over.wait(INTERVAL_SECONDS / 4)
            while (block := file.read(BLOCK_BYTES)).strip(b"\0 "):
                yield json.loads(block)
            file.seek(-len(block), 1)


def watch(
    host: WindowsHost, drive: Path, over: threading.Event, *, paged: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the samples of a machine with what Windows told, and what happened."""
    rows: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    killed, began = host.kills, 0.0
    before, due = None, 0.0
    for row in samples(drive, over):
        began = began or time.monotonic() - row["t"]
        windows = host.memory()
        rows.append(row)
        if row["t"] >= due:  # as often as the daemon asks
            rows[-1] = row | {"windows": windows}
            now = (row["t"], windows["available"] / windows["total"])
            due = row["t"] + next_period(WINDOWS_SECONDS, before, now) - INTERVAL_SECONDS / 2
            before = now
        if len(rows) > 1 and (kills := row["vm"]["oom_kills_total"] - rows[-2]["vm"]["oom_kills_total"]):
            events.append({"t": row["t"], "resource": "ram", "kind": "oom_kill", "count": kills})
        told = {event["resource"] for event in events}
        if "windows" not in told and windows["available"] < (PAGED_SHARE if paged else EXHAUSTED_SHARE) * host.total:
            kind = "paged_out" if paged else "exhausted"
            events.append({"t": row["t"], "resource": "windows", "kind": kind})
    if host.kills > killed and not any(event["resource"] == "windows" for event in events):
        events.append({"t": round(time.monotonic() - began, 3), "resource": "windows", "kind": "machine_killed"})
    return rows, {"events": events, "machine_died": host.kills > killed}


def record(scenario: Scenario, folder: Path) -> str:
    """Record one scenario in a machine of its own; returns a line that says what happened."""
    with tempfile.TemporaryDirectory(prefix=f"{scenario.name}-") as scratch, WindowsHost(Path(scratch)) as host:
        drive = Path(scratch) / "rows.raw"
        with drive.open("wb") as file:
            file.truncate(MAX_ROWS * BLOCK_BYTES)
        machine = Machine(
            image(),
            Path(scratch),
            memory_mib=scenario.memory_mib,
            cpus=2,
            drives=[drive],
            launcher=("nice", *host.launcher),
            options=host.options(scenario.memory_mib, paged=scenario.paged),
        )
        over = threading.Event()
        with machine:
            machine.boot(timeout_seconds=400)
            machine.copy_in(HERE / "traces", "/root/traces")
            if scenario.drops_cache:
                machine.run("systemd-run", "sh", "-c", DROP_CACHE)
            host.give(scenario.spare_mib)
            if scenario.disk_mib_per_second:
                host.slow_down(scenario.disk_mib_per_second)
            limit = scenario.seconds + 60
            command = ["python3", "/root/traces/recorder.py", "--to", "/dev/vdb", str(limit), "python3"]
            workload = ["/root/traces/workloads.py", scenario.workload, str(scenario.seconds)]

            def run() -> None:
                try:
                    machine.run(*command, *workload, timeout_seconds=limit + 60)
                except MachineError as error:
                    print(f"{scenario.name}: {str(error).splitlines()[0]}", flush=True)
                finally:
                    over.set()

            threads = [threading.Thread(target=run), threading.Thread(target=act, args=(host, scenario, over))]
            for thread in threads:
                thread.start()
            rows, happened = watch(host, drive, over, paged=scenario.paged)
            for thread in threads:
                thread.join()
    first = rows[0]
    about = {"ram_bytes": first["ram"]["total"], "windows_bytes": first["windows"]["total"], "wsl": True}
    name = f"host-{scenario.name}"
    with gzip.GzipFile(folder / f"{name}.jsonl.gz", "wb", mtime=0) as packed:
        for line in ({"trace": 1, "interval_s": INTERVAL_SECONDS, "host": about}, *rows):
            packed.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    observations = [observation_from_row(row, wsl=True) for row in rows]
    truth = {"scenario": scenario.workload, **happened, **label(name, observations, happened["events"])}
    (folder / f"{name}.truth.json").write_text(json.dumps(truth) + "\n", encoding="utf-8")
    return f"{name}: {len(rows)} samples, {truth['events']}"


def main() -> None:
    """Record what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for scenario in SCENARIOS:
        if not arguments.names or scenario.name in arguments.names:
            print(record(scenario, arguments.folder), flush=True)


if __name__ == "__main__":
    main()
