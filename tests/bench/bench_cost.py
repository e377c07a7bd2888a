"""Cost of the whole daemon and of its alternatives, on this machine in the same run.

    python -m tests.bench.bench_cost --fetch         # once: download the alternatives to ~/.cache/wslgpud-peers
    python -m tests.bench.bench_cost --seconds 300   # print the table of README.md; --json FILE saves the figures
    python -m tests.bench.bench_cost --cards 8 --call-microseconds 200   # many GPUs, under WSL2
    python -m tests.bench.bench_cost --processes 3000                    # many processes
    python -m tests.bench.bench_cost --beside OTHER/bin/wslgpud          # another version in the same run
    python -m tests.bench.bench_cost --cards 0 --only node_exporter netdata    # a calm machine: no card, few tools

All tools run at the same time, first without scraping (except by the Prometheus of the trio, which has no
history otherwise), then scraped once per second. CPU time includes all processes of a tool, exited ones too,
so other load on the machine hardly changes it. The GPU is ``tests/fake_nvml`` with the latencies of an H200;
it uses a part of the CPU time of a real driver. With a real GPU: ``--real-gpu``. On a busy machine, prefix
the command with ``chrt -r 10``, which keeps other programs' time slices out of the latencies.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import cost_peers as peers
from tests.bench.cost_peers import Started
from tests.support.servers import free_port

FAKE = Path(__file__).parents[1] / "fake_nvml" / "fake_nvml.c"
#: Microseconds per call on an H200 (wslgpud/probes/README.md). The PCIe throughput call waits without using the CPU.
LATENCIES = {
    "busy_us": 1,
    "busy_us.DeviceGetMemoryInfo": 4,
    "busy_us.DeviceGetMemoryInfo_v2": 4,
    "busy_us.DeviceGetComputeRunningProcesses": 5,
    "busy_us.DeviceGetGraphicsRunningProcesses": 5,
    "busy_us.DeviceGetUtilizationRates": 10,
    "busy_us.DeviceGetPowerUsage": 6,
    "busy_us.DeviceGetFanSpeed": 85,
    "busy_us.DeviceGetCurrPcieLinkWidth": 32,
    "busy_us.DeviceGetTotalEnergyConsumption": 3700,
    "busy_us.DeviceGetDisplayActive": 133,
    "busy_us.DeviceGetTemperatureThreshold": 80,
    "busy_us.DeviceGetMigMode": 134,
    "busy_us.DeviceGetBAR1MemoryInfo": 135,
    "delay_us.DeviceGetPcieThroughput": 20_800,
}
GIVE_UP_SECONDS = 60.0
#: names of this version, of another, and of a daemon that does next to nothing
OURS, BEFORE, FLOOR = "wslgpud", "wslgpud before", "floor"
#: Prometheus 2.42
AS_PROMETHEUS = {
    "Accept": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}


def fake_library(folder: Path, cards: int = 1, call_microseconds: int = 0) -> Path:
    """Build a fake NVML with the latencies of a real card, on which a training runs.

    ``call_microseconds`` is the latency of each call, as when it crosses from WSL to Windows.
    """
    library = folder / "libnvidia-ml.so.1"
    options = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC"]
    subprocess.run(["cc", *options, "-o", library, FAKE, "-ldl"], check=True)
    latencies = {"delay_us": call_microseconds} if call_microseconds else LATENCIES
    settings = {**latencies, "gpus": cards, "pid": os.getpid(), "used": 12 << 30, "fixed": 1}
    Path(f"{library}.settings").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    return library


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


@dataclass(frozen=True)
class Spent:
    """Resources that a tool's processes have used so far, and hold now."""

    cpu_seconds: float
    written_bytes: int
    pss_bytes: int
    processes: int
    threads: int
    handles: int


def spent(pids: list[int]) -> Spent:
    """Add up the resources of the processes ``pids`` and their descendants."""
    total = [0.0, 0, 0, 0, 0, 0]
    for one in (member for pid in pids for member in family(pid)):
        folder = Path(f"/proc/{one}")
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            rollup = (folder / "smaps_rollup").read_text()
            written = int(re.search(r"^write_bytes: (\d+)", (folder / "io").read_text(), re.MULTILINE)[1])
            handles = len(list((folder / "fd").iterdir()))
        except OSError:
            continue  # it has just exited; its parent accounts for it from now on
        pss = re.search(r"^Pss: +(\d+)", rollup, re.MULTILINE)
        ticks = sum(int(field) for field in fields[11:15])  # user, system, and both of waited-for children
        row = (ticks / os.sysconf("SC_CLK_TCK"), written, int(pss[1]) * 1024 if pss else 0, 1)
        total = [a + b for a, b in zip(total, (*row, int(fields[17]), handles), strict=True)]
    return Spent(total[0], *(int(value) for value in total[1:]))


@dataclass
class Tool:
    """A row of the table: one or more programs."""

    name: str
    has: str
    parts: list[Started]
    scraped: bool = True
    pids: list[int] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    body_bytes: int = 0
    series: int = 0
    ticks: list[float] = field(default_factory=list)


