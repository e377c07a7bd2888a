"""Duration of commands, and of ``wslgpud run`` until it answers, in milliseconds.

    python -m tests.bench.bench_start                                    # this version
    python -m tests.bench.bench_start --beside OTHER/bin/wslgpud         # and another, alternating

CPU time (user and system) hardly depends on other load on the machine; wall time is what users wait. The first row is
the floor: the interpreter alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support.daemons import PATIENCE_SECONDS, clean_environment
from tests.support.servers import free_port

OURS = Path(sys.executable).with_name("wslgpud")
#: interval for polling whether the daemon answers; polling uses the other CPU
POLL_SECONDS = 0.002


class Took(NamedTuple):
    """CPU and wall time in seconds."""

    cpu: float
    wall: float


def environment(home: Path, **settings: str) -> dict[str, str]:
    """Return an environment without configuration, in which bytecode is cached as in an installation."""
    usual = {k: v for k, v in clean_environment(home).items() if not k.startswith(("WSLGPUD_", "PYTHONDONTWRITE"))}
    return {**usual, "STATE_DIRECTORY": str(home / "state"), **settings}


def command(*words: str | Path, home: Path) -> Took:
    """Run a command to its end."""
    began = time.perf_counter()
    process = subprocess.Popen(words, env=environment(home), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0  # already waited for
    return Took(usage.ru_utime + usage.ru_stime, time.perf_counter() - began)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process's threads; ``stat`` would have a resolution of 10 ms."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


class Daemon:
    """A running ``wslgpud run``."""

    def __init__(self, program: Path, home: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._began = time.perf_counter()
        self._process = subprocess.Popen(
            [program, "run"],
            env=environment(home, WSLGPUD_SERVER__PORT=str(port)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def until(self, answers: Callable[[bytes], bool]) -> Took:
        """Return CPU and wall time until ``/metrics`` gives this response."""
        while time.perf_counter() - self._began < PATIENCE_SECONDS:
            try:
                with urllib.request.urlopen(f"{self.url}/metrics", timeout=PATIENCE_SECONDS) as answer:
                    if answers(answer.read()):
                        return Took(cpu_seconds(self._process.pid), time.perf_counter() - self._began)
            except OSError:
                time.sleep(POLL_SECONDS)
        raise SystemExit("the daemon does not answer")

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_SECONDS)


def measure(program: Path) -> dict[str, Took]:
    """Return each figure of one version, measured once."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        found = {
            "python, nothing else": command(program.with_name("python"), "-c", "pass", home=home),
            "wslgpud --help": command(program, "--help", home=home),
        }
        daemon = Daemon(program, home)
        try:
            found["run, first answer"] = daemon.until(lambda _: True)
            found["run, first sample"] = daemon.until(lambda text: b"\nwslgpud_last_tick_timestamp_seconds " in text)
            found["wslgpud status"] = command(program, "status", home=home)
        finally:
            daemon.end()
    return found


def main() -> None:
    """Measure the versions alternately; print the minimum and the median of each figure."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--times", type=int, default=10)
    options.add_argument(
        "--beside", type=Path, action="append", default=[], metavar="PROGRAM", help="another version to compare with"
    )
    chosen = options.parse_args()
    programs = [OURS, *chosen.beside]
    rows: dict[str, dict[Path, list[Took]]] = {}
    for number in range(1 + chosen.times):
        for program in programs:
            for name, took in measure(program).items():
                if number:  # the first run writes the bytecode
                    rows.setdefault(name, {}).setdefault(program, []).append(took)
    print(f"{'':24} {'processor, least':>16} {'median':>8} {'wall, least':>12} {'median':>8} ms")
    for name, versions in rows.items():
        for program, took in versions.items():
            cpu, wall = ([1e3 * one[column] for one in took] for column in (0, 1))
            figures = f"{min(cpu):16.1f} {statistics.median(cpu):8.1f} {min(wall):12.1f} {statistics.median(wall):8.1f}"
            print(f"{name:24} {figures}   {program if len(programs) > 1 else ''}")


if __name__ == "__main__":
    main()
