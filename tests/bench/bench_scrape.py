"""Duration of a scrape with 20 scrapers and 250 series; the goal is a p99 of 10 ms.

Run by hand: ``python tests/bench/bench_scrape.py [--peer URL]``. A peer's metrics on the same machine, such as
node_exporter's http://127.0.0.1:9100/metrics, are measured in the same way. On a busy machine, prefix the command with
``chrt -f 20``, which keeps other programs' time slices out of the result.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

SERIES, SCRAPERS, SECONDS = 250, 20, 10


def serve() -> None:
    """Serve 250 series, updated ten times per second, until standard input is closed."""
    from wslgpud import config  # not needed by the scraping process
    from wslgpud.metrics import MetricSpec
    from wslgpud.model import Reading, Sample, Snapshot, SourceReport
    from wslgpud.serve import HttpServer, Publisher, base_routes

    labels = ("gpu", "uuid")
    text = "A help text of the length that help texts have here, more or less."
    specs = [MetricSpec(f"bench_{n}_bytes", "gauge", "bytes", text, labels) for n in range(SERIES // 2)]
    publisher = Publisher(specs)
    server = HttpServer(config.Server(port=0), publisher, base_routes(publisher, dict))
    print(server.start(), flush=True)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    sequence = 0
    while not ended.wait(0.1):
        sequence += 1
        now = time.monotonic()
        readings = tuple(Reading(s, sequence * 1e6, (str(g), f"GPU-{g}")) for s in specs for g in range(2))
        report = SourceReport("bench", "ok", Sample(readings), now, 0.001)
        publisher.publish(Snapshot(time.time(), now, sequence, (report,)))
    server.stop()


async def scrape(host: str, port: int, path: str, until: float, took: list[float]) -> int:
    """Scrape over one connection until the deadline; return the size of the last response in bytes."""
    reader, writer = await asyncio.open_connection(host, port)
    size = 0
    while time.perf_counter() < until:
        began = time.perf_counter()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: gzip\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(size)
        took.append(time.perf_counter() - began)
        # A hundred times Prometheus' default rate, and like there not all scrapers at the same instant.
        await asyncio.sleep(random.uniform(0.05, 0.15))
    writer.close()
    await writer.wait_closed()
    return size


async def measure(name: str, url: str) -> None:
    """Print the response times that ``SCRAPERS`` get from ``url``."""
    parts = urlsplit(url)
    took: list[float] = []
    until = time.perf_counter() + SECONDS
    tasks = [scrape(parts.hostname, parts.port, parts.path, until, took) for _ in range(SCRAPERS)]
    sizes = await asyncio.gather(*tasks)
    took.sort()
    p50, p99 = (1e3 * took[int(len(took) * q)] for q in (0.5, 0.99))
    figures = f"p50 {p50:6.2f} ms  p99 {p99:6.2f} ms  max {took[-1] * 1e3:6.2f} ms"
    print(f"{name:<8} {len(took):>6} scrapes  {figures}  {sizes[0]:>6} bytes")


def main() -> None:
    """Measure wslgpud, and a peer if given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="URL of another exporter's metrics")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as daemon:
        port = int(daemon.stdout.readline())
        asyncio.run(measure("wslgpud", f"http://127.0.0.1:{port}/metrics"))
        daemon.stdin.close()
    if arguments.peer:
        asyncio.run(measure("peer", arguments.peer))


if __name__ == "__main__":
    main()
