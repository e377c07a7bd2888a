"""Runs doctor, fit, sweep and guard on a real card, and holds what they say against what the programs say.

    python -m tests.gpu.commands_on_a_real_card OUT --python PYTHON

Not a test: it needs an NVIDIA card with 100 GB that nobody uses and a PYTHON with torch; takes two minutes.
OUT gets what each command printed and ``result.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

WSLGPUD = (sys.executable, "-m", "wslgpud")
#: the last of them does not fit on a card of 141 GB
BATCHES = ("16", "32", "64", "128", "256")
FITS = {"inference": (), "training": ("-m", "training"), "checkpointing": ("-m", "training", "--checkpointing")}

#: prints what torch had at most, and what the driver called used then, less what was used before
TRAINING = """
import json, sys, time, torch, pynvml
from torch import nn
from torch.utils.data import DataLoader, Dataset
BATCH, STEPS, WORKERS = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
class Texts(Dataset):
    def __len__(self): return BATCH * STEPS
    def __getitem__(self, _): return torch.randn(1024, 1024)
def main():
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    used = lambda: pynvml.nvmlDeviceGetMemoryInfo(card).used
    before, most, shared = used(), 0, 0
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    model = nn.TransformerEncoder(layer, 12).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Texts(), BATCH, num_workers=WORKERS, prefetch_factor=4 if WORKERS else None)
    for batch in loader:
        model(batch.cuda()).square().mean().backward()
        optimizer.step(); optimizer.zero_grad()
        torch.cuda.synchronize()
        most = max(most, used())
        kib = next(int(l.split()[1]) for l in open("/proc/meminfo") if l.startswith("Shmem:"))
        shared = max(shared, kib << 10)
        if WORKERS: time.sleep(0.2)
    print("TRUTH", json.dumps({"torch_reserved": torch.cuda.max_memory_reserved(),
          "torch_allocated": torch.cuda.max_memory_allocated(), "nvml_taken": most - before,
          "machine_shared": shared}), flush=True)
if __name__ == "__main__": main()
"""


def run(out, name, *command, **environment):
    """Run a command to its end, keep what it prints, and return its status, output and seconds."""
    began = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=200
    )
    seconds = time.monotonic() - began
    (out / f"{name}.txt").write_text(
        f"$ {' '.join(command[2:] if command[0] == sys.executable else command)}\n{done.stdout}{done.stderr}"
        f"[status {done.returncode} after {seconds:.1f} s]\n"
    )
    return done, seconds


def doctor(out, python):
    """Ask the doctor, who looks for torch by himself, and once the Python with torch by name."""
    run(out, "doctor", *WSLGPUD, "doctor", "--all", "--state", str(out / "state"))
    found, seconds = run(out, "doctor-json", *WSLGPUD, "doctor", "--json", "--state", str(out / "state"))
    named, _ = run(out, "doctor-python", *WSLGPUD, "doctor", "--json", "--python", python)

    def torch(text):
        return [finding for finding in json.loads(text) if "torch" in finding["id"]]

    return {
        "status": found.returncode,
        "seconds": seconds,
        "torch": torch(found.stdout),
        "torch_by_name": torch(named.stdout),
    }


def truth(text):
    """Return what the training said of itself."""
    line = next((line for line in text.splitlines() if "TRUTH" in line), None)
    return json.loads(line.partition("TRUTH ")[2]) if line else None


def sweep(out, python, program):
    """Sweep batches; each run leaves its own account in a file beside what sweep measured."""
    said = out / "sweep-truths.txt"
    command = f"{python} {program} {{}} 4 0 >> {said}"
    done, _ = run(out, "sweep", *WSLGPUD, "sweep", "--json", command, *BATCHES)
    document = json.loads(done.stdout)
    told = [truth(line) for line in said.read_text().splitlines()]
    return {
        "end": document["end"],
        "rows": [
            {
                "batch": step["value"],
                "status": step["code"],
                "seconds": step["seconds"],
                "swept_bytes": step["vram_bytes"],
                "ram_bytes": step["ram_bytes"],
                **(own or {}),
            }
            for step, own in zip(document["steps"], [*told, *[None] * len(document["steps"])], strict=False)
        ],
    }


def guard(out, python, program):
    """Guard a training with four loader workers, twice: the second time its peaks are known."""
    found = []
    for name in ("guard", "guard-again"):
        done, _ = run(
            out, name, *WSLGPUD, "guard", "--state", str(out / "state"), "--", python, str(program), "24", "40", "4"
        )
        found.append({"status": done.returncode, "own": truth(done.stdout), "said": done.stderr[-900:]})
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", required=True, help="a Python with torch and nvidia-ml-py")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    program = out / "training.py"
    program.write_text(TRAINING)
    result = {"doctor": doctor(out, options.python)}
    for name, plan in FITS.items():
        run(out, f"fit-{name}", *WSLGPUD, "fit", "7B", *plan)
    for name, part in (("guard", guard), ("sweep", sweep)):
        result[name] = part(out, options.python, program)
        (out / "result.json").write_text(json.dumps(result, indent=1))
    print(json.dumps({k: v for k, v in result.items() if k != "doctor"}, indent=1))


if __name__ == "__main__":
    main()
