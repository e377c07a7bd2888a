"""Measures the stress run on a real card: ``python on_a_real_card.py [RUNS]`` from the repository, with torch.

Prints what ``wslgpud/stress/README.md`` states. Needs no package but torch (and CuPy for planted spill).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("PYTHONPATH", str(ROOT))

from wslgpud.config import Stress  # noqa: E402
from wslgpud.model import GpuSample  # noqa: E402
from wslgpud.stress import plan  # noqa: E402
from wslgpud.stress.parent import WORKER, Command, supervise  # noqa: E402
from wslgpud.stress.verdict import Frame, digest  # noqa: E402

FAULTY = Path(__file__).with_name("faulty_worker.py")
PEAK = {"NVIDIA H200": 4.8e12}


def card() -> GpuSample:
    fields = "name,uuid,memory.total,memory.used,memory.free,memory.reserved,driver_version,temperature.gpu"
    text = subprocess.run(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    name, uuid, total, used, free, reserved, _, celsius = [t.strip() for t in text.splitlines()[0].split(",")]
    mib = 1 << 20
    return GpuSample(0, uuid, name, int(total) * mib, int(used) * mib, int(free) * mib, int(reserved) * mib,
                     temperature_celsius=float(celsius))  # fmt: skip


def run(faults=None, mode="nightly", watch=lambda: "", **changes):
    before = card()
    job = plan.job(before, Stress(), mode, wsl=False) | changes
    script = [str(WORKER)] if faults is None else [str(FAULTY), json.dumps(faults)]
    command = Command([sys.executable, *script], {**os.environ, "CUDA_VISIBLE_DEVICES": "0"})
    done = supervise(command, job, deadline_seconds=100, watch=watch)
    frame = Frame(time.time(), before, {}, card(), done.failure, duration_seconds=done.seconds)
    return digest(done.lines, frame), done


def show(title, result, done, peak):
    v = result.values
    print(f"\n## {title}: {result.verdict} {result.reason} {[f.text for f in result.findings]}")
    if not v.get("free_bytes"):
        print(done.failure)
        return
    print(
        f"wall {done.seconds:.2f} s; phases { ({k: round(s, 3) for k, s in result.detail['phases'].items()}) }"
    )
    if v.get("verified_bytes"):
        print(f"verified {v['verified_bytes'] / v['free_bytes']:.4%} of free, checked {v.get('checked_bytes', 0) / 1e12:.2f} TB;"
              f" context {v.get('context_bytes', 0) >> 20} MiB; leak {v.get('leak_bytes')} {v.get('left_behind_bytes')}")  # fmt: skip
    for kind in ("write", "change", "read"):
        if f"{kind}_median" in v:
            print(
                f"{kind}: median {v[f'{kind}_median'] / peak:.1%} of peak, least {v[f'{kind}_min'] / peak:.1%}"
            )
    for row in result.detail["patterns"]:
        print(
            f"  {row['name']:13} {row['seconds']:.3f} s  {row['verified'] / row['seconds'] / 1e12:.2f} TB/s with writing,"
            f" {row['verified'] / row['check_seconds'] / 1e12:.2f} TB/s in checks; bad {row['bad_words']}"
        )


def main() -> None:
    peak = PEAK[card().name]
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    result, done = run()
    show("whole battery", result, done, peak)
    for row in result.detail["ladder"]:
        print("  rung", row)
    print(" ", result.detail["fragmentation"])
    clean = [run(mode="quick", ladder=[])[0] for _ in range(runs)]
    print(
        f"\n{len(clean)} clean quick runs:",
        [r.verdict for r in clean],
        [f.text for r in clean for f in r.findings],
    )
    classes = [c["class"] for r in clean for c in r.detail["chunks"]]
    print("classes", {c: classes.count(c) for c in set(classes)})
    last = (256 << 17) - 1
    cases = {
        "flips in first and last word": {
            "flips": [["solid", 3, 0, 1], ["address", 200, last, 1 << 63], ["random", 0, 7, 6]]
        },
        "stuck bit": {"stuck": [[100, 12345, 256]]},
        "aliased chunks": {"alias": {"300": 17}},
        "swapped chunks": {"swap": [["address", 5, 500]]},
        "pinned chunks": {"pinned": [4, 9, 30]},
    }
    for title, faults in cases.items():
        result, done = run(faults, mode="nightly" if title[0] == "f" else "quick", ladder=[])
        print(
            f"\n{title}: {result.verdict} {result.reason} {[f.text for f in result.findings]} {done.seconds:.1f} s {done.failure}"
        )
        print("  reports", [(e.get("pattern"), e["chunk"], e.get("words"), e.get("class"),
                             (e.get("samples") or [{}])[0].get("word")) for e in result.detail["errors"]][:6])  # fmt: skip
        print("  spilled", [c["index"] for c in result.detail["chunks"] if c["class"] == "spilled"])
    started: list[float] = []
    told: list[float] = []

    def trainer() -> None:
        code = (
            "import torch,time\ntorch.cuda.init()\nprint('ready',flush=True)\ninput()\nfor i in range(200):\n"
            " try:\n  x=torch.empty(8<<30,dtype=torch.uint8,device='cuda');x.fill_(1);torch.cuda.synchronize();print('got',flush=True);break\n"
            " except torch.OutOfMemoryError: time.sleep(0.02)\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        process.stdout.readline()
        while not told:
            time.sleep(0.01)
        started.append(time.monotonic())
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        started.append(time.monotonic())

    thread = threading.Thread(target=trainer)
    thread.start()
    time.sleep(6)
    begun = time.monotonic()

    def watch() -> str:
        if time.monotonic() - begun > 5 and not told:
            told.append(time.monotonic())
            return "a test wants the GPU"
        return ""

    result, done = run(mode="full", ladder=[], watch=watch)
    thread.join(30)
    print(f"\ngiving way when told: {result.verdict} ({result.reason}); worker gone after {done.leave_seconds:.2f} s; "
          f"the other had its 8 GiB after {started[1] - started[0]:.2f} s")  # fmt: skip


if __name__ == "__main__":
    main()
