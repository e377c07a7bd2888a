"""Measures the stress run on a real card: ``python on_a_real_card.py [CLEAN RUNS]``, with torch alone.

Prints what ``wslgpud/stress/README.md`` states; planted spill needs CuPy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from wslgpud.config import Stress  # noqa: E402
from wslgpud.host import Host  # noqa: E402
from wslgpud.model import GpuSample  # noqa: E402
from wslgpud.stress import look, plan  # noqa: E402
from wslgpud.stress.parent import WORKER, Command, supervise  # noqa: E402
from wslgpud.stress.verdict import Frame, digest  # noqa: E402

FAULTY = Path(__file__).with_name("faulty_worker.py")
PEAK = {"NVIDIA H200": 4.8e12}
LAST = (256 << 17) - 1
FAULTS = {
    "flips in first and last words": {
        "flips": [
            ["solid", 3, 0, 1],
            ["address", 200, LAST, 1 << 63],
            ["random", 0, 7, 6],
            ["walking", 9, 1, 4],
        ]
    },
    "stuck bit": {"stuck": [[100, 12345, 256]]},
    "aliased chunks": {"alias": {"300": 17}},
    "swapped chunks": {"swap": [["address", 5, 500]]},
    **{f"{n} pinned chunks": {"pinned": [4, 9, 30, 77][:n]} for n in range(5)},
}
#: what anybody's training does first; it tries once, as they do
TRAINER = """
import time
import torch
start = time.monotonic()
x = torch.empty(100 << 30, dtype=torch.uint8, device="cuda").fill_(1)
torch.cuda.synchronize()
print(f"got 100 GiB {time.monotonic() - start:.2f} s after it had loaded torch", flush=True)
"""


def card() -> GpuSample:
    fields = "name,uuid,memory.total,memory.used,memory.free,memory.reserved,temperature.gpu"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    text = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    name, uuid, *sizes, celsius = [part.strip() for part in text.split(",")]
    total, used, free, reserved = (int(size) << 20 for size in sizes)
    return GpuSample(0, uuid, name, total, used, free, reserved, temperature_celsius=float(celsius))


def run(faults=None, mode="nightly", watch=lambda: "", progress=lambda _: None, **changes):
    before = card()
    job = plan.job(before, Stress(), mode, wsl=False) | changes
    script = [str(WORKER)] if faults is None else [str(FAULTY), json.dumps(faults)]
    command = Command([sys.executable, *script], {**os.environ, "CUDA_VISIBLE_DEVICES": "0"})
    done = supervise(command, job, deadline_seconds=100, watch=watch, progress=progress)
    time.sleep(0.3)
    return digest(
        done.lines, Frame(0.0, before, {}, card(), done.failure, duration_seconds=done.seconds)
    ), done


def said(result, done) -> str:
    return f"{result.verdict} {result.reason} {[f.text for f in result.findings]} {done.seconds:.1f} s"


def battery() -> None:
    peak = PEAK[card().name]
    result, done = run()
    v = result.values
    print("## whole battery:", said(result, done))
    phases = {name: round(seconds, 3) for name, seconds in result.detail["phases"].items()}
    print(f"phases {phases}, together {sum(phases.values()):.2f} s")
    share = v["verified_bytes"] / v["free_bytes"]
    print(f"verified {share:.4%} of free; checked {v['checked_bytes'] / 1e12:.2f} TB")
    print({name: value >> 20 for name, value in v.items() if name.endswith("_bytes")}, "MiB")
    for kind in ("write", "change", "read"):
        print(f"{kind}: median {v[f'{kind}_median'] / peak:.1%} of peak, least {v[f'{kind}_min'] / peak:.1%}")
    for row in result.detail["patterns"]:
        whole, checks = (row["verified"] / row[k] / 1e12 for k in ("seconds", "check_seconds"))
        print(f"  {row['name']:13} {row['seconds']:.3f} s  {whole:.2f} TB/s, checks alone {checks:.2f} TB/s")
    for row in result.detail["ladder"]:
        print("  rung", {name: value for name, value in row.items() if name != "event"})
    print(" ", result.detail["fragmentation"])


def clean(runs: int) -> None:
    done = [run(mode="quick", ladder=[]) for _ in range(runs)]
    classes = [chunk["class"] for result, _ in done for chunk in result.detail["chunks"]]
    leaks = [result.values.get("left_behind_bytes") for result, _ in done]
    print(
        f"\n## {runs} clean runs:", {v: [r.verdict for r, _ in done].count(v) for v in ("passed", "findings")}
    )
    print(
        "chunks",
        {name: classes.count(name) for name in set(classes)},
        "left behind at most",
        max(leaks, default=0),
    )


def faults() -> None:
    for title, planted in FAULTS.items():
        result, done = run(planted, mode="nightly" if title.startswith("flips") else "quick", ladder=[])
        print(f"\n## {title}: {said(result, done)}")
        for row in result.detail["errors"][:8]:
            first = (row.get("samples") or [{}])[0]
            print("  ", row.get("pattern"), row["chunk"], row.get("words"), row.get("class"), first or row)
        print("   spilled", [c["index"] for c in result.detail["chunks"] if c["class"] == "spilled"])


def giving_way() -> None:
    """Start somebody's training while all memory is taken: it must get what it asks for at its first try."""
    host, started, workers = Host(), [], []
    known = frozenset(host.names("/proc"))

    def progress(line) -> None:
        if line["event"] == "begin":
            workers.append(str(line["pid"]))
        elif line["event"] == "pattern" and not started:
            command = [sys.executable, "-c", TRAINER]
            training = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            started.extend([time.monotonic(), training])

    def watch() -> str:
        # As the daemon does, but for the training being our own child here: nobody is our child.
        found = look.newcomers(host, known.union(workers), 0) if workers else []
        return f"{found[0]} wants the GPU" if found else ""

    result, done = run(mode="full", ladder=[], watch=watch, progress=progress)
    gone = time.monotonic() - started[0]
    text, _ = started[1].communicate(timeout=60)
    print(f"\n## giving way: {said(result, done)}")
    print(f"the worker was gone {gone:.2f} s after the training was started (nvidia-smi and 0.3 s included),")
    print(f"{done.leave_seconds:.2f} s after it was told; the training {text.strip().splitlines()[-1]}")


if __name__ == "__main__":
    if sys.argv[1:] == ["way"]:
        giving_way()
        raise SystemExit
    battery()
    clean(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    faults()
    giving_way()
