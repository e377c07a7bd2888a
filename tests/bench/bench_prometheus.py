"""Bytes per sample, compared with a real Prometheus that stores the same samples.

    python -m tests.bench.bench_prometheus [--hours 24] [--series 60] [--scrape-seconds 900]

First the history of a simulated machine is imported as a whole: exported, and converted to blocks by promtool, once of
two hours each, as Prometheus first writes them, and once compacted as it does later. Then Prometheus scrapes the same
machine at 1 s, while every tick is written to our database by the real writer; a snapshot converts its in-memory data
to blocks, and its write-ahead log is listed separately. Prometheus stores samples only; ours also keeps summaries for
years.
"""

from __future__ import annotations

import argparse
import http.server
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from tests.bench.year import DAY, Machine, lines, make
from tests.support.servers import program, prometheus
from wslgpud.app.catalogue import catalogue
from wslgpud.config import StoreSettings
from wslgpud.model import Reading, Sample, Snapshot, SourceReport
from wslgpud.series.export import Wanted, openmetrics, sample_name
from wslgpud.store import Reader, Store
from wslgpud.store.maintenance import info
from wslgpud.store.schema import PERIOD_SECONDS

SCRAPE = """
scrape_configs:
  - job_name: wslgpud
    scrape_interval: 1s
    scrape_timeout: 1s
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def folder_bytes(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def line(name: str, taken: int, samples: int, ours: float | None = None) -> float:
    each = taken / samples
    ratio = "" if ours is None else f"   {each / ours:5.2f} times ours"
    print(f"  {name:52}{taken:>13,} bytes {each:8.3f} a sample{ratio}", flush=True)
    return each


def handed_over(folder: Path, series: int, hours: float) -> None:
    """Import ``hours`` of history into Prometheus."""
    file, text = folder / "history.db", folder / "history.om"
    end = int(time.time()) // PERIOD_SECONDS * PERIOD_SECONDS
    for _ in make(file, end=end, days=hours / 24, raw_days=hours / 24, series=series):
        pass
    with Reader(str(file)) as reader:
        found = info(reader)
        wanted = Wanted(reader, reader.kinds(), end - hours * 3600 - DAY, end)
        with text.open("w") as out:
            openmetrics(wanted, out, catalogue(), {"job": "wslgpud"})
    print(f"{found.samples:,} samples of {series} series, {hours:g} h")
    line("wslgpud, samples", found.tiers["sealed"], found.samples)
    ours = line("wslgpud, whole file with summaries", found.file_bytes + found.wal_bytes, found.samples)
    for name, options in (("blocks of 2 h", []), ("blocks as compacted later", ["--max-block-duration=36h"])):
        blocks = folder / "blocks"
        command = [program("prometheus", "promtool"), "tsdb", "create-blocks-from", "openmetrics", *options]
        subprocess.run([*command, text, blocks], check=True, capture_output=True)
        line(f"Prometheus, {name}", folder_bytes(blocks), found.samples, ours)
        shutil.rmtree(blocks)


class Page(http.server.BaseHTTPRequestHandler):
    """The scraped endpoint."""

    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(Page.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's word
        pass


def scraped(folder: Path, series: int, seconds: int) -> None:
    """Let Prometheus scrape a machine whose ticks are also written to our database."""
    machine = Machine(lines(series), 2)
    columns = machine.stretch(int(time.time()), seconds)
    scales = [10**one.spec.decimals for one in machine.lines]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    database = folder / "scraped.db"
    config = SCRAPE.format(port=server.server_address[1])
    with (
        Store(database, StoreSettings(), host_name="bench") as store,
        prometheus(folder, config, "--web.enable-admin-api") as peer,
    ):
        for second in range(seconds):
            readings = [
                Reading(one.spec, column[second] / scale if scale > 1 else int(column[second]), one.labels)
                for one, column, scale in zip(machine.lines, columns, scales, strict=True)
            ]
            Page.body = "".join(map(text_of, readings)).encode()
            keep(store, time.time(), readings)
            time.sleep(1 - time.time() % 1)
        # complete quarters of an hour are sealed then
        keep(store, time.time() + PERIOD_SECONDS, readings[:1])
        query = f'sum_over_time(scrape_samples_scraped{{job="wslgpud"}}[{seconds + 60}s])'
        samples = round(float(peer.query(query)[0]["value"][1]))
        post = urllib.request.Request(f"{peer.url}/api/v1/admin/tsdb/snapshot", method="POST")
        urllib.request.urlopen(post, timeout=60).close()
        log, block = folder_bytes(folder / "tsdb" / "wal"), folder_bytes(folder / "tsdb" / "snapshots")
        server.shutdown()
        store.flush()
        while store.reader.oldest().minute_wall is None:
            time.sleep(1)
    with Reader(str(database)) as reader:
        found = info(reader)
    print(f"\nscraped at 1 s for {seconds} s: Prometheus has {samples:,} samples, we {found.samples:,}")
    ours = line("wslgpud, samples", found.tiers["sealed"], found.samples)
    line("Prometheus, a block of them (with up, scrape_*)", block, samples, ours)
    line("Prometheus, the log in which they lie for 2 h", log, samples, ours)


def keep(store: Store, wall: float, readings: list[Reading]) -> None:
    report = SourceReport("bench", "ok", Sample(tuple(readings)), wall, 0.0)
    store.append(Snapshot(wall, wall, 0, (report,)))


def text_of(reading: Reading) -> str:
    labels = ",".join(f'{k}="{v}"' for k, v in zip(reading.spec.labels, reading.labels, strict=True))
    return f"{sample_name(reading.spec.name, reading.spec.kind)}{{{labels}}} {reading.value}\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--hours", type=float, default=24)
    options.add_argument("--series", type=int, default=60)
    options.add_argument("--scrape-seconds", type=int, default=900)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        handed_over(Path(scratch), chosen.series, chosen.hours)
        if chosen.scrape_seconds:
            scraped(Path(scratch), chosen.series, chosen.scrape_seconds)


if __name__ == "__main__":
    main()
