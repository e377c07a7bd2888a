"""Time from the sample to the last process stopped, for a leak and for twenty busy workers.

    python -m tests.bench.bench_pause [--rounds 10] [--others 0] [--nice 0]

Samples, scans, watchdog, the list on disk and jobs are real; only the forecast that triggers the pause is made up. As
root, ``--nice -10`` gives the brake the priority that it has as a service.
"""

from __future__ import annotations

import argparse
import logging
import os
import pwd
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from wslgpud.brake.brake import Brake
from wslgpud.brake.watchdog import Watchdog
from wslgpud.config import BrakeSettings, Config
from wslgpud.host import Host
from wslgpud.model import Forecast, Level
from wslgpud.sampling.assessor import Assessor

MIB = 1 << 20
#: the made-up resource: more than half of it is left at first, so that the shortage begins with the job
TAKEN_MIB, CAPACITY_MIB, LEFT_MIB = 200, 320, 210
#: forks workers that each allocate their part of the memory on command, and are busy from then on
JOB = f"""
import os, sys
number, before = int(sys.argv[1]), os.nice(int(sys.argv[2]))
pipes = [os.pipe() for _ in range(number)]
report, reported = os.pipe()
for read, write in pipes:
    if os.fork() == 0:
        os.read(read, 1)
        kept = bytearray(b"x") * ({TAKEN_MIB * MIB} // number)
        os.write(reported, b"x")
        while True: pass
print("ready", flush=True)
sys.stdin.readline()
for _, write in pipes: os.write(write, b"x")
for _ in pipes: os.read(report, 1)
print("has it", flush=True)
sys.stdin.readline()
"""
JOBS = {"leak": 1, "workers": 20}


def forecast(level: Level, left_mib: int) -> Forecast:
    return Forecast(
        "ram", level, left_mib * MIB, CAPACITY_MIB * MIB, eta_seconds=5.0, cause="growth", window_seconds=1.0
    )


def pause(workers: int, folder: Path) -> tuple[float, float, int]:
    """Let a job grow until it is paused; return (seconds for the sample, seconds to the stop, processes paused)."""
    host, name = Host(), pwd.getpwuid(os.geteuid()).pw_name
    priority = str(-os.getpriority(os.PRIO_PROCESS, 0))
    with subprocess.Popen(
        [sys.executable, "-c", JOB, str(workers), priority],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        brake = Brake(BrakeSettings(on=True, users=(name,)), host, folder, Watchdog())
        assessor = Assessor(Config(), host)
        try:
            brake.tick(assessor.tick()[0], [forecast(Level.WARNING, LEFT_MIB)], ())
            job.stdin.write("\n")
            job.stdin.flush()
            assert job.stdout.readline() == "has it\n"
            began = time.monotonic()
            state, _ = assessor.tick()
            sampled = time.monotonic() - began
            (row,) = brake.tick(state, [forecast(Level.CRITICAL, LEFT_MIB - TAKEN_MIB)], ())
            (took,) = [r.value for r in brake.readings() if r.spec.name == "brake_pause_seconds"]
            return sampled, float(took), int(str(row.facts["count"]))
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            assessor.close()
            brake.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--others", type=int, default=0, help="additional sleeping processes")
    parser.add_argument("--nice", type=int, default=0)
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    os.nice(options.nice)
    others = [subprocess.Popen(["sleep", "600"]) for _ in range(options.others)]
    try:
        for name, workers in JOBS.items():
            with tempfile.TemporaryDirectory() as folder:
                found = [pause(workers, Path(folder)) for _ in range(options.rounds)]
            took = sorted(1e3 * seconds for _, seconds, _ in found)
            sample = statistics.median(1e3 * seconds for seconds, _, _ in found)
            held = max(count for _, _, count in found)
            print(
                f"{name}: {statistics.median(took):.1f} ms from sample to pause (median of {len(took)}),"
                f" {took[-1]:.1f} at most, of which the sample takes {sample:.1f}; processes paused: {held}"
            )
    finally:
        for one in others:
            one.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