@contextmanager
def running(tool: Tool, library: Path | None, folder: Path) -> Iterator[None]:
    """Run a tool's programs until the block ends."""
    processes = []
    try:
        for number, part in enumerate(tool.parts):
            environment = {**os.environ, **dict(part.variables)}
            if library is not None:
                paths = (str(library.parent), environment.get("LD_LIBRARY_PATH"))
                environment["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
            with (folder / f"{tool.name.replace(' ', '-')}-{number}.log").open("w") as log:
                process = subprocess.Popen(part.command, env=environment, stdout=log, stderr=log, cwd=folder)
            processes.append(process)
            tool.pids.append(process.pid)
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def wait_until_answering(tool: Tool) -> None:
    """Wait until each program answers with values."""
    for url in (part.url for part in tool.parts if part.url):
        end = time.monotonic() + GIVE_UP_SECONDS
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    if answer.read().count(b"\n") > 100:
                        break
            except OSError:
                pass
            if time.monotonic() > end:
                raise SystemExit(f"{tool.name} does not answer at {url}")
            time.sleep(0.2)


def scrape(tool: Tool, ended: threading.Event) -> None:
    """Scrape a tool once per second as Prometheus does, over a persistent connection with gzip, and time it."""
    place = urllib.parse.urlsplit(tool.parts[0].url)
    connection = http.client.HTTPConnection(place.netloc, timeout=30)
    target = f"{place.path}?{place.query}" if place.query else place.path
    while not ended.wait(1.0):
        began = time.perf_counter()
        connection.request("GET", target, headers=AS_PROMETHEUS)
        answer = connection.getresponse()
        body = answer.read()
        tool.took.append(time.perf_counter() - began)
        if answer.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        tool.body_bytes = len(body)
        tool.series = sum(line[:1] not in (b"#", b"") for line in body.splitlines())
        if found := re.search(rb'^wslgpud_source_duration_seconds\{source="sampler"\} (\S+)', body, re.MULTILINE):
            tool.ticks.append(float(found[1]))


def ours(folder: Path, library: Path | None, other: Path | None = None) -> Tool:
    """Return this version, or another that is installed elsewhere."""
    port = free_port()
    folder.mkdir()
    variables = [("WSLGPUD_SERVER__PORT", str(port)), ("HOME", str(folder))]
    if library is not None:
        variables.append(("WSLGPUD_SAMPLING__NVML_LIBRARY", str(library)))
    program = [sys.executable, "-m", "wslgpud"] if other is None else [str(other)]
    variables.append(("PYTHONPATH", str(Path(__file__).parents[2]) if other is None else ""))
    started = Started(
        [*program, "run", "--state", str(folder / "state")], f"http://127.0.0.1:{port}/metrics", tuple(variables)
    )
    return Tool(OURS if other is None else BEFORE, "host, GPU, history, forecasts, alerts", [started])


def others(folder: Path) -> tuple[list[Tool], list[str]]:
    """Return the installed alternatives, and the names of the missing ones."""
    tools, missing = [], []

    def add(name: str, has: str, *parts: Started | None, scraped: bool = True) -> None:
        here = [part for part in parts if part is not None]
        if len(here) == len(parts):
            tools.append(Tool(name, has, here, scraped))
        else:
            missing.append(name)

    def room(name: str) -> Path:
        (folder / name).mkdir()
        return folder / name

    add(FLOOR, "the same libraries, hardly used", peers.floor(folder))
    add("node_exporter", "host", peers.node_exporter(folder))
    add("nvitop-exporter", "GPU, some of the host", peers.nvitop_exporter(folder))
    host, gpu = peers.node_exporter(folder), peers.nvitop_exporter(folder)
    urls = [part.url for part in (host, gpu) if part]
    add(
        "Prometheus + node_exporter + nvitop-exporter",
        "host, GPU, history",
        peers.prometheus(room("prometheus"), urls),
        host,
        gpu,
        scraped=False,
    )
    add("netdata", "host, history, alarms (GPU: by nvidia-smi)", peers.netdata(room("netdata")))
    add("Glances", "host, GPU", peers.glances(room("glances")))
    add("earlyoom", "RAM and swap, to kill", peers.earlyoom(folder), scraped=False)
    return tools, missing


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)] if values else 0.0


