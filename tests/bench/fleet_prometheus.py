"""One Prometheus that scrapes two hundred machines; see ``bench_fleet``."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.bench.bench_cost import spent
from tests.bench.bench_prometheus import folder_bytes
from tests.bench.fleet import Box, scrapes
from tests.bench.fleet_postgresql import timed, wait_until
from tests.bench.year import Line
from tests.grafana.panels import QUERIES, Query
from tests.support.servers import Prometheus, program, prometheus
from wslgpud.serve.publisher import OPENMETRICS

#: time range of the fleet dashboard when it is opened
HOURS = 6
#: Prometheus' default is a minute; most set this, and the dashboards expect it
USUAL_SECONDS = 15
#: after its start Prometheus spreads the targets over an interval
WARM_UP_SECONDS = 15
DASHBOARD = [query for query in QUERIES if query.dashboard == "wslgpud-fleet"]


class Targets(http.server.ThreadingHTTPServer):
    """All machines on one port: ``/7/metrics`` is the current response of the eighth."""

    daemon_threads = True

    def __init__(self, bodies: list[list[bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.bodies, self.began = bodies, time.monotonic()

    def body(self, number: int) -> bytes:
        told = self.bodies[number]
        return told[min(int(time.monotonic() - self.began), len(told) - 1)]


class _Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Targets

    def do_GET(self) -> None:
        body = self.server.body(int(self.path.split("/")[1]))
        self.send_response(200)
        self.send_header("Content-Type", OPENMETRICS)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's word
        pass


@contextmanager
def scraping(bodies: list[list[bytes]], interval: int) -> Iterator[tuple[Prometheus, Path]]:
    """Run a Prometheus that scrapes all machines; yield it with its folder."""
    with tempfile.TemporaryDirectory() as scratch, Targets(bodies) as targets:
        threading.Thread(target=targets.serve_forever, daemon=True).start()
        host, port = targets.server_address[:2]
        boxes = [
            {"targets": [f"{host}:{port}"], "labels": {"__metrics_path__": f"/{n}/metrics", "instance": f"box{n:03}"}}
            for n in range(len(bodies))
        ]
        every = {"scrape_interval": f"{interval}s", "scrape_timeout": f"{interval}s"}
        config = {"global": every, "scrape_configs": [{"job_name": "wslgpud", "static_configs": boxes}]}
        with prometheus(Path(scratch), json.dumps(config)) as server:
            yield server, Path(scratch)
        targets.shutdown()


def _appended(server: Prometheus) -> int:
    """Return the number of samples appended since its start."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    counted = re.findall(r"^prometheus_tsdb_head_samples_appended_total\S* (\S+)", text, re.MULTILINE)
    return round(sum(map(float, counted)))


def _live(bodies: list[list[bytes]], interval: int, seconds: int) -> dict[str, Any]:
    """Scrape for a while."""
    with scraping(bodies, interval) as (server, folder):
        time.sleep(WARM_UP_SECONDS)
        first, own, began, samples = spent([server.pid]), time.process_time(), time.monotonic(), _appended(server)
        time.sleep(seconds)
        last, span, taken = spent([server.pid]), time.monotonic() - began, _appended(server)
        own = time.process_time() - own

        def ask(expression: str) -> float:
            return float(server.query(expression)[0]["value"][1])

        due = seconds // interval * len(bodies)
        return {
            "seconds": span,
            "samples_a_second": (taken - samples) / span,
            "server_cpu_seconds": last.cpu_seconds - first.cpu_seconds,
            "machines_cpu_seconds": own,
            "server_pss_bytes": last.pss_bytes,
            "missed_scrapes": max(0, round(due - ask(f"sum(sum_over_time(up[{seconds}s]))"))),
            "scrape_max_seconds": ask(f"max(max_over_time(scrape_duration_seconds[{seconds}s]))"),
            "log_bytes_a_sample": folder_bytes(folder / "tsdb" / "wal") / taken,
        }


def _openmetrics(boxes: Sequence[Box], known: Sequence[Line], end: int, file: Path) -> int:
    """Write six hours of the series that the fleet dashboard queries; return the number of samples."""
    asked = {line.spec.exposed_name for line in known if any(line.spec.exposed_name in q.expression for q in DASHBOARD)}
    lines: dict[str, list[str]] = {name: [] for name in [*sorted(asked), "up"]}
    steps = range(0, HOURS * 3600, USUAL_SECONDS)
    for box in boxes:
        where = f'job="wslgpud",instance="{box.name}"'
        # one simulated step per scrape
        for step, snapshot in zip(steps, box.snapshots(end - HOURS * 3600, len(steps)), strict=True):
            at = end - HOURS * 3600 + step
            lines["up"].append(f"up{{{where}}} 1 {at}\n")
            for spec, value, labels in snapshot.readings():
                if spec.exposed_name in asked:
                    pairs = zip(spec.labels, labels, strict=True)
                    named = ",".join((where, *(f'{name}="{text}"' for name, text in pairs)))
                    lines[spec.exposed_name].append(f"{spec.exposed_name}{{{named}}} {value} {at}\n")
    with file.open("w") as out:
        for some in lines.values():
            out.writelines(some)
        out.write("# EOF\n")
    return sum(map(len, lines.values()))


def _asked(server: Prometheus, query: Query, end: int) -> None:
    """Query like Grafana when the dashboard is opened: six hours, a point every half minute."""
    expression = query.asked("")
    if query.instant:
        server.ask("query", query=expression, time=str(end))
    else:
        server.ask("query_range", query=expression, start=str(end - HOURS * 3600), end=str(end), step="30")


def _dashboard(known: Sequence[Line], machines: int) -> dict[str, Any]:
    """Open the fleet dashboard over six hours; then let four of them expire."""
    end = round(time.time()) // 7200 * 7200
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file, blocks = folder / "history.om", folder / "tsdb"
        samples = _openmetrics([Box(number, known) for number in range(machines)], known, end, file)
        command = [program("prometheus", "promtool"), "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
        subprocess.run([*command, file, blocks], check=True)
        file.unlink()
        with prometheus(folder, "{}") as server:
            took = {
                f"{query.panel} {query.ref}": timed(lambda q=query: _asked(server, q, end), 3) for query in DASHBOARD
            }
        size = folder_bytes(blocks)
        began = time.monotonic()
        with prometheus(folder, "{}", "--storage.tsdb.retention.time=1h"):
            wait_until(lambda: len([*blocks.glob("*/meta.json")]) == 1)
            seconds = time.monotonic() - began
        slowest = max(took, key=lambda name: took[name])
        return {
            "samples": samples,
            "bytes_a_sample": size / samples,
            "query_seconds": {"all": sum(took.values()), slowest: took[slowest]},
            "retention": {"bytes": size - folder_bytes(blocks), "seconds": seconds},
        }


def central_prometheus(known: Sequence[Line], machines: int, seconds: int) -> dict[str, Any]:
    """Return the figures for Debian's Prometheus."""
    start = round(time.time())
    bodies = [scrapes(Box(number, known), start, seconds + WARM_UP_SECONDS) for number in range(machines)]
    command = [program("prometheus", "prometheus"), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return {
        "machines": machines,
        "series": len(known),
        "version": re.search(r"version (\d+\.\d+\.\d+)", said.stdout + said.stderr)[1],
        "every_second": _live(bodies, 1, seconds),
        "usual": {"interval_seconds": USUAL_SECONDS, **_live(bodies, USUAL_SECONDS, seconds)},
        "dashboard": _dashboard(known, machines),
    }
