"""Records who takes a card among programs that share it: what /proc tells of each, and what each really holds.

    python -m tests.traces.record_company FOLDER SECONDS [--python PYTHON]

Needs an NVIDIA card with 100 GiB, and PYTHON with torch. Several companies at once, each of one program that grows and
two to five others, on a card of its own as far as the recording goes (24 GiB, its own programs): their truth names who
grew. A program that starts only when the growth does is among them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.traces.writing import write_trace
from wslgpud.config import Config, Sampling
from wslgpud.host import Host
from wslgpud.model import GpuProcess, GpuSample, Observation, RamState
from wslgpud.sources.processes import ProcessSource

PROGRAMS = Path(__file__).with_name("company_programs.py")
GIB = 1 << 30
CARD_BYTES, DESKTOP_BYTES = 24 * GIB, 500 << 20
OTHERS = ("serves", "trains", "idles", "desktop", "loads_data", "pins", "preprocesses")
GROWERS = (
    "keeps_outputs",
    "caches_keys",
    "loads_models",
    "starts_late",
    "longer_sequences",
    "index",
    "waits_and_takes",
)
INTERVAL_SECONDS, MAX_SECONDS, START_SECONDS = 1.0, 48.0, 20.0
AT_ONCE = 5


def start(python, name, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [python, str(PROGRAMS), name, str(folder / name)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True, env=environment)


def held(folder, name):
    try:
        return int((folder / name).read_text())
    except (OSError, ValueError):
        return 0


def company(number, folder, python):
    chosen = random.Random(number)
    grower = GROWERS[number % len(GROWERS)]
    others = chosen.sample(OTHERS, chosen.randint(2, 5))
    scratch = folder / f"scratch-{number}"
    scratch.mkdir(parents=True)
    source, seen, began = ProcessSource(Host(), Config(sampling=Sampling(processes_max=1000))), [], time.monotonic()
    late = grower == "starts_late"
    programs = {name: start(python, name, scratch) for name in (*others, *([] if late else [grower]))}
    try:
        while (t := time.monotonic() - began) < MAX_SECONDS:
            if late and t > START_SECONDS and grower not in programs:
                programs[grower] = start(python, grower, scratch)
            on_card = {name: held(scratch, name) for name in programs}
            used = DESKTOP_BYTES + sum(on_card.values())
            pids = {child.pid for child in programs.values()}
            processes = tuple(process for process in source.read().processes if process.pid in pids)
            listed = tuple(GpuProcess(programs[name].pid, name, size) for name, size in on_card.items())
            card = GpuSample(0, f"GPU-{number}", "a card", CARD_BYTES, used, CARD_BYTES - used, processes=listed)
            seen.append(Observation(t=t, ram=RamState(64 * GIB, 32 * GIB), gpus=(card,), processes=processes, wsl=True))
            if used > 0.97 * CARD_BYTES:
                break
            time.sleep(max(0.0, INTERVAL_SECONDS - (time.monotonic() - began - t)))
    finally:
        for child in programs.values():
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        for file in scratch.iterdir():
            file.unlink()
        scratch.rmdir()
    name = f"company-{number:03d}-{grower}"
    write_trace(folder / f"{name}.jsonl.gz", seen, interval_seconds=INTERVAL_SECONDS, host={"wsl": True})
    truth = {"name": name, "grew": programs[grower].pid if grower in programs else None, "others": others}
    (folder / f"{name}.truth.json").write_text(json.dumps(truth) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--first", type=int, default=0, help="number of the first company, from which the rest follows")
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    numbers, end, lock = iter(range(given.first, 1000)), time.monotonic() + given.seconds, threading.Lock()

    def work():
        while time.monotonic() < end - MAX_SECONDS - 5:
            with lock:
                number = next(numbers)
            company(number, given.folder, given.python)

    threads = [threading.Thread(target=work) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
