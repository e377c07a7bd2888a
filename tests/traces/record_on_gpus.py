"""Records real builds, data loaders and trainings on a machine with NVIDIA cards that nobody else uses.

    python -m tests.traces.record_on_gpus FOLDER

Needs torch, nvidia-ml-py, and for the build nvcc. One card takes about 145 s: a build of CUDA files and a
training's data loader all the while; on the card first trainings that have all of it, then, beside a
desktop, with a ballast that leaves 16 GiB. Two cards take about 85 s: one leaks while the other is calm (both
with a ballast), then both fill up without one. Traces and truths come out as ``tests.bench.bench_score`` reads
them. A ballast is taken off total and use, as if the card were smaller.
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
from tempfile import TemporaryDirectory

import pynvml

from tests.traces.on_card import Program
from tests.traces.writing import write_trace
from wslgpud.model import CgroupState, GpuProcess, GpuSample, Observation, ProcessSample

HERE = Path(__file__).parent
INTERVAL_SECONDS = 0.5
TOLERATED_SHARE = 0.22
FITS_SHARE = 0.72
"""Programs that fit are given a limit of which they take so much at most."""


class Cards:
    """What NVML says, less the ballast."""

    def __init__(self):
        pynvml.nvmlInit()
        self.handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        self.ballast = [0 for _ in self.handles]
        self._ballast_pids = set()

    def _memory(self, index):
        return pynvml.nvmlDeviceGetMemoryInfo(self.handles[index], version=pynvml.nvmlMemory_v2)

    def take_ballast(self, programs):
        before = [self._memory(i).used for i in range(len(self.handles))]
        for program in programs:
            program.begin()
        for index, program in enumerate(programs):
            program.wait_for("taken")
            self.ballast[index] = self._memory(index).used - before[index]
            self._ballast_pids.add(program.child.pid)

    def drop_ballast(self):
        self.ballast = [0 for _ in self.handles]

    def look(self, index):
        handle, memory, ballast = self.handles[index], self._memory(index), self.ballast[index]
        processes = tuple(
            GpuProcess(p.pid, "python3", p.usedGpuMemory)
            for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            if p.pid not in self._ballast_pids
        )
        return GpuSample(
            index,
            pynvml.nvmlDeviceGetUUID(handle),
            pynvml.nvmlDeviceGetName(handle),
            memory.total - ballast,
            memory.used - ballast,
            memory.free,
            memory.reserved,
            pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            processes=processes,
        )


def children(of):
    """Return the pids of a process and all that descend from it."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has just ended
        parents[int(folder.name)] = int(words[1])
    found = {of}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def resident(pid):
    """Return the bytes of a process's own memory; what is shared counts in part."""
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    text = rollup.read_text() if rollup.exists() else Path(f"/proc/{pid}/status").read_text()
    wanted = ("Pss_Anon:", "Pss_Shmem:") if rollup.exists() else ("RssAnon:", "RssShmem:")
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(wanted))


def crowd(of):
    found = []
    for pid in children(of):
        try:
            found.append(ProcessSample(pid, 0, Path(f"/proc/{pid}/comm").read_text().strip(), resident(pid), 0))
        except OSError:
            continue
    return sorted(found, key=lambda p: -p.rss_bytes)


class Recorder(threading.Thread):
    """Samples what ``look`` returns twice a second; each recording has a thread of its own."""

    def __init__(self, look):
        super().__init__(daemon=True)
        self._look, self._over = look, threading.Event()
        self.began, self.seen = time.monotonic(), []
        self.start()

    def run(self):
        while not self._over.is_set():
            began = time.monotonic()
            self.seen.append((began - self.began, self._look()))
            self._over.wait(max(0.0, INTERVAL_SECONDS - (time.monotonic() - began)))

    def stop(self):
        self._over.set()
        self.join(10.0)
        return self.seen


def onset(shares, end):
    """Return the last moment before the end at which half was left."""
    return round(max((t for t, share in shares if t <= end and share <= 0.5), default=0.0), 2)


def save(folder, name, observations, shares, events):
    """Write a trace and its truth; ``shares`` are (second, used share) of what fills up first."""
    end = min((event["t"] for event in events), default=float("inf"))
    label = {
        "name": name,
        "verdict": "oom" if events else "safe",
        "onset": onset(shares, end),
        "tolerated": not events and max(share for _, share in shares) > 1 - TOLERATED_SHARE,
        "events": events,
    }
    host = {"recorded": "record_on_gpus.py"}
    write_trace(folder / f"{name}.jsonl.gz", observations, interval_seconds=INTERVAL_SECONDS, host=host)
    (folder / f"{name}.truth.json").write_text(json.dumps(label) + "\n")
    print(label, flush=True)


