"""Runs the daemon beside a real training that tells of itself, on a real card: when its leak is known, and its cost.

    python -m tests.gpu.inside_on_a_real_card [--python PYTHON] [--steps 1500]

Not a test: it needs an NVIDIA card that nobody else uses and a Python with torch (by default this one), and takes four
minutes. A transformer keeps 0.02 % of the card more with each step from the 100th on. Printed are the steps
after that at which the driver's figure had moved, ``/metrics`` told the leak and the program's own hook was called, and
the companion's share of the training's thread.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PORT = 9656
BEGIN = 100
TRAINING = f"""
import json, sys, threading, time, torch
companion = sys.modules["wslgpud.training.companion"].COMPANION
spent = [0.0, 0]
def timed(inner):
    def call(*given):
        began = time.perf_counter()
        try:
            return inner(*given)
        finally:
            spent[0] += time.perf_counter() - began
            spent[1] += 1
    return call
companion._read = timed(companion._read)
def tell(**facts):
    print(json.dumps(facts), flush=True)
step = 0
companion.on_warning(lambda level, left: tell(hook=level, step=step, seconds_left=left))
layer = torch.nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 24).cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters())
each = torch.cuda.get_device_properties(0).total_memory // 5000
kept = []
began = None
for step in range(1, int(sys.argv[1]) + 1):
    length = (256, 384, 512)[step % 3]
    loss = model(torch.randn(8, length, 2048, device="cuda", dtype=torch.bfloat16)).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad(set_to_none=True)
    loss.item()
    if step > {BEGIN}:
        kept.append(torch.empty(each, dtype=torch.uint8, device="cuda"))
    if step == {BEGIN}:
        began, own = time.perf_counter(), time.thread_time()
        spent[:] = [0.0, 0]
    if step % 5 == 0:
        free, total = torch.cuda.mem_get_info()
        tell(step=step, driver=total - free, reserved=torch.cuda.memory_reserved())
took = time.perf_counter() - began
(thread,) = [t for t in threading.enumerate() if t.name == "wslgpud"]
other = int(open(f"/proc/self/task/{{thread.native_id}}/schedstat").read().split()[0]) / 1e9
tell(seconds=took, steps=step - {BEGIN}, readings=spent[1], reading_seconds=spent[0], thread_seconds=other, each=each)
"""


def value(name: str) -> float | None:
    """Return the card's value of a training's metric, None while it is not told."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(rf'^wslgpud_training_{name}{{[^}}]*resource="gpu0"[^}}]*}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    wslgpud = [sys.executable, "-m", "wslgpud"]
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        environment = {**os.environ, "WSLGPUD_SERVER__PORT": str(PORT), "XDG_STATE_HOME": folder}
        daemon = subprocess.Popen(
            [*wslgpud, "run", "--state", f"{folder}/wslgpud"], env=environment, stdout=log, stderr=log
        )
        time.sleep(15)
        (Path(folder) / "train.py").write_text(TRAINING)
        command = [*wslgpud, "inside", "--", options.python, f"{folder}/train.py", str(options.steps)]
        training = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        told: list[dict[str, float]] = []
        named = facts = None
        for line in training.stdout or ():
            told.append(json.loads(line))
            step = told[-1].get("step", 0)
            if named is None and step > BEGIN and (each := value("growth_per_step_bytes")) is not None:
                named, facts = step, {"per_step_bytes": each, "steps_to_full": value("steps_to_full")}
        training.wait()
        daemon.terminate()
        daemon.wait(20)
        log.seek(0)
        said = [line.rstrip() for line in log if "keeps" in line or "arn" in line]
    last = told[-1]
    base = next(row for row in told if row.get("step") == BEGIN)
    moved = next((row["step"] - BEGIN for row in told if row.get("driver", 0) > base["driver"]), None)
    hook = next(({**row, "step": row["step"] - BEGIN} for row in told if "hook" in row), None)
    print(f"leak: {last['each'] / 2**20:.1f} MiB (0.02 % of the card) in each step after step {BEGIN}")
    print(f"the driver's figure moved: {moved} steps later; named: {named and named - BEGIN} steps later, {facts}")
    print(f"the program's hook was called: {hook}")
    print("\n".join(said))
    share = last["reading_seconds"] / last["seconds"]
    print(f"{last['readings']} readings, {last['reading_seconds'] / last['readings'] * 1e6:.0f} us each, in ", end="")
    print(
        f"{last['steps']} steps of {last['seconds'] / last['steps'] * 1e3:.1f} ms: {share:.3%} of the training's ",
        end="",
    )
    print(f"time; the companion's own thread {last['thread_seconds'] / last['seconds']:.3%} of a core")


if __name__ == "__main__":
    main()
