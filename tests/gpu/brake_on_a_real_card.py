"""Does a training that the brake pauses on a real GPU reach the same loss as an undisturbed one?

    python -m tests.gpu.brake_on_a_real_card [--python PYTHON] [--pause 30]

Not a test: it needs an otherwise idle NVIDIA card and a Python with torch (by default this one), and takes two
minutes. The training is deterministic and allocates 64 MiB of VRAM per step. It runs once alone, and once with the
daemon and its brake, beside a neighbour that uses most of the card. ``--pause`` seconds into the pause the neighbour
exits, so that the training can resume. Prints the events, losses and weights.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

PORT = 9657
STEPS, KEPT_MIB = 300, 64
#: share of the card; the training needs a quarter
NEIGHBOUR_SHARE = 0.78
TRAINING = f"""
import hashlib, sys, time, torch
torch.use_deterministic_algorithms(True)
torch.cuda.init()
print("ready", flush=True)
pace = float(sys.stdin.readline())
torch.manual_seed(22)
layers = [torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1024)]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept = []
for step in range({STEPS}):
    batch = torch.randn(512, 1024, device="cuda")
    loss = (model(batch) - batch.roll(1)).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad(set_to_none=True)
    kept.append(torch.full(({KEPT_MIB} << 18,), float(step), device="cuda"))
    time.sleep(pace)
assert all(bool((one == n).all()) for n, one in enumerate(kept)), "what it kept has changed"
weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
print(loss.item().hex(), hashlib.sha256(weights).hexdigest()[:16], flush=True)
"""
NEIGHBOUR = f"""
import sys, torch
torch.cuda.init()
print("ready", flush=True)
sys.stdin.readline()
held = torch.empty(int(torch.cuda.mem_get_info()[1] * {NEIGHBOUR_SHARE}), dtype=torch.uint8, device="cuda")
print("holds it", flush=True)
sys.stdin.readline()
"""


def get(path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def held() -> list[dict[str, Any]]:
    return list(json.loads(get("/api/v1/status")).get("held") or [])


def metrics(prefix: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in get("/metrics").splitlines() if line.startswith(prefix))
    return {name: float(value) for name, _, value in lines}


def wait_for(what: str, happened: Any, seconds: float = 90.0) -> None:
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > until:
            raise SystemExit(f"did not happen in {seconds:.0f} s: {what}")
        time.sleep(0.1)


def answers() -> bool:
    try:
        return bool(get("/-/ready"))
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--pause", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        compare(options.python, options.pause, Path(folder), log)


def compare(python: str, pause_seconds: float, folder: Path, log: Any) -> None:
    apart = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**apart, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    began = time.monotonic()

    def start(code: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [python, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def said(process: subprocess.Popen[str]) -> str:
        return process.stdout.readline().strip() if process.stdout else ""

    def tell(process: subprocess.Popen[str], line: str) -> None:
        if process.stdin is not None:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()

    def note(text: str) -> None:
        print(f"{time.monotonic() - began:5.1f} s  {text}", flush=True)

    (folder / "wslgpud.toml").write_text(f'[brake]\non = true\nresources = ["gpu"]\n[server]\nport = {PORT}\n')
    daemon = subprocess.Popen(
        [sys.executable, "-m", "wslgpud", "run", "--config", str(folder / "wslgpud.toml"), "--state", str(folder)],
        stdout=log,
        stderr=log,
    )
    alone, neighbour, training = started = [start(TRAINING), start(NEIGHBOUR), start(TRAINING)]
    try:
        print(subprocess.run(QUERY, capture_output=True, text=True, check=True).stdout.strip(), flush=True)
        assert [said(one) for one in started] == ["ready"] * 3
        tell(alone, "0")
        expected = said(alone)
        alone.wait()
        note(f"alone:  loss and weights {expected}")
        tell(neighbour, "")
        assert said(neighbour) == "holds it"
        wait_for("the daemon", answers)
        note(f"a neighbour holds {card():.1%} of the card, and the daemon watches")
        tell(training, "0.05")
        wait_for("the pause", lambda: held() or training.poll() is not None, 60)
        paused, (job,) = time.monotonic(), held()
        left, took = job["left_bytes"] / 2**20, metrics("wslgpud_brake_pause_seconds")
        note(f"{job['who']} is paused at {card():.1%} of the card, {left:.0f} MiB left; {took}")
        time.sleep(pause_seconds)
        assert held(), "it did not stay paused"
        note(f"after {pause_seconds:.0f} s at {card():.1%}; the neighbour ends")
        tell(neighbour, "")
        wait_for("the resumption", lambda: not held(), 60)
        note(f"resumed after {time.monotonic() - paused:.0f} s in all; {metrics('wslgpud_brake_ends')}")
        found = said(training)
        same = "the same" if found == expected else "DIFFERENT"
        note(f"paused: loss and weights {found}, exit {training.wait()}: {same}")
    finally:
        for one in started:
            one.kill()
        daemon.terminate()
        daemon.wait(20)
        log.seek(0)
        print(*[line.rstrip() for line in log if "paus" in line or "job" in line or "rror" in line], sep="\n")


QUERY = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]


def card() -> float:
    """Return the share of the card in use, according to the driver."""
    asked = ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"]
    used, total = map(float, subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split(","))
    return used / total


if __name__ == "__main__":
    main()
