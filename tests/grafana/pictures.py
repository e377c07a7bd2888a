"""Pictures of the dashboards: ``python -m tests.grafana.pictures [NAME...]`` writes grafana/pictures.

From the committed JSON, a real Prometheus with the evening of ``history``, and Grafana's own published
components in a headless Chromium (see ``render/``). Needs node, npm and chromium; the first run fetches the
components (450 MiB) into .cache/grafana.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.grafana import history
from tests.grafana.machines import CARDS
from tests.grafana.panels import DASHBOARDS, Query, panels
from tests.support.servers import Prometheus, prometheus

ROOT = Path(__file__).parent.parent.parent
MODULES = ROOT / ".cache" / "grafana"
RENDER = Path(__file__).parent / "render"
PICTURES = ROOT / "grafana" / "pictures"
WIDTH, POINTS = 1600, 700
SPANS = {"now-1h": 3600, "now-3h": 3 * 3600, "now-6h": 6 * 3600, "now-30d": 30 * 86400}
#: what each picture shows: time, machine
CHOSEN: dict[str, tuple[str, str]] = {
    "overview": ("now-3h", history.PC),
    "gpu": ("now-3h", history.PC),
    "stress": ("now-30d", history.PC),
    "daemon": ("now-3h", history.PC),
    "fleet": ("now-3h", ""),
}


def components() -> None:
    """Fetch Grafana's components once, and bundle them with what stands between them and a dashboard."""
    MODULES.mkdir(parents=True, exist_ok=True)
    wanted = (RENDER / "package.json").read_text()
    stamp = MODULES / "package.json"
    if not stamp.exists() or stamp.read_text() != wanted:
        stamp.write_text(wanted)
        install = ["npm", "install", "--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund"]
        subprocess.run(install, cwd=MODULES, check=True)
    subprocess.run(["node", str(RENDER / "bundle.mjs"), str(MODULES)], check=True)
    for link, target in {"public/build": "node_modules/@grafana/ui/dist/public"}.items():
        (MODULES / link).parent.mkdir(exist_ok=True)
        if not (MODULES / link).exists():
            (MODULES / link).symlink_to(MODULES / target)


def answers(server: Prometheus, board: Any, span: int, end: float, instance: str) -> dict[str, list[Any]]:
    """Ask what Grafana would ask for each panel, with the same steps."""
    found: dict[str, list[Any]] = {}
    for panel in panels(board):
        width = POINTS * panel["gridPos"]["w"] // 24 or 1
        step = max(15, math.ceil(span / width / 15) * 15)
        for target in panel.get("targets") or []:
            query = Query(board["uid"], panel["title"], target["refId"], target["expr"])
            card = CARDS["wsl2-vram-full"] if instance == history.PC else ".+"
            asked = query.asked(instance, card, f"{max(60, step + 15)}s", f"{span}s", f"{step}s")
            if target.get("instant"):
                result = server.ask("query", query=asked, time=str(end))["result"]
            else:
                start = (end - span) // step * step
                result = server.ask("query_range", query=asked, start=str(start), end=str(end), step=str(step))[
                    "result"
                ]
            found.setdefault(str(panel["id"]), []).append(
                {
                    "refId": target["refId"],
                    "legend": target.get("legendFormat", ""),
                    "format": target.get("format", ""),
                    "instant": bool(target.get("instant")),
                    "step": step,
                    "result": result,
                }
            )
    return found


def notes(server: Prometheus, board: Any, span: int, end: float, instance: str) -> list[dict[str, Any]]:
    """Ask for the annotations that are on; neighbours within a step are one."""
    found = []
    step = max(15, span // POINTS)
    for note in (board.get("annotations") or {}).get("list") or []:
        if not note["enable"]:
            continue
        query = Query(board["uid"], "annotation", note["name"], note["expr"])
        asked = query.asked(instance, ".+", f"{step * 4}s", f"{span}s", f"{step}s")
        answer = server.ask("query_range", query=asked, start=str(end - span), end=str(end), step=str(step))
        for series in answer["result"]:
            times = [t for t, _ in series["values"]]
            starts = [t for before, t in zip([0, *times], times, strict=False) if t - before > step]
            ends = [t for t, after in zip(times, [*times[1:], math.inf], strict=True) if after - t > step]
            found += [{"from": a, "to": b, "colour": note["iconColor"]} for a, b in zip(starts, ends, strict=True)]
    return found


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the files of a folder on loopback; yield the address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def shoot(name: str, picture: dict[str, Any], target: Path) -> None:
    """Have Chromium draw one dashboard."""
    page = MODULES / f"{name}.html"
    page.write_text(
        '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="bundle.css"><div id="root"></div>'
        f"<script>window.__grafana_public_path__='/public/';window.PICTURE={json.dumps(picture)}</script>"
        '<script src="bundle.js"></script>'
    )
    height = 60 + 38 * max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in picture["board"]["panels"])
    with served(MODULES) as address:
        command = [
            shutil.which("chromium") or "chromium",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--window-size={WIDTH},{height}",
            "--virtual-time-budget=15000",
            f"--screenshot={target}",
            f"{address}/{name}.html",
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=300)


def small(file: Path) -> None:
    """Write the picture anew with a palette: flat colours need no more, and a third of the bytes."""
    from PIL import Image  # matplotlib brings it; only here

    with Image.open(file) as image:
        flat = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE)
        flat.save(file, optimize=True)


def main(names: list[str]) -> None:
    """Draw the dashboards."""
    components()
    PICTURES.mkdir(exist_ok=True)
    end = float((int(time.time()) - 3120) // 3600 * 3600 + 3120)  # 52 past: no label of the axis is cut at the edge
    with tempfile.TemporaryDirectory() as folder:
        history.backfill(Path(folder), end)
        for name in names or CHOSEN:
            since, instance = CHOSEN[name]
            # As long as values last between two samples: what has ended leaves no mark in imported blocks.
            lookback = history.NIGHTLY_SCRAPE if since.endswith("d") else history.SCRAPE
            options = ("--storage.tsdb.retention.time=100d", f"--query.lookback-delta={lookback + 5}s")
            with prometheus(Path(folder), "{}", *options) as server:
                board = DASHBOARDS[f"wslgpud-{name}"]
                span = SPANS[since]
                chosen = {"Machine": "All" if instance == "" else instance}
                if "$gpu" in json.dumps(board):
                    chosen["GPU"] = "0 NVIDIA GeForce RTX 5070 Ti"
                picture = {
                    "board": board,
                    "answers": answers(server, board, span, end, instance),
                    "notes": notes(server, board, span, end, instance),
                    "variables": list(chosen.items()),
                    "from": end - span,
                    "to": end,
                    "span": f"Last {span // 3600} hours" if span < 86400 else f"Last {span // 86400} days",
                }
                shoot(name, picture, PICTURES / f"{name}.png")
                small(PICTURES / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
