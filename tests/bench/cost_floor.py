"""A daemon with wslgpud's libraries that does next to nothing; ``bench_cost`` runs it beside wslgpud.

    python -m tests.bench.cost_floor PORT FILE

It imports the same libraries, asks NVML in a child process, reads two files of /proc once per second, commits a row
every ten seconds, and exposes the values. It has no history, forecasts, alerts or page.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

from prometheus_client import Gauge, start_http_server
from sqlalchemy import create_engine, text

#: imported for their memory
LIBRARIES = ("asyncio", "h11")
FILES = ("/proc/meminfo", "/proc/vmstat")
COMMIT_SECONDS = 10
CHILD = """
import sys, pynvml
pynvml.nvmlInit()
cards = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
for _ in sys.stdin:
    print(*(pynvml.nvmlDeviceGetMemoryInfo(card).used for card in cards), flush=True)
"""


def values() -> dict[str, float]:
    lines = (line.split() for name in FILES for line in Path(name).read_text().splitlines())
    return {words[0].rstrip(":"): float(words[1]) for words in lines}


def main(port: int, file: str) -> None:
    """Sample until the process is terminated."""
    for library in LIBRARIES:
        import_module(library)
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        connection.execute(text("PRAGMA journal_mode=WAL"))
        connection.execute(text("CREATE TABLE batch (data TEXT)"))
    gauge = Gauge("floor", "A value of /proc.", ["name"])
    start_http_server(port, "127.0.0.1")
    due, batch = time.monotonic(), list[str]()
    while True:
        child.stdin.write("\n")
        child.stdin.flush()
        found = values() | {f"gpu{i}": float(used) for i, used in enumerate(child.stdout.readline().split())}
        for name, value in found.items():
            gauge.labels(name).set(value)
        batch.append(repr(list(found.values())))
        if len(batch) == COMMIT_SECONDS:
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO batch VALUES (:data)"), {"data": "\n".join(batch)})
            batch.clear()
        due += 1.0
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--version", action="version", version=platform.python_version())
    options.add_argument("port", type=int)
    options.add_argument("file")
    main(**vars(options.parse_args()))
