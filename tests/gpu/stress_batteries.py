"""Batteries of the stress worker one after another in one process: sound memory, then planted faults.

    python -m tests.gpu.stress_batteries OUT [--seconds 90] [--small]

Needs torch; ``--small`` runs on a CPU, to see that it works. Prints a line for each battery and writes
``batteries.json``: what was planted, what was found where, and how it was classed.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import threading
import time
from pathlib import Path

import torch

from tests.bench.stress_rivals import FAULTS, RIVALS, Card, table
from tests.stress.faulty_worker import Faulty
from wslgpud.config import Stress
from wslgpud.model import GpuSample
from wslgpud.stress.result import Frame, WorkerOutput, digest
from wslgpud.stress.stress_run import job_of
from wslgpud.stress.worker.card import Leave, WorkerJob
from wslgpud.stress.worker.phases import Worker

say = functools.partial(print, flush=True)
MIB, GIB = 1 << 20, 1 << 30
CLEAN = 20
SMALL = {
    "device": "cpu",
    "cpu_bytes": 130 * MIB,
    "reserve": 4 * MIB,
    "chunk": 8 * MIB,
    "scratch": 2 * MIB,
    "retention_seconds": 0.01,
    "slow_ratio": 0.0,
    "ladder": (),
}


def sample(small):
    if small:
        return GpuSample(0, "GPU-cpu", "a CPU", 128 * MIB, 0, 128 * MIB)
    free, total = torch.cuda.mem_get_info()
    return GpuSample(0, "GPU-0", torch.cuda.get_device_name(0), total, total - free, free)


def battery(small, faults=None, mode="quick", **changes):
    """Run one battery; return its result, its lines and its seconds."""
    before, lines = sample(small), []
    job = job_of(before, Stress(), mode, wsl=False) | {"ladder": ()} | (SMALL if small else {}) | changes
    one = Faulty(WorkerJob(**job), lambda event, **facts: lines.append({"event": event, **facts}), threading.Event())
    one.faults = json.loads(json.dumps(faults or {}))
    start, end = time.perf_counter(), {"event": "end", "outcome": "done", "why": ""}
    try:
        one.run()
    except Leave as leave:
        end = {"event": "end", "outcome": "left", "why": str(leave), "facts": leave.facts}
    one.let_go()
    del one
    gc.collect()
    seconds = time.perf_counter() - start
    result = digest(WorkerOutput([*lines, end], seconds=seconds), Frame(time.time(), before, {}))
    return result, lines, seconds


def planted(chunks, words):
    """Return title -> (faults, mode, changes): what is planted in a card of so many chunks."""
    middle, late = chunks // 2, chunks - 2
    flips = [
        ["solid", 3, 0, 1],
        ["solid", late, words - 1, 1 << 63],
        ["checkerboard", middle, 77, 1 << 31],
        ["walking", 2, 1, 4],
        ["address", middle + 1, words - 1, 1 << 63],
        ["address", 0, 0, 1],
        ["random", 0, 7, 6],
        ["modulo", 1, 12345, 1 << 17],
        ["retention", late - 1, 5, 1 << 40],
    ]
    found = {
        "flips, first and last words too": ({"flips": flips}, "nightly", {"offsets": 1}),
        "a flip in the soak": ({"flips": [["soak", 0, words - 1, 2]]}, "full", {"passes": (), "soak_seconds": 1.0}),
        "stuck bit": ({"stuck": [[middle, 12345, 256]]}, "quick", {}),
        "stuck bits in the first and last words": ({"stuck": [[0, 0, 1], [late, words - 1, 1 << 63]]}, "quick", {}),
        "aliased chunks": ({"alias": {str(late): 2}}, "quick", {}),
        "swapped chunks": ({"swap": [["address", 1, late]]}, "quick", {}),
    }
    pinned = [4, middle, middle + 3, late]
    for count in range(5):
        found[f"{count} chunks behind PCIe"] = ({"pinned": sorted(pinned[:count])}, "quick", {"passes": ("solid",)})
    return found


def told(faults, result, lines):
    """Return whether all that was planted was found, and what was said of it."""
    bad = [line for line in lines if line["event"] == "bad"]
    rows = [
        {
            "pattern": row["pattern"],
            "chunk": row["chunk"],
            "words": row["words"],
            "class": row["class"],
            "first": (row["samples"] or [{}])[0],
        }
        for row in result.detail["errors"]
        if "class" in row
    ]
    places = {
        (line["pattern"], line["chunk"], one["word"]): int(one["expected"], 16) ^ int(one["got"], 16)
        for line in bad
        for one in line["samples"]
    }
    spilled = [row["index"] for row in result.detail["chunks"] if row["class"] == "spilled"]
    classes = {row["class"] for row in rows}
    right = spilled == faults.get("pinned", [])
    for pattern, chunk, word, mask in faults.get("flips", ()):
        right &= pattern == "soak" or places.get((pattern, chunk, word)) == mask
    if "flips" in faults:
        right &= len(bad) == len(faults["flips"]) and classes == {"cell"}
    for chunk, word, mask in faults.get("stuck", ()):
        right &= any(at[1:] == (chunk, word) and bits == mask for at, bits in places.items())
        right &= classes == {"stuck"}
    if "alias" in faults or "swap" in faults:
        homes = {chunk for row in lines if row["event"] == "located" for chunk in (row["chunk"], row["belongs"][0][0])}
        wanted = {int(n) for pair in faults.get("alias", {}).items() for n in pair}
        wanted |= {n for _, *pair in faults.get("swap", ()) for n in pair}
        seen = homes | {row["chunk"] for row in rows}
        right &= "address" in classes and wanted <= seen
    return bool(right), {"errors": rows[:12], "spilled": spilled, "classes": sorted(classes)}


def rivals(small, out):
    """Let the restated checks of others look at the same faults."""
    size = {} if small else {"device": "cuda", "words": GIB // 8, "chunks": 7, "wrap": 4 * GIB // 8}

    def ours(card):
        lines = []
        job = WorkerJob(
            device=size.get("device", "cpu"),
            slow_ratio=0.0,
            retention_seconds=0.0,
            passes=("solid", "checkerboard", "address"),
        )
        one = Worker(job, lambda event, **_: lines.append(event), threading.Event())
        one.look = lambda *_: None
        one.chunks, one.written = card.chunks, lambda _: card.settle()
        one.patterns()
        return "bad" in lines

    found = {}
    for fault in FAULTS:
        found[fault] = {}
        for name, check in ({"wslgpud": ours} | RIVALS).items():
            card = Card(fault, **size)
            found[fault][name] = check(card)
            del card
            gc.collect()
            if not small:
                torch.cuda.empty_cache()
    text = table(found)
    (out / "rivals.md").write_text(text + "\n")
    say(text)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    small, out = options.small, options.out
    end = time.monotonic() + options.seconds
    document = {"clean": [], "planted": {}, "unplanted": []}

    def note(title, result, seconds, **more):
        said = {
            "verdict": result.verdict,
            "reason": str(result.reason),
            "findings": [str(f.text) for f in result.findings],
            "seconds": round(seconds, 3),
            "values": dict(result.values),
            **more,
        }
        say(f"{title}: {result.verdict} {result.reason} {said['findings']} {seconds:.1f} s")
        return said

    def keep():
        (out / "batteries.json").write_text(json.dumps(document, indent=1))

    chunks = []
    while len(document["clean"]) < CLEAN and time.monotonic() < end - 0.4 * options.seconds:
        result, lines, seconds = battery(small)
        chunks = [line["bytes"] for line in lines if line["event"] == "chunk"]
        document["begin"] = next(line for line in lines if line["event"] == "begin")
        classes = [row["class"] for row in result.detail["chunks"]]
        counts = {name: classes.count(name) for name in sorted(set(classes))}
        title = f"clean {len(document['clean']) + 1}"
        document["clean"].append(note(title, result, seconds, classes=counts))
        keep()
    clean = [run["verdict"] for run in document["clean"]]
    say(f"{clean.count('passed')} of {len(clean)} clean runs without a false error")
    for title, (faults, mode, changes) in planted(len(chunks), chunks[0] // 8).items():
        if small and "pinned" in faults:
            continue
        if time.monotonic() > end - 5:
            document["unplanted"].append(title)
            continue
        try:
            result, lines, seconds = battery(small, faults, mode, **changes)
            right, said = told(faults, result, lines)
        except Exception as error:
            document["planted"][title] = {"right": None, "error": f"{type(error).__name__}: {error}"}
            say(f"{title}: {error!r}")
        else:
            document["planted"][title] = note(title, result, seconds, planted=faults, right=right, **said)
            say("   all found, in the right place, rightly classed" if right else "   NOT ALL RIGHT")
        keep()
    if time.monotonic() > end - 3:
        document["unplanted"].append("rivals")
        keep()
        return
    try:
        document["rivals"] = rivals(small, out)
    except Exception as error:
        document["rivals"] = {"error": repr(error)}
        say(f"rivals: {error!r}")
    keep()


if __name__ == "__main__":
    main()
