"""Records the memory of a machine while one workload runs in it; runs inside, prints a trace and its truth.

Output: the lines of a trace (format: tests of the risk engine), then one line with what happened. With
``--to DEVICE`` each sample is written there at once, in a block of its own, for machines that may not live to tell.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

INTERVAL_SECONDS = 0.5
LEAD_IN_SECONDS = 15.0
LEAD_OUT_SECONDS = 20.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
BLOCK_BYTES = 8192  # one sample on a device
TOLERATED_BELOW = 0.22  # of RAM and swap left: a warning is fair there, though nothing came of it

RAM = {
    "total": "MemTotal",
    "available": "MemAvailable",
    "free": "MemFree",
    "cached": "Cached",
    "buffers": "Buffers",
    "dirty": "Dirty",
    "shmem": "Shmem",
    "anon": "AnonPages",
    "slab_reclaimable": "SReclaimable",
    "slab_unreclaimable": "SUnreclaim",
    "committed": "Committed_AS",
}


def pairs(path: str) -> dict[str, int]:
    """Read ``name value`` lines; kB become bytes."""
    found = {}
    for line in Path(path).read_text(encoding="ascii").splitlines():
        name, value, *unit = line.replace(":", " ").split()
        found[name] = int(value) * (1024 if unit else 1)
    return found


def pressure(resource: str) -> dict[str, float]:
    """Read one file of /proc/pressure."""
    found: dict[str, float] = {}
    for line in Path(f"/proc/pressure/{resource}").read_text(encoding="ascii").splitlines():
        kind, *fields = line.split()
        values = dict(field.split("=") for field in fields)
        for window in ("avg10", "avg60"):
            found[f"{kind}_{window}"] = float(values[window])
        found[f"{kind}_total_us"] = int(values["total"])
    return found


def compressed() -> dict[str, int]:
    """Return what zram holds and what that takes, in bytes; nothing where there is no zram."""
    sums: dict[str, int] = {}
    for device in Path("/sys/block").glob("zram*"):
        # Documentation/admin-guide/blockdev/zram.rst: orig_data_size compr_data_size mem_used_total ...
        stored, _, taken, *_ = map(int, (device / "mm_stat").read_text(encoding="ascii").split())
        sums["zram_stored_bytes"] = sums.get("zram_stored_bytes", 0) + stored
        sums["zram_used_bytes"] = sums.get("zram_used_bytes", 0) + taken
    return sums


def biggest(count: int, kernel_threads: set[str]) -> list[dict[str, Any]]:
    """Return the processes with the most RAM and swap.

    ``kernel_threads`` are pids known to hold none; it grows. They are most of an idle machine's processes,
    and reading them twice a second would cost an emulated one a third of its CPU.
    """
    found = []
    for process in Path("/proc").iterdir():
        pid = process.name
        if not pid.isdigit() or pid in kernel_threads:
            continue
        try:
            status = (process / "status").read_text(encoding="utf-8")
            fields = dict(re.findall(r"^(Name|VmRSS|VmSwap):\t *(\S+)", status, re.MULTILINE))
        except OSError:  # it has ended since
            continue
        if "VmRSS" in fields:
            rss, swap = int(fields["VmRSS"]) * 1024, int(fields["VmSwap"]) * 1024
            found.append({"pid": int(pid), "name": fields["Name"], "rss": rss, "swap": swap})
        else:
            kernel_threads.add(pid)
    return sorted(found, key=lambda process: -(process["rss"] + process["swap"]))[:count]


def sample(t: float, kernel_threads: set[str]) -> dict[str, Any]:
    """Read the whole machine once."""
    memory, counters = pairs("/proc/meminfo"), pairs("/proc/vmstat")
    return {
        "t": round(t, 3),
        "ram": {name: memory[field] for name, field in RAM.items()},
        "swap": {
            "total": memory["SwapTotal"],
            "free": memory["SwapFree"],
            "in_bytes_total": counters["pswpin"] * PAGE_BYTES,
            "out_bytes_total": counters["pswpout"] * PAGE_BYTES,
            **compressed(),
        },
        "vm": {
            "major_faults_total": counters["pgmajfault"],
            "oom_kills_total": counters["oom_kill"],
            "alloc_stalls_total": sum(v for name, v in counters.items() if name.startswith("allocstall")),
            "direct_scan_pages_total": counters["pgscan_direct"],
            "steal_pages_total": counters["pgsteal_kswapd"] + counters["pgsteal_direct"],
            "slabs_scanned_total": counters["slabs_scanned"],
            "slab_given_back_total": counters["workingset_nodereclaim"],
        },
        "psi": {resource: pressure(resource) for resource in ("memory", "cpu", "io")},
        "gpus": [],
        "procs": biggest(6, kernel_threads),
    }


def left(row: dict[str, Any]) -> float:
    """Return the share of RAM and swap that is left."""
    ram, swap = row["ram"], row["swap"]
    share: float = (ram["available"] + swap["free"]) / (ram["total"] + swap["total"])
    return share


def judge(rows: list[dict[str, Any]], began: float | None) -> dict[str, Any]:
    """Say what happened; ``began`` is when fatal growth began, if the workload has any."""
    events = []
    for before, after in pairwise(rows):
        kills = after["vm"]["oom_kills_total"] - before["vm"]["oom_kills_total"]
        if kills:
            events.append({"t": after["t"], "resource": "ram", "kind": "oom_kill", "count": kills})
    truth: dict[str, Any] = {
        "events": events,
        "verdict": "oom" if events else "safe",
        "tolerated": not events and min(map(left, rows)) < TOLERATED_BELOW,
    }
    if events:
        roomy = [row["t"] for row in rows if row["t"] < events[0]["t"] and left(row) >= 0.5]
        truth["onset"] = max(began or 0.0, roomy[-1] if roomy else 0.0)
    elif began is not None:
        truth["verdict"] = "unfinished"  # neither an OOM nor safe: the recording ended first
    return truth


def main() -> None:
    """Record until the workload has ended, or for a minute after the first OOM kill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("limit", type=float, help="seconds")
    parser.add_argument("workload", nargs="+", help="command line")
    parser.add_argument("--to", default="", help="block device")
    arguments = parser.parse_args()
    Path("/proc/self/oom_score_adj").write_text("-1000", encoding="ascii")
    ctypes.CDLL(None).mlockall(3)
    device = os.open(arguments.to, os.O_WRONLY | os.O_SYNC) if arguments.to else None
    start, rows, child, finish = time.monotonic(), [], None, arguments.limit
    kernel_threads: set[str] = set()
    workload_start = workload_end = exit_code = None
    while (t := time.monotonic() - start) < finish:
        rows.append(sample(t, kernel_threads))
        if device is not None:
            os.write(device, json.dumps(rows[-1], separators=(",", ":")).encode().ljust(BLOCK_BYTES))
        if child is None and t >= LEAD_IN_SECONDS:
            workload_start = t
            child = subprocess.Popen(["choom", "-n", "0", "--", *arguments.workload], start_new_session=True)
        if child and workload_end is None and child.poll() is not None:
            workload_end, exit_code = t, child.returncode
            finish = min(finish, t + LEAD_OUT_SECONDS)
        if rows[-1]["vm"]["oom_kills_total"]:
            first = next(row["t"] for row in rows if row["vm"]["oom_kills_total"])
            finish = min(finish, first + 60)
        time.sleep(max(0.0, INTERVAL_SECONDS - (time.monotonic() - start) % INTERVAL_SECONDS))
    if child and child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    fatal = Path("/run/fatal")
    began = float(fatal.read_text()) - start if fatal.exists() else None
    host = {
        "kernel": os.uname().release,
        "ram_bytes": rows[0]["ram"]["total"],
        "swap_bytes": rows[0]["swap"]["total"],
        "cpus": os.cpu_count(),
    }
    write = sys.stdout.write
    for line in [{"trace": 1, "interval_s": INTERVAL_SECONDS, "host": host}, *rows]:
        write(json.dumps(line, separators=(",", ":")) + "\n")
    spans = {"workload_start": workload_start, "workload_end": workload_end, "exit": exit_code}
    write(json.dumps({**judge(rows, began), **spans}) + "\n")


if __name__ == "__main__":
    main()
