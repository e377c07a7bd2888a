"""Runs the daemon beside a real PyTorch training on a real card, and writes down what it saw.

    python -m tests.gpu.on_a_real_card OUT [--python PYTHON] [--prometheus PROGRAM]

Not a test: it needs an NVIDIA card and a Python with torch (by default this one), takes four minutes and ends
in a CUDA out-of-memory error that it makes itself. OUT gets the metrics, the status screens (SVG), a capture
of the machine, the warnings, the database and, with --prometheus, that server's data. A card that others use
is not the place for it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from tests.support.pictures import monitor_svg, saved_monitor, status_svg
from wslgpud.advise.live_sample import RecentSeries
from wslgpud.cli.live.feed import DaemonFeed
from wslgpud.client import DaemonClient

PORT = 9655
URL = f"http://127.0.0.1:{PORT}"
STEADY_SECONDS, LEAK_BYTES_PER_SECOND = 60, 2 << 30

TRAINING = f"""
import sys, time, torch
torch.set_float32_matmul_precision("high")
layer = torch.nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 12).cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters())
began, kept = time.time(), []
def step():
    batch = torch.randn(16, 1024, 2048, device="cuda", dtype=torch.bfloat16)
    loss = model(batch).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    return loss.item()
try:
    while True:
        step()
        leaking = time.time() - began - {STEADY_SECONDS}
        while leaking > 0 and len(kept) * 2**28 < leaking * {LEAK_BYTES_PER_SECOND}:
            kept.append(torch.empty(2**28, dtype=torch.uint8, device="cuda").fill_(1))
except torch.cuda.OutOfMemoryError as error:
    print("OOM", time.time(), str(error).splitlines()[0], flush=True)
"""


def get(path: str) -> str:
    with urllib.request.urlopen(URL + path, timeout=10) as answer:
        return answer.read().decode()


def picture(out: Path, name: str) -> None:
    """Write the status screen as SVG, and its document beside it."""
    document = {"seen_by": "daemon", "url": URL, **json.loads(get("/api/v1/status"))}
    (out / f"{name}.json").write_text(json.dumps(document, indent=1))
    (out / f"{name}.svg").write_text(status_svg(document))


class Watcher(threading.Thread):
    """Looks as ``wslgpud monitor`` does, once a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._trail, self._feed = RecentSeries(), DaemonFeed(DaemonClient(URL))
        self._look = self._feed.look()

    def run(self) -> None:
        while True:
            self._look = self._feed.look()
            self._trail.add(self._look)
            time.sleep(1)

    def picture(self, out: Path, name: str) -> None:
        """Write what the live view shows now as SVG, and beside it what that is drawn from."""
        saved = json.loads(json.dumps(saved_monitor(self._look, self._trail)))
        (out / f"{name}.json").write_text(json.dumps(saved))
        (out / f"{name}.svg").write_text(monitor_svg(saved))


def cost(pid: int) -> dict[str, float]:
    """Return CPU seconds and PSS in bytes of a process and its children."""
    family, cpu, pss = [pid], 0.0, 0
    while family:
        one = family.pop()
        folder = Path(f"/proc/{one}")
        family += [int(c) for c in (folder / f"task/{one}/children").read_text().split()]
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        cpu += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        rollup = (folder / "smaps_rollup").read_text().splitlines()
        pss += next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
    return {"wall": time.time(), "cpu_seconds": cpu, "pss_bytes": pss}


def start_prometheus(program: str, out: Path) -> subprocess.Popen[bytes]:
    config = out / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: wslgpud\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{PORT}']}}]\n"
    )
    return subprocess.Popen(
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={out / 'tsdb'}",
            "--web.listen-address=127.0.0.1:9099",
        ],
        stdout=subprocess.DEVNULL,
        stderr=(out / "prometheus.log").open("wb"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--prometheus")
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    warn = out / "on-warning"
    warn.write_text(f"#!/bin/sh\ncat >> {out}/warnings.jsonl; echo >> {out}/warnings.jsonl\n")
    warn.chmod(0o755)
    environment = {**os.environ, "WSLGPUD_ALERTS__COMMAND": str(warn), "WSLGPUD_SERVER__PORT": str(PORT)}
    wslgpud = [sys.executable, "-m", "wslgpud"]
    with (out / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(
            [*wslgpud, "run", "--state", str(out / "state")], env=environment, stdout=log, stderr=log
        )
    server = start_prometheus(options.prometheus, out) if options.prometheus else None
    time.sleep(20)
    idle = cost(daemon.pid)
    time.sleep(20)
    later = cost(daemon.pid)
    subprocess.run([*wslgpud, "capture", str(out / "capture")], check=True)
    picture(out, "idle")
    watcher = Watcher()
    watcher.start()
    (out / "train.py").write_text(TRAINING)
    training = subprocess.Popen([options.python, "train.py"], cwd=out, stdout=subprocess.PIPE, text=True)
    time.sleep(STEADY_SECONDS - 5)
    picture(out, "training")
    watcher.picture(out, "monitor-training")
    (out / "training.prom").write_text(get("/metrics"))
    subprocess.run([*wslgpud, "capture", str(out / "capture-training")], check=True)
    busy = cost(daemon.pid)
    warnings = out / "warnings.jsonl"
    while training.poll() is None:
        if warnings.exists() and not (out / "warning.svg").exists():
            picture(out, "warning")
            watcher.picture(out, "monitor-warning")
        time.sleep(0.2)
    busier = cost(daemon.pid)
    said = training.stdout.read() if training.stdout else ""
    time.sleep(15)
    picture(out, "after")
    for process in (server, daemon):
        if process is not None:
            process.terminate()
            process.wait(20)
    result = {
        "idle_cpu_ratio": (later["cpu_seconds"] - idle["cpu_seconds"]) / (later["wall"] - idle["wall"]),
        "leak_cpu_ratio": (busier["cpu_seconds"] - busy["cpu_seconds"]) / (busier["wall"] - busy["wall"]),
        "pss_bytes": busier["pss_bytes"],
        "training_said": said,
        "warnings": [json.loads(line) for line in warnings.read_text().splitlines() if line]
        if warnings.exists()
        else [],
    }
    (out / "result.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