def save_crowd(folder, name, seen):
    used = [(t, sum(p.rss_bytes for p in processes), processes) for t, processes in seen]
    limit = int(max(size for _, size, _ in used) / FITS_SHARE)
    observations = [
        Observation(t=t, cgroups=(CgroupState(f"/{name}", limit, size),), processes=tuple(processes[:6]))
        for t, size, processes in used
    ]
    save(folder, name, observations, [(t, size / limit) for t, size, _ in used], [])


def save_cards(folder, name, recorder, programs):
    """Write one recording of all cards; a program's failure is an event of its card."""
    seen = recorder.stop()
    shares = [
        [(t, cards[i].used_bytes / (cards[i].total_bytes - cards[i].reserved_bytes)) for t, cards in seen]
        for i in range(len(seen[0][1]))
    ]
    failed = sorted((p.failed_at - recorder.began, card) for card, p in programs if p.failed_at is not None)
    events = [
        {"t": round(t, 2), "resource": f"gpu{card}", "kind": "gpu_oom", "onset": onset(shares[card], t)}
        for t, card in failed
    ]
    first = failed[0][1] if failed else max(range(len(shares)), key=lambda i: max(s for _, s in shares[i]))
    observations = [Observation(t=t, gpus=tuple(cards)) for t, cards in seen]
    save(folder, name, observations, shares[first], events)


def build(folder):
    """Compile more CUDA files than there is time for, as many at once as there are processors but two."""
    jobs = max(2, (os.cpu_count() or 4) - 2)
    command = [sys.executable, str(HERE / "build_programs.py"), "nvcc", str(jobs), "400", folder]
    return subprocess.Popen(["nice", *command], start_new_session=True)


def load():
    command = [sys.executable, str(HERE / "loader_programs.py"), "packed", "600"]
    return subprocess.Popen(command, start_new_session=True)


def run_on_cards(folder, name, cards, turns, seconds):
    """Let programs take turns: (card, program, second to begin at, second to end at); record all cards."""
    recorder = Recorder(lambda: [cards.look(i) for i in range(len(cards.handles))])
    waiting, running = sorted(turns, key=lambda turn: turn[2]), []
    while (now := time.monotonic() - recorder.began) < seconds:
        while waiting and waiting[0][2] <= now:
            running.append(waiting.pop(0))
            running[-1][1].begin()
        for _, program, _, end in running:
            if now > end:
                program.end()
        failed = [p.failed_at for _, p, _, end in turns if end > seconds]
        if all(failed) and failed and time.monotonic() - max(failed) > 3.0:
            break
        time.sleep(0.1)
    save_cards(folder, name, recorder, [(card, program) for card, program, _, _ in turns])
    for _, program, _, _ in turns:
        program.end()


def one_card(folder, cards):
    first = [(0, Program("variable_lengths", 0), 3.0, 22.0), (0, Program("leak", 0, 38.0), 24.0, 999.0)]
    second = [(0, Program("variable_lengths", 0), 3.0, 20.0), (0, Program("late_leak", 0, 36.0), 22.0, 999.0)]
    desktop, ballast = Program("desktop", 0), Program("ballast", 0)
    everybody = [p for _, p, _, _ in first + second] + [desktop, ballast]
    sources = TemporaryDirectory()
    started = {"nvcc_build": build(sources.name), "data_loader": load()}
    crowds = {name: Recorder(lambda pid=child.pid: crowd(pid)) for name, child in started.items()}
    try:
        for program in everybody:
            program.wait_for("ready")
        run_on_cards(folder, "h200-whole_card", cards, first, 66.0)
        cards.take_ballast([ballast])
        desktop.begin()
        run_on_cards(folder, "h200-ballast", cards, second, 62.0)
        for name, recorder in crowds.items():
            save_crowd(folder, f"h200-{name}", recorder.stop())
    finally:
        for program in everybody:
            program.end()
        for child in started.values():
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        sources.cleanup()


def two_cards(folder, cards):
    first = [(0, Program("leak", 0, 33.0), 2.0, 999.0), (1, Program("calm", 1), 2.0, 39.0)]
    second = [(0, Program("leak", 0, 29.0), 2.0, 999.0), (1, Program("late_leak", 1, 33.0), 2.0, 999.0)]
    ballasts = [Program("ballast", card) for card in (0, 1)]
    everybody = [p for _, p, _, _ in first + second] + ballasts
    try:
        for program in everybody:
            program.wait_for("ready")
        cards.take_ballast(ballasts)
        run_on_cards(folder, "h200-one_of_two", cards, first, 40.0)
        for program in ballasts:
            program.end()
        cards.drop_ballast()
        run_on_cards(folder, "h200-both_of_two", cards, second, 38.0)
    finally:
        for program in everybody:
            program.end()


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    cards = Cards()
    (one_card if len(cards.handles) == 1 else two_cards)(folder, cards)


if __name__ == "__main__":
    main()
