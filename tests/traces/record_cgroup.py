"""Record a real command under a memory limit: cgroup v1 or v2, as root; a trace with its truth beside it.

    python -m tests.traces.record_cgroup [--interval SECONDS] [--group-only] OUT.jsonl.gz LIMIT_MIB COMMAND...

Used by hand to make the ``real-*`` and ``group-*`` recordings of this folder. The group is removed afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from pathlib import Path

from tests.traces.labels import label
from tests.traces.writing import write_trace
from wslgpud.model import CgroupState, Observation, ProcessSample, RamState

ROOT = Path("/sys/fs/cgroup")
V1 = (ROOT / "memory").is_dir()


def make_group(limit):
    group = (ROOT / "memory" if V1 else ROOT) / f"wslgpud-record-{os.getpid()}"
    group.mkdir()
    (group / ("memory.limit_in_bytes" if V1 else "memory.max")).write_text(str(limit))
    return group


def fields(path):
    return dict(words[:2] for line in path.read_text().splitlines() if len(words := line.split()) >= 2)


def state(group, limit):
    stat = fields(group / "memory.stat")
    usage = group / ("memory.usage_in_bytes" if V1 else "memory.current")
    kills = fields(group / ("memory.oom_control" if V1 else "memory.events")).get("oom_kill", "0")
    return CgroupState(
        "/record",
        limit,
        int(usage.read_text()),
        inactive_file=int(stat.get("inactive_file", 0)),
        active_file=int(stat.get("active_file", 0)),
        oom_kills_total=int(kills),
    )


def meminfo():
    info = {line.split(":")[0]: int(line.split()[1]) << 10 for line in Path("/proc/meminfo").read_text().splitlines()}
    return RamState(info["MemTotal"], info["MemAvailable"], info["MemFree"], shmem=info["Shmem"])


def processes(group):
    found = []
    for pid in (group / "cgroup.procs").read_text().split():
        try:
            status = fields(Path(f"/proc/{pid}/status"))
            start = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
            rss = int(status.get("VmRSS:", "0")) << 10
            found.append(ProcessSample(int(pid), start, status["Name:"], rss, 0, cgroup="/record"))
        except (OSError, KeyError):
            continue  # it ended between the list and the look
    return tuple(sorted(found, key=lambda p: -p.rss_bytes)[:6])


def record(limit, command, interval, linger=10.0, *, group_only=False):
    group = make_group(limit)
    joined = ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(group), *command]
    observations, started, child, ended = [], time.monotonic(), None, None
    try:
        while ended is None or time.monotonic() - ended < linger:
            now = time.monotonic() - started
            if child is None and now > linger:
                child = subprocess.Popen(joined)
            if child is not None and ended is None and child.poll() is not None:
                ended = time.monotonic()
            ram = None if group_only else meminfo()
            observations.append(Observation(t=now, ram=ram, cgroups=(state(group, limit),), processes=processes(group)))
            time.sleep(max(0.0, interval - (time.monotonic() - started - now)))
    finally:
        for _ in range(100):
            for pid in (group / "cgroup.procs").read_text().split():
                os.kill(int(pid), 9)
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)
    return observations


def kill(observations):
    """Return the first kill in the group as an event, if there was one."""
    before = observations[0].cgroups[0].oom_kills_total
    killed = (o.t for o in observations if o.cgroups[0].oom_kills_total > before)
    return [{"t": round(t, 3), "resource": "cgroup:/record", "kind": "oom_kill"} for t in killed][:1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interval", type=float, default=0.5)
    parser.add_argument("--group-only", action="store_true", help="leave out the machine's RAM, which others use")
    parser.add_argument("out", type=Path)
    parser.add_argument("limit_mib", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    out, limit, command = given.out, given.limit_mib << 20, given.command
    observations = record(limit, command, given.interval, group_only=given.group_only)
    host = {
        "ram_bytes": meminfo().total,
        "cgroup": "v1" if V1 else "v2",
        "command": " ".join(Path(word).name for word in command),
    }
    write_trace(out, observations, interval_seconds=given.interval, host=host)
    name = out.name.split(".")[0]
    told = label(name, observations, kill(observations))
    out.with_name(f"{name}.truth.json").write_text(json.dumps(told) + "\n")
    print(told)


if __name__ == "__main__":
    main()
