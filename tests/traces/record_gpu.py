"""Records real PyTorch programs that run out of VRAM, or do not.

    python -m tests.traces.record_gpu FOLDER

Needs an NVIDIA card with 100 GiB and torch; takes three minutes. Every scenario is a process of its own that
torch lets have so much that it and its CUDA context fill 8 GiB, and NVML's figure for that process is taken
as the use of a card of 8 GiB: a dozen small cards in one. Writes traces and truths in the format that
``tests.bench.bench_score`` reads.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import pynvml

CARD_BYTES = 8 << 30
CONTEXT_BYTES = 560 << 20
SECONDS, INTERVAL_SECONDS = 170.0, 0.5
TOLERATED_SHARE = 0.22  # climbs to within this of the limit, and stops: a warning is fair

PRELUDE = f"""
import sys, time, torch
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction({CARD_BYTES - CONTEXT_BYTES} / total)
began = time.monotonic()
def now(): return time.monotonic() - began
def sleep_until(t): time.sleep(max(0.0, t - now()))
def take(mib): return torch.empty(int(mib) << 20, dtype=torch.uint8, device="cuda").fill_(1)
def work(seconds):
    a = torch.randn(512, 512, device="cuda")
    end = time.monotonic() + seconds
    while time.monotonic() < end: a = (a @ a).tanh(); torch.cuda.synchronize(); time.sleep(0.02)
kept = []
"""

# Name -> program. Sizes in MiB of 8192; the CUDA context takes about 500 of them.
SCENARIOS = {
    "validation_leak": """
kept.append(take(3000))
while True:
    work(8); outputs = [take(60) for _ in range(10)]; kept += outputs; work(2)
""",
    "optimizer_first_step": """
kept.append(take(2000)); work(20); kept.append(take(3600)); work(140)
""",
    "empty_cache_saw": """
while now() < 165:
    parts = []
    for _ in range(20): parts.append(take(250)); work(0.4)
    del parts; torch.cuda.empty_cache(); work(2)
""",
    "saw_with_leak": """
while True:
    parts = []
    for _ in range(12): parts.append(take(250)); work(0.4)
    del parts; kept.append(take(400)); torch.cuda.empty_cache(); work(2)
""",
    "vllm_prealloc": """
work(15); kept.append(take(6700)); work(145)
""",
    "longer_conversations": """
longest = 3000
while True:
    parts, left = [], longest
    while left > 0: parts.append(take(120)); left -= 120; work(0.35)
    del parts; torch.cuda.empty_cache(); work(1); longest += 800
""",
    "batches_that_fit": """
for size in (600, 1200, 2000, 3000, 4200): part = take(size); work(12); del part; torch.cuda.empty_cache()
kept.append(take(4600)); work(90)
""",
    "slow_leak": """
kept.append(take(1500))
while True: kept.append(take(25)); work(0.5)
""",
    "warming_cache": """
import random
rng = random.Random(1)
while now() < 165:
    parts = [take(rng.randint(100, 900)) for _ in range(8)]; work(0.5); del parts
""",
    "second_phase": """
kept.append(take(3800)); work(60); kept.append(take(2300)); work(100)
""",
    "fast_burst": """
kept.append(take(1800)); work(40)
while True: kept.append(take(128)); work(0.25)
""",
    "dataset_on_the_card": """
while now() < 25: kept.append(take(256)); work(1.2)
work(135)
""",
}


def start(name: str) -> subprocess.Popen[str]:
    program = (
        PRELUDE + "try:\n" + "".join(f"    {line}\n" for line in SCENARIOS[name].strip().splitlines())
    ) + "except torch.cuda.OutOfMemoryError:\n    print(time.monotonic(), flush=True)\n"
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def used_by_process(handle: object) -> dict[int, int]:
    return {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.usedGpuMemory}


def truth(name: str, rows: list[tuple[float, int]], failed_at: float | None) -> dict[str, object]:
    """Label a recording: onset is the last moment before the end with half of the memory left."""
    before = [(t, used) for t, used in rows if failed_at is None or t <= failed_at]
    least_left = min(1 - used / CARD_BYTES for _, used in before)
    half_full = [t for t, used in before if used <= CARD_BYTES / 2]
    return {
        "name": name,
        "scenario": name.removeprefix("h200-").removesuffix("-1"),
        "verdict": "safe" if failed_at is None else "oom",
        "onset": round(half_full[-1] if half_full else 0.0, 2),
        "tolerated": failed_at is None and least_left < TOLERATED_SHARE,
        "events": []
        if failed_at is None
        else [{"t": round(failed_at, 2), "resource": "gpu0", "kind": "gpu_oom", "count": 1}],
    }


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    programs = {name: start(name) for name in SCENARIOS}
    series: dict[str, list[tuple[float, int]]] = {name: [] for name in SCENARIOS}
    began = time.monotonic()
    while (t := time.monotonic() - began) < SECONDS:
        used = used_by_process(handle)
        for name, program in programs.items():
            if program.poll() is None or program.pid in used:
                series[name].append((t, used.get(program.pid, 0)))
        time.sleep(max(0.0, INTERVAL_SECONDS - (time.monotonic() - began - t)))
    for name, program in programs.items():
        program.terminate()
        said = program.communicate()[0].split()
        failed_at = float(said[0]) - began if said else None
        write(folder, f"h200-{name}-1", program.pid, series[name], failed_at)


def write(folder: Path, name: str, pid: int, rows: list[tuple[float, int]], failed_at: float | None) -> None:
    with gzip.open(folder / f"{name}.jsonl.gz", "wt") as file:
        print(json.dumps({"trace": 1, "interval_s": INTERVAL_SECONDS, "host": {}}), file=file)
        for t, used in rows:
            shown = min(used, CARD_BYTES)
            card = {
                "index": 0,
                "name": "8 GiB of an NVIDIA H200",
                "total": CARD_BYTES,
                "used": shown,
                "free": CARD_BYTES - shown,
                "procs": [{"pid": pid, "name": "python3", "used": shown}],
            }
            print(json.dumps({"t": round(t, 2), "gpus": [card]}, separators=(",", ":")), file=file)
    label = truth(name, rows, failed_at)
    (folder / f"{name}.truth.json").write_text(json.dumps(label, indent=1) + "\n")
    print(label)


if __name__ == "__main__":
    main()
