"""Records real programs with ``wslgpud record``: trainings on a card in turn, loaders and builds beside them.

    python -m tests.traces.record_side_by_side FOLDER --python PYTHON [--only NAME...] [--short]

As root on a machine of 16 cores with cgroups of version 2 and one NVIDIA card that nobody else uses;
PYTHON has torch. Takes nine minutes. One recording runs all the while, twice a second; each program's part of
it is cut out afterwards, with its truth beside it. The programs on the card have 16 GiB and a desktop beside
them; the rest is taken by a ballast, which is taken off total and use, as if the card were smaller. Those
beside are in groups with a limit, and their traces hold nothing but their group. ``--short`` ends each
program after some seconds, to see that it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.traces.on_card import Program
from tests.traces.writing import write_trace
from wslgpud.model import Observation
from wslgpud.risk.trace import read_trace

HERE = Path(__file__).parent
GROUPS = Path("/sys/fs/cgroup")
INTERVAL_SECONDS = 0.5
LEAD_IN_SECONDS, LINGER_SECONDS = 4.0, 4.0
TOLERATED_SHARE = 0.22
PROCESSES = 6
SETTINGS = f"[sampling]\ninterval_seconds = {INTERVAL_SECONDS}\nfastest_seconds = {INTERVAL_SECONDS}\n"

#: name -> what SECONDS means to it (when it is to end badly; 0: it does not), longest time
ON_THE_CARD = {
    "predictions_kept": (85.0, 110.0),
    "serves": (0.0, 45.0),
    "mixed_lengths": (0.0, 60.0),
    "growing_lengths": (75.0, 150.0),
    "validates": (0.0, 58.0),
    "index_doubles": (72.0, 88.0),
}
#: name -> limit of its group in GiB, longest time, command
IN_A_GROUP = {
    "kept_batches": (12, 160.0, "{python} {here}/loader_programs.py kept_batches 0"),
    "deep_prefetch": (5.75, 75.0, "{python} {here}/loader_programs.py deep_prefetch 70"),
    "torch_compile": (1.7, 50.0, "{python} {here}/compile_programs.py 45"),
    "nvcc_six": (5, 90.0, "{python} {here}/build_programs.py nvcc 6 400 {folder}"),
}


@dataclass
class Part:
    """One program's time on the monotonic clock, and when CUDA was out of memory."""

    name: str
    began: float = 0.0
    ended: float = 0.0
    failed: float | None = None


class Recording:
    """``wslgpud record`` while it runs, and the time of its clock on ours."""

    def __init__(self, file):
        self.file = file
        config = file.with_suffix(".toml")
        config.write_text(SETTINGS)
        command = [sys.executable, "-m", "wslgpud", "record", str(file), "--config", str(config)]
        self.child = subprocess.Popen(command)
        self._zero = float("inf")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self):
        """Find when its time began: no line can come before the moment that it tells of."""
        while not self.file.exists():
            time.sleep(0.01)
        with self.file.open() as lines:
            while not self._over.is_set():
                line = lines.readline()
                if line.endswith("\n") and '"t":' in line[:8]:
                    self._zero = min(self._zero, time.monotonic() - float(line[5 : line.index(",")]))
                elif not line:
                    time.sleep(0.003)

    def stop(self):
        """End it; return all that it saw, in seconds of our monotonic clock."""
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(30)
        self._over.set()
        self._thread.join(10)
        return [replace(seen, t=seen.t + self._zero) for seen in read_trace(self.file, on_cut=print)]


def make_group(name, limit):
    group = GROUPS / f"wslgpud-{name}"
    group.mkdir()
    (group / "memory.max").write_text(str(int(limit * 2**30)))
    return group


def remove_group(group):
    (group / "cgroup.kill").write_text("1")
    time.sleep(1.0)
    with contextlib.suppress(OSError):  # an empty group that stays does no harm, a lost recording does
        group.rmdir()


