"""Runs one scenario inside a machine of ``bench_oom`` and prints the result as JSON. Standard library only.

    python3 oom_guest.py SCENARIO SECONDS           # as root
    python3 oom_guest.py act KIND ARGUMENT...       # a program of the scenario, as a user

Each scenario has a ballast, an innocent program that holds memory and exits after a while, and a job that allocates
more than the ballast leaves. A job that survives until the ballast has exited can finish. Shares are of RAM and swap.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

MIB = 1 << 20
STEP_SECONDS = 0.25
#: a command that takes longer than this was late
PATIENCE_SECONDS = 2.0
#: time limit for the ballast to be ready; from the job's start to the ballast's exit; to the end of the run
READY_SECONDS, ROOM_SECONDS, MAX_SECONDS = 120.0, 20.0, 50.0
ALICE = "alice"
#: with the default OOM score: the observer itself has -1000
AS_ALICE = ("choom", "-n", "0", "--", "setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--init-groups")
RUN = Path("/run/oom")
#: compressible like typical memory: by about two thirds
PAGE = b"".join(b"%08d" % number for number in range(340)).ljust(2731, b"x")
#: by scenario: the ballast's share, and the job's kind and arguments
SCENARIOS: dict[str, tuple[float, tuple[str, ...]]] = {
    "leak": (0.4, ("grow", "0.6", "15")),
    "workers": (0.4, ("workers", "20", "0.6", "15")),
    "build": (0.4, ("make", "10", "0.55", "15")),
    "tmpfs": (0.4, ("tmpfs", "0.6", "15")),
    "burst": (0.4, ("grow", "0.6", "2")),
    "innocent": (0.55, ("grow", "0.45", "15")),
    "thrash": (0.4, ("hot", "0.6", "15")),
}


def memory(*names: str) -> int:
    """Return the sum of these fields of /proc/meminfo, in bytes."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in names)


# The programs of a scenario