def measure(tools: list[Tool], seconds: float) -> list[dict[str, Any]]:
    """Measure all tools at the same time, first without scraping, then scraped."""
    start, began = [spent(tool.pids) for tool in tools], time.monotonic()
    time.sleep(seconds)
    idle, middle = [spent(tool.pids) for tool in tools], time.monotonic()
    ended = threading.Event()
    scrapers = [threading.Thread(target=scrape, args=(t, ended)) for t in tools if t.scraped]
    for scraper in scrapers:
        scraper.start()
    time.sleep(seconds)
    last, end = [spent(tool.pids) for tool in tools], time.monotonic()
    ended.set()
    for scraper in scrapers:
        scraper.join()
    rows = []
    for tool, a, b, c in zip(tools, start, idle, last, strict=True):
        alone = (b.cpu_seconds - a.cpu_seconds) / (middle - began)
        asked = (c.cpu_seconds - b.cpu_seconds) / (end - middle)
        written = (c.written_bytes - a.written_bytes) / (end - began)
        rows.append(
            {
                "name": tool.name,
                "versions": [part.version for part in tool.parts],
                "has": tool.has,
                "cpu_ratio": alone,
                "cpu_scraped_ratio": asked if tool.scraped else None,
                "pss_bytes": c.pss_bytes,
                "processes": c.processes,
                "threads": c.threads,
                "handles": c.handles,
                "written_bytes_a_day": written * 86_400,
                "series": tool.series,
                "body_bytes": tool.body_bytes,
                "scrape_p50_seconds": quantile(tool.took, 0.5),
                "scrape_p99_seconds": quantile(tool.took, 0.99),
                "tick_p50_seconds": quantile(tool.ticks, 0.5),
                "tick_p99_seconds": quantile(tool.ticks, 0.99),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of the README; ratios to wslgpud are in brackets."""
    mine = rows[0]
    heads = ("", "it has", "CPU of one core", "scraped every second", "memory (PSS)")
    heads += ("processes, threads, handles", "written a day", "scrape p50 / p99")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:

        def against(key: str, text: str, row: dict[str, Any] = row) -> str:
            if row is mine or not row[key] or not mine[key]:
                return text
            times = row[key] / mine[key]
            return f"{text} ({times:.1f}x)" if times >= 0.1 else text

        cpu = against("cpu_ratio", f"{row['cpu_ratio']:.2%}")
        scraped, latency = "", ""
        if row["cpu_scraped_ratio"] is not None:
            scraped = against("cpu_scraped_ratio", f"{row['cpu_scraped_ratio']:.2%}")
            latency = f"{row['scrape_p50_seconds'] * 1e3:.1f} / {row['scrape_p99_seconds'] * 1e3:.1f} ms"
        mebibytes = row["pss_bytes"] / 2**20
        memory = against("pss_bytes", f"{mebibytes:.{0 if mebibytes >= 10 else 1}f} MiB")
        held = f"{row['processes']}, {row['threads']}, {row['handles']}"
        written = f"{row['written_bytes_a_day'] / 1e6:.0f} MB"
        name = row["name"] if len(row["versions"]) > 1 else f"{row['name']} {row['versions'][0]}"
        cells = (name, row["has"], cpu, scraped, memory, held, written, latency)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Download the alternatives, or measure."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--fetch", action="store_true", help="download the alternatives")
    options.add_argument("--seconds", type=float, default=300, help="duration of each of the two parts")
    options.add_argument("--warm-up-seconds", type=float, default=60)
    options.add_argument("--real-gpu", action="store_true", help="use this machine's NVML, not the fake one")
    options.add_argument("--cards", type=int, default=1, help="GPUs of the fake NVML, at most 8; 0: no NVML")
    options.add_argument("--call-microseconds", type=int, default=0, help="latency of each call to the fake NVML")
    options.add_argument("--processes", type=int, default=0, help="additional sleeping processes")
    options.add_argument("--beside", type=Path, help="wslgpud of another version, to be measured in the same run")
    options.add_argument("--only", nargs="*", metavar="NAME", help="the alternatives to measure; default: all")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    if chosen.fetch:
        peers.fetch()
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the tools are ended too
    faked = bool(chosen.cards) and not chosen.real_gpu
    if faked and not shutil.which("cc"):
        raise SystemExit("no C compiler (cc) for the stand-in of NVIDIA's library")
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        library = fake_library(folder, chosen.cards, chosen.call_microseconds) if faked else None
        for _ in range(chosen.processes):
            stack.callback(subprocess.Popen(["sleep", "infinity"]).kill)
        theirs, missing = others(folder)
        before = [ours(folder / "before", library, chosen.beside)] if chosen.beside else []
        wanted = [tool for tool in theirs if chosen.only is None or tool.name in chosen.only]
        tools = [ours(folder / "ours", library), *before, *wanted]
        for tool in tools:
            stack.enter_context(running(tool, library, folder))
        for tool in tools:
            wait_until_answering(tool)
        time.sleep(chosen.warm_up_seconds)
        rows = measure(tools, chosen.seconds)
    print(table(rows))
    mine = rows[0]
    p50, p99 = (mine[f"tick_{name}_seconds"] * 1e3 for name in ("p50", "p99"))
    print(f"\nwslgpud's ticks, all sources: p50 {p50:.1f}, p99 {p99:.1f} ms; {mine['series']} series scraped")
    for name in missing:
        print(f"{name} is not here: python -m tests.bench.bench_cost --fetch")
    if chosen.json:
        facts = {"date": time.strftime("%Y-%m-%d"), "seconds": 2 * chosen.seconds, "rows": rows}
        chosen.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