def in_group(group, command, environment):
    line = ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(group), *command]
    return subprocess.Popen(
        line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def kills(group):
    words = (group / "memory.events").read_text().split()
    return int(words[words.index("oom_kill") + 1])


def run_groups(python, groups, parts, short):
    """Run the programs beside, one after another."""
    # A loader pins memory where it sees a card; these have nothing to do with it.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TORCHINDUCTOR_COMPILE_THREADS": "8"}
    for name, group in groups.items():
        _, longest, command = IN_A_GROUP[name]
        time.sleep(LEAD_IN_SECONDS)
        part = Part(name, began=time.monotonic())
        with TemporaryDirectory() as folder:
            words = command.format(python=python, here=HERE, folder=folder).split()
            child = in_group(group, words, {**environment, "TORCHINDUCTOR_CACHE_DIR": folder})
            end = part.began + (8.0 if short else longest)
            while time.monotonic() < end and not kills(group) and child.poll() is None:
                time.sleep(0.2)
            time.sleep(LINGER_SECONDS)
            part.ended = time.monotonic()
            (group / "cgroup.kill").write_text("1")
            child.wait()
        parts.append(part)


def run_on_card(programs, parts, short):
    """Run the programs on the card, one after another."""
    for name, program in programs.items():
        time.sleep(LEAD_IN_SECONDS)
        part = Part(name, began=time.monotonic())
        program.begin()
        end = part.began + (8.0 if short else ON_THE_CARD[name][1])
        while time.monotonic() < end and program.failed_at is None and program.child.poll() is None:
            time.sleep(0.2)
        part.failed = program.failed_at
        time.sleep(LINGER_SECONDS if part.failed is not None else 0.0)
        part.ended = time.monotonic()
        program.end()
        parts.append(part)


def cut(seen, part):
    """Return the part's samples; time begins anew."""
    start = part.began - LEAD_IN_SECONDS
    return [replace(one, t=one.t - start) for one in seen if start <= one.t <= part.ended]


def small_card(one, ballast, ballast_pid):
    """Return a sample as if the card were smaller by the ballast."""
    cards = tuple(
        replace(
            gpu,
            uuid="",
            total_bytes=gpu.total_bytes - ballast,
            used_bytes=gpu.used_bytes - ballast,
            processes=tuple(p for p in gpu.processes if p.pid != ballast_pid),
        )
        for gpu in one.gpus
    )
    few = tuple(replace(p, command="", cgroup="") for p in one.processes[:PROCESSES])
    return Observation(t=one.t, ram=one.ram, swap=one.swap, gpus=cards, processes=few)


def only_group(one, name):
    """Return what a sample tells of one group."""
    path = f"/wslgpud-{name}"
    groups = tuple(replace(g, path=f"/{name}") for g in one.cgroups if g.path == path)
    members = [p for p in one.processes if p.cgroup == path]
    few = tuple(replace(p, command="", cgroup=f"/{name}") for p in members[:PROCESSES])
    return Observation(t=one.t, ram=one.ram, psi=one.psi, cgroups=groups, processes=few)


def card_shares(observations):
    return [
        (o.t, o.gpus[0].used_bytes / (o.gpus[0].total_bytes - (o.gpus[0].reserved_bytes or 0)))
        for o in observations
        if o.gpus
    ]


def group_shares(observations):
    groups = [(o.t, o.cgroups[0]) for o in observations if o.cgroups]
    return [(t, (g.current - (g.inactive_file or 0) - (g.active_file or 0)) / g.limit) for t, g in groups]


def first_kill(observations):
    for o in observations:
        if o.cgroups and o.cgroups[0].oom_kills_total:
            return o.t
    return None


def save(folder, name, observations, shares, event):
    """Write a trace and its truth; ``event`` is (second, resource, kind) of what went wrong, or None."""
    end = event[0] if event else float("inf")
    half = max((t for t, share in shares if t <= end and share <= 0.5), default=0.0)
    highest = max((share for _, share in shares), default=0.0)
    label = {
        "name": name,
        "verdict": "oom" if event else "safe",
        "onset": round(half, 2),
        "tolerated": event is None and highest > 1 - TOLERATED_SHARE,
        "highest": round(highest, 3),
        "events": [{"t": round(event[0], 2), "resource": event[1], "kind": event[2]}] if event else [],
    }
    host = {"recorded": "record_side_by_side.py"}
    write_trace(folder / f"{name}.jsonl.gz", observations, interval_seconds=INTERVAL_SECONDS, host=host)
    (folder / f"{name}.truth.json").write_text(json.dumps(label) + "\n")
    print(label, flush=True)


def record(folder, options):
    """Run everything; return what was seen and the parts of it."""
    wanted = options.only or (*ON_THE_CARD, *IN_A_GROUP)
    groups = {name: make_group(name, limit) for name, (limit, _, _) in IN_A_GROUP.items() if name in wanted}
    on_the_card = {name: seconds for name, (seconds, _) in ON_THE_CARD.items() if name in wanted}
    card_parts, group_parts, programs = [], [], {}
    helpers = []
    try:
        if on_the_card:
            programs = {name: Program(name, seconds=s, python=options.python) for name, s in on_the_card.items()}
            helpers = [Program(name, python=options.python) for name in ("ballast", "desktop")]
            for program in (*programs.values(), *helpers):
                program.wait_for("ready")
            helpers[0].begin()
            helpers[0].wait_for("taken")
        recording = Recording(folder / "all.jsonl")
        time.sleep(10.0)  # the first samples show the ballast alone
        for program in helpers[1:]:
            program.begin()
        beside = threading.Thread(
            target=run_groups, args=(options.python, groups, group_parts, options.short), daemon=True
        )
        beside.start()
        run_on_card(programs, card_parts, options.short)
        beside.join()
        seen = recording.stop()
    finally:
        for program in (*programs.values(), *helpers):
            program.end()
        for group in groups.values():
            remove_group(group)
    return seen, card_parts, group_parts, helpers[0].child.pid if helpers else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", required=True, help="a Python with torch")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", nargs="+", choices=[*ON_THE_CARD, *IN_A_GROUP], metavar="NAME")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    seen, card_parts, group_parts, ballast_pid = record(folder, options)
    parts = [vars(part) for part in (*card_parts, *group_parts)]
    (folder / "parts.json").write_text(json.dumps(parts))
    for part in group_parts:
        observations = [only_group(one, part.name) for one in cut(seen, part)]
        kill = first_kill(observations)
        event = (kill, f"cgroup:/{part.name}", "oom_kill") if kill is not None else None
        save(folder, f"side-{part.name}", observations, group_shares(observations), event)
    if not card_parts:
        return
    ballast = next(one.gpus[0].used_bytes for one in seen if one.gpus)
    for part in card_parts:
        observations = [small_card(one, ballast, ballast_pid) for one in cut(seen, part)]
        event = None
        if part.failed is not None:
            event = (part.failed - part.began + LEAD_IN_SECONDS, "gpu0", "gpu_oom")
        save(folder, f"side-{part.name}", observations, card_shares(observations), event)


if __name__ == "__main__":
    main()