class Heap:
    """Memory of this program; each MiB is stamped and can be verified."""

    def __init__(self, most_bytes: int) -> None:
        self.block = b"".join(PAGE + os.urandom(1365) for _ in range(MIB // 4096))
        # Private, as heaps are: what is swapped out of shared memory counts for no program.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.map = mmap.mmap(-1, (most_bytes // MIB + 1) * MIB, private)
        self.mib = 0

    def grow_to(self, size: float) -> None:
        while self.mib * MIB < size:
            at = self.mib * MIB
            self.map[at : at + MIB] = self.block
            self.map[at : at + 8] = self.mib.to_bytes(8, "little")
            self.mib += 1

    def touch(self, share: float) -> None:
        for n in random.sample(range(self.mib), int(self.mib * share)):
            self.map[n * MIB + 4096 * random.randrange(1, 256)] = 1

    def is_whole(self) -> bool:
        return all(self.map[n * MIB : n * MIB + 8] == n.to_bytes(8, "little") for n in range(self.mib))


def grow(share: float, seconds: float, *, touched: float = 0.0) -> int:
    """Allocate a share of all memory at a constant rate; verify its content at the end."""
    target = share * memory("MemTotal", "SwapTotal")
    heap, grown = Heap(int(target)), 0.0
    while heap.mib * MIB < target:
        # By its own running time: a paused program continues where it was.
        began = time.monotonic()
        time.sleep(0.1)
        grown += min(0.2, time.monotonic() - began)
        heap.grow_to(min(target, target * grown / seconds))
        heap.touch(touched)
    return 0 if heap.is_whole() else 1


def hold(share: float) -> int:
    """Allocate a share of all memory at once and keep it until stdin is closed."""
    heap = Heap(int(share * memory("MemTotal", "SwapTotal")))
    heap.grow_to(share * memory("MemTotal", "SwapTotal"))
    print("ready", flush=True)
    sys.stdin.readline()
    return 0 if heap.is_whole() else 1


def workers(count: int, share: float, seconds: float) -> int:
    """Fork ``count`` workers, each of which allocates its part."""
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            os._exit(grow(share / count, seconds))
        pids.append(pid)
    return report({pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids})


def make(jobs: int, share: float, seconds: float) -> int:
    """Start a shell for each compiler, like ``make -j``."""
    Path("/proc/self/comm").write_text("make")
    line = f'{sys.executable} -I {__file__} act cc1plus {share / jobs} {seconds}; exit "$?"'
    children = [subprocess.Popen(["/bin/sh", "-c", line]) for _ in range(jobs)]
    codes = {child.pid: child.wait() for child in children}
    return report({pid: 128 - code if code > 128 else code for pid, code in codes.items()})


def report(codes: dict[int, int]) -> int:
    print(json.dumps(codes), flush=True)
    return 1 if any(codes.values()) else 0


def compiler(share: float, seconds: float) -> int:
    Path("/proc/self/comm").write_text("cc1plus")
    return grow(share, seconds)


def tmpfs(share: float, seconds: float) -> int:
    """Fill a file in tmpfs, which no process accounts for, and remove it at the end."""
    target, written = share * memory("MemTotal", "SwapTotal"), 0
    block, begun, file = os.urandom(MIB), time.monotonic(), Path("/dev/shm/fill")
    with file.open("wb") as out:
        while written < target:
            time.sleep(0.1)
            while written < min(target, target * (time.monotonic() - begun) / seconds):
                out.write(block)
                written += MIB
    file.unlink()
    return 0


def act(kind: str, *arguments: str) -> int:
    numbers = [float(argument) for argument in arguments]
    if kind == "hold":
        return hold(*numbers)
    if kind == "workers":
        return workers(int(numbers[0]), *numbers[1:])
    if kind == "make":
        return make(int(numbers[0]), *numbers[1:])
    if kind == "cc1plus":
        return compiler(*numbers)
    if kind == "tmpfs":
        return tmpfs(*numbers)
    return grow(*numbers, touched=0.25 if kind == "hot" else 0.0)


# The observer


class Shell(threading.Thread):
    """A user typing a command every second; measures the response times."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bash = subprocess.Popen(
            [*AS_ALICE, "/bin/bash", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.answers: list[tuple[float, float]] = []
        self.asked: float | None = None

    def run(self) -> None:
        assert self.bash.stdin is not None
        assert self.bash.stdout is not None
        with suppress(OSError):
            while True:
                self.asked = asked = time.monotonic()
                self.bash.stdin.write(b"/bin/ls /usr >/dev/null; echo done\n")
                self.bash.stdin.flush()
                if not self.bash.stdout.readline():
                    return
                self.answers.append((asked, time.monotonic() - asked))
                self.asked = None
                time.sleep(max(0.0, asked + 1.0 - time.monotonic()))

    def slow(self, since: float, until: float) -> tuple[float, float]:
        """Return the seconds during which a command would have been late, and the longest response time."""
        took = [length for at, length in self.answers if since <= at <= until]
        if self.asked is not None:
            took.append(until - self.asked)
        if self.bash.poll() is not None:
            return until - since, until - since
        return sum(max(0.0, length - PATIENCE_SECONDS) for length in took), max(took, default=0.0)


class Actor:
    """A program of the scenario, in its own scope of the user's systemd, as a desktop starts it."""

    def __init__(self, role: str, arguments: Sequence[str], uid: int) -> None:
        self.role, self.began = role, time.monotonic()
        command = [*AS_ALICE, "env", f"XDG_RUNTIME_DIR=/run/user/{uid}", "HOME=/home/alice"]
        command += ["systemd-run", "--user", "--scope", "--quiet", "--collect", f"--unit={role}"]
        command += [sys.executable, "-I", __file__, "act", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.folder = Path(f"/sys/fs/cgroup/user.slice/user-{uid}.slice/user@{uid}.service/app.slice/{role}.scope")
        self.pids: set[int] = set()
        self.ended: float | None = None
        self.paused_seconds = 0.0
        self.was_paused = self.is_paused = False

    def look(self, now: float, passed: float) -> None:
        if self.ended is None and self.process.poll() is not None:
            self.ended = now
        pids: set[int] = set()
        with suppress(OSError, ValueError):
            pids = {int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()}
        self.pids |= pids
        self.is_paused = self.ended is None and any(state(pid) in "Tt" for pid in pids)
        self.was_paused |= self.is_paused
        self.paused_seconds += passed * self.is_paused

    def outcome(self) -> str:
        code = self.process.poll()
        if code is None:
            return "paused" if self.is_paused else "unfinished"
        return "finished" if code == 0 else "killed" if code < 0 else "failed"

    def signalled(self) -> int:
        """Return how many of its processes were killed by a signal."""
        code = self.process.poll()
        said = (self.process.stdout.read() if code is not None and self.process.stdout else "").splitlines()
        codes = [int(one) for one in json.loads(said[-1]).values()] if said and said[-1].startswith("{") else []
        return sum(one < 0 for one in [*codes, code or 0])


def state(pid: int) -> str:
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return "X"


def kernel_kills() -> list[tuple[int, str]]:
    """Return the processes killed by the kernel since boot, by pid and name."""
    found = []
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while line := os.read(log, 8192).decode(errors="replace"):
            if killed := re.search(r"Killed process (\d+) \(([^)]*)\)", line):
                found.append((int(killed[1]), killed[2]))
    os.close(log)
    return found


def watch(scenario: str) -> dict[str, object]:
    share, arguments = SCENARIOS[scenario]
    uid = int(subprocess.check_output(["id", "-u", ALICE]))
    subprocess.run(["mount", "-o", "remount,size=95%", "/dev/shm"], check=True)
    before = len(kernel_kills())
    shell = Shell()
    shell.start()
    whole = memory("MemAvailable", "SwapFree")
    ballast = Actor("ballast", ["hold", str(share)], uid)
    assert ballast.process.stdout is not None
    if not select.select([ballast.process.stdout], [], [], READY_SECONDS)[0]:
        return {"error": "the ballast was not ready in time"}
    ballast.process.stdout.readline()
    job = Actor("job", arguments, uid)
    begun = last = time.monotonic()
    half = None if memory("MemAvailable", "SwapFree") > whole / 2 else begun
    first_end = None
    told = False
    while True:
        time.sleep(STEP_SECONDS)
        now = time.monotonic()
        for actor in (ballast, job):
            actor.look(now, now - last)
        last = now
        if half is None and memory("MemAvailable", "SwapFree") < whole / 2:
            half = now
        disturbed = (
            job.is_paused or ballast.is_paused or (ballast.ended and not told) or (job.ended and job.process.poll())
        )
        if first_end is None and disturbed:
            first_end = now
        if not told and now - begun >= ROOM_SECONDS and ballast.process.stdin is not None:
            told = True
            with suppress(OSError):
                ballast.process.stdin.close()
        over = job.ended is not None and (ballast.ended is not None or now - job.ended > 3)
        if over or now - begun > MAX_SECONDS:
            break
    slow, longest = shell.slow(begun, now)
    kills = kernel_kills()[before:]
    roles = {pid: actor.role for actor in (ballast, job) for pid in actor.pids}
    by_kernel = [roles.get(pid, name) for pid, name in kills]
    signalled = {actor.role: actor.signalled() for actor in (ballast, job)}
    by_tool = {role: max(0, number - by_kernel.count(role)) for role, number in signalled.items()}
    lost = [
        (a.ended or now) - a.began - a.paused_seconds for a in (ballast, job) if a.outcome() in ("killed", "failed")
    ]
    return {
        "seconds": round(now - begun, 1),
        "half_to_end_seconds": None if half is None or first_end is None else round(first_end - half, 1),
        "kernel_kills": by_kernel,
        "tool_kills": [role for role, number in by_tool.items() for _ in range(number)],
        "paused": {a.role: round(a.paused_seconds, 1) for a in (ballast, job) if a.was_paused},
        "slow_seconds": round(slow, 1),
        "longest_answer_seconds": round(longest, 1),
        "lost_seconds": round(sum(lost), 1),
        "job": job.outcome(),
        "ballast": ballast.outcome(),
    }


def main() -> int:
    if sys.argv[1] == "act":
        return act(*sys.argv[2:])
    ctypes.CDLL(None).mlockall(3)  # MCL_CURRENT | MCL_FUTURE
    Path("/proc/self/oom_score_adj").write_text("-1000")
    print(json.dumps(watch(sys.argv[1])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
