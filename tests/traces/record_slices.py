"""Records the programs of ``library_programs.py`` and ``card_programs.py``, eight at a time on a card of 140 GiB.

    python -m tests.traces.record_slices FOLDER [NAME]...

Each may have 16 GiB, and NVML's figure for its process is taken as the use of a card of 16 GiB: many small cards
in one. Needs torch, torch-geometric, torchaudio, torchvision, timm, transformers, gpytorch, CuPy and JAX; some
three minutes for eight programs. Traces and truths come out as ``tests.bench.bench_score`` reads them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pynvml

from tests.traces.card_programs import PROGRAMS
from tests.traces.labels import label
from tests.traces.library_programs import CARD_BYTES
from tests.traces.writing import write_trace
from wslgpud.model import GpuProcess, GpuSample, Observation

SECONDS, INTERVAL_SECONDS = 150.0, 0.5
#: libraries come from a cold disk, many at a time
PATIENCE_SECONDS = 120.0


class Slice:
    """A program on its part of a card, and what it used."""

    def __init__(self, name, card):
        self.name, self.rows, self.failed_at = name, [], None
        command = [sys.executable, "-m", "tests.traces.card_programs", name]
        environ = os.environ | {"CUDA_VISIBLE_DEVICES": str(card), "OMP_NUM_THREADS": "2"}
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environ
        )
        self._ready = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.child.stdout:
            word, *rest = line.split() or [""]
            if word == "ready":
                self._ready.set()
            elif word == "failed":
                self.failed_at = float(rest[0])

    def begin(self):
        if self._ready.wait(PATIENCE_SECONDS):
            self.child.stdin.write("go\n")
            self.child.stdin.flush()

    def end(self):
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def save(self, folder, began):
        """Write trace and truth; a program that ended for another reason is left out."""
        failed = None if self.failed_at is None else round(self.failed_at - began, 2)
        if failed is None and self.child.returncode != -signal.SIGKILL:
            print(f"{self.name}: ended with {self.child.returncode}", flush=True)
            return
        name, pid = f"slice-{self.name}", self.child.pid
        rows = [(t, min(used, CARD_BYTES)) for t, used in self.rows if failed is None or t <= failed + 5]
        seen = [Observation(t=t, gpus=(_card(pid, used),)) for t, used in rows]
        host = {"recorded": "record_slices.py"}
        write_trace(folder / f"{name}.jsonl.gz", seen, interval_seconds=INTERVAL_SECONDS, host=host)
        events = [] if failed is None else [{"t": failed, "resource": "gpu0", "kind": "gpu_oom"}]
        truth = label(name, seen, events)
        (folder / f"{name}.truth.json").write_text(json.dumps(truth) + "\n")
        print(truth, flush=True)


def _card(pid, used):
    processes = (GpuProcess(pid, "python3", used),) if used else ()
    name = "16 GiB of an NVIDIA H200"
    return GpuSample(0, "GPU-slice", name, CARD_BYTES, used, CARD_BYTES - used, 0, None, processes=processes)


def record(folder, slices, handles):
    """Let programs run side by side, and write a recording of each."""
    for one in slices:
        one.begin()
    began = time.monotonic()
    while (t := time.monotonic() - began) < SECONDS and any(one.child.poll() is None for one in slices):
        found = [p for handle in handles for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        used = {process.pid: process.usedGpuMemory or 0 for process in found}
        for one in slices:
            one.rows.append((round(t, 2), used.get(one.child.pid, 0)))
        time.sleep(max(0.0, INTERVAL_SECONDS - (time.monotonic() - began - t)))
    for one in slices:
        one.end()
        one.save(folder, began)


def main():
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(PROGRAMS)
    folder.mkdir(parents=True, exist_ok=True)
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    places = [
        card
        for card, handle in enumerate(handles)
        for _ in range(int(0.95 * pynvml.nvmlDeviceGetMemoryInfo(handle).total // CARD_BYTES))
    ]
    for first in range(0, len(names), len(places)):
        some = names[first : first + len(places)]
        record(folder, [Slice(name, card) for name, card in zip(some, places, strict=False)], handles)


if __name__ == "__main__":
    main()
