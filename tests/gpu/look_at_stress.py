"""Looks on while a stress run that was started by hand goes over a real card: what people see of it.

    python -m tests.gpu.look_at_stress OUT [--python PYTHON] [--quick]

Not a test: it needs an NVIDIA card that nobody uses, a Python with torch (by default this one) and tmux;
takes a minute. OUT gets the terminals of ``wslgpud monitor`` and of the run at every new phase and every
five seconds, as text and as SVG, and ``status.jsonl``: what the daemon's status said of it all the while.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.support.servers import free_port
from tests.support.terminals import Terminal

EVERY_SECONDS, PICTURE_SECONDS = 0.5, 5.0
SIZE = (116, 34)


def status(url):
    with urllib.request.urlopen(f"{url}/api/v1/status", timeout=10) as answer:
        return json.loads(answer.read())


def wait_for_card(url):
    """Return once the daemon has answered with a card."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if status(url).get("gpus"):
                return
        except OSError:
            pass  # it has not begun to listen
        time.sleep(0.2)
    raise SystemExit("the daemon has seen no card within a minute")


def save(out, name, terminal, title):
    (out / f"{name}.txt").write_text(terminal.text() + "\n")
    (out / f"{name}.svg").write_text(terminal.picture(title))


def watch(out, url, monitor, run):
    """Write down what is to be seen until the run has ended."""
    pictures, phase, taken = 0, None, 0.0
    with (out / "status.jsonl").open("w") as file:
        while "ended with status" not in run.text():
            began = time.monotonic()
            seen = status(url)
            kept = {key: seen.get(key) for key in ("at", "level", "headline", "running", "forecasts")}
            kept["used_bytes"] = [gpu.get("used_bytes") for gpu in seen["gpus"]]
            file.write(json.dumps(kept) + "\n")
            now = [one.get("phase") for one in seen.get("running", ())]
            if now != phase or began - taken > PICTURE_SECONDS:
                time.sleep(1.1)  # the monitor looks once a second
                pictures, phase, taken = pictures + 1, now, began
                save(out, f"monitor-{pictures:02}", monitor, "wslgpud monitor")
                save(out, f"stress-{pictures:02}", run, "wslgpud stress")
            time.sleep(max(0.0, EVERY_SECONDS - (time.monotonic() - began)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default=sys.executable, help="a Python with torch")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--nvml", default="", help="management library instead of the driver's")
    options = parser.parse_args()
    out, port = options.out.resolve(), free_port()
    out.mkdir(parents=True, exist_ok=True)
    url, config = f"http://127.0.0.1:{port}", out / "wslgpud.toml"
    places = ["--config", str(config), "--state", str(out / "state")]
    mode = "--quick" if options.quick else "--full"
    nvml = f'nvml_library = "{options.nvml}"\n' if options.nvml else ""
    config.write_text(f"[sampling]\n{nvml}[server]\nport = {port}\n[stress]\npython = {json.dumps(options.python)}\n")
    wslgpud = [sys.executable, "-m", "wslgpud"]
    environment = {k: v for k, v in os.environ.items() if k in ("PYTHONPATH", "TERMINFO", "LD_LIBRARY_PATH")}
    with (out / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen([*wslgpud, "run", *places], stdout=log, stderr=log)
    try:
        wait_for_card(url)
        with (
            Terminal([*wslgpud, "monitor", *places], out, SIZE, environment) as monitor,
            Terminal([*wslgpud, "stress", mode, *places], out, SIZE, environment) as run,
        ):
            watch(out, url, monitor, run)
            time.sleep(3.0)  # the result is kept, and read by the daemon
            save(out, "monitor-after", monitor, "wslgpud monitor")
            save(out, "stress-after", run, "wslgpud stress")
        (out / "status-after.json").write_text(json.dumps(status(url), indent=1))
    finally:
        daemon.terminate()
        daemon.wait(20)


if __name__ == "__main__":
    main()
