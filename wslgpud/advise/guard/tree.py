"""The watched process tree: all processes started by a command, even those that left its session.

And which of its compilers may run; that is pure.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from wslgpud.host import Host
from wslgpud.security import exact_signals
from wslgpud.security.exact_signals import ExactProcess
from wslgpud.sources.procfs import ProcessStat, process_stat, status_field, status_number

GIB = 1 << 30
#: Left for everything else: page cache of the sources, the editor, the desktop.
RESERVE_RATIO, RESERVE_BYTES = 0.05, GIB
#: Margin on top of earlier measurements: the next file may be bigger.
MARGIN = 1.25
#: nvcc's cicc takes 2 to 4 GB on big kernels (Dao-AILab/flash-attention#832), a heavy C++ file 1 to 2.
NVCC_BYTES, CXX_BYTES = 4 * GIB, 2 * GIB
#: Programs that use the memory; drivers like make, g++ and nvcc only wait.
_COMPILER = re.compile(
    r"cicc|ptxas|cudafe\+\+|fatbinary|nvlink|cc1|cc1plus|cc1obj|lto1|lto1-wpa|lto1-ltrans|f951"
    r"|(clang|clang\+\+)(-[\d.]+)?"
    r"|ld|ld\.(lld|gold|bfd|mold)|lld|mold|rustc|rust-lld|javac|swift-frontend|compile|link"
)
#: oom_score_adj of compilers: as if each held so many thousandths of the memory more
_OOM_SCORE = 300
_PR_SET_CHILD_SUBREAPER = 36
#: At the end of its input, and so whenever we end, it resumes every process that was ever stopped; on running ones this
#: has no effect.
_SCRIPT = 'while read -r pid; do all="$all $pid"; done; [ -z "$all" ] || kill -CONT $all 2>/dev/null; :'


class Process(NamedTuple):
    """A process of the watched tree; ``bytes`` is its memory, excluding file pages.

    ``shared_bytes`` is additional shared memory (/dev/shm), which others may map as well, ``caught`` the mask of the
    signals for which it has a handler.
    """

    pid: int
    start_ticks: int
    name: str
    bytes: int
    stopped: bool = False
    shared_bytes: int = 0
    uid: int = 0
    caught: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """Identity that survives the reuse of a pid."""
        return self.pid, self.start_ticks

    def catches(self, number: int) -> bool:
        """Return whether it has a handler for a signal, so that it is not killed by it."""
        return bool(self.caught >> (number - 1) & 1)


def is_compiler(name: str) -> bool:
    """Return whether a process of this name is a compiler, which takes the memory of a build."""
    return bool(_COMPILER.fullmatch(name))


def reserve(total_bytes: int) -> int:
    """Return the memory that a build must leave free: a twentieth or 1 GiB, on a small machine an eighth."""
    return min(max(int(total_bytes * RESERVE_RATIO), RESERVE_BYTES), total_bytes // 8)


def adopt_orphans() -> None:
    """Become the subreaper of all descendants, so that none gets lost when its parent ends.

    Raises:
        OSError: the kernel refuses (before Linux 3.4).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot adopt orphaned processes")


def descendants(host: Host, root: int, without: Container[int] = ()) -> list[Process]:
    """Return all living descendants of ``root``, except itself, and ``without`` and its descendants."""
    children: dict[int, list[ProcessStat]] = defaultdict(list)
    for pid in map(int, filter(str.isdecimal, host.names("/proc"))):
        row = process_stat(host, pid)
        if row is not None and row.alive and pid not in without:
            children[row.parent].append(row)
    found, queue = [], [root]
    while queue:
        for row in children[queue.pop()]:
            queue.append(row.pid)
            status = host.read_optional(f"/proc/{row.pid}/status")
            # RssAnon exists since Linux 4.5; a kernel thread has none of these.
            names = ("RssAnon", "VmSwap", "RssShmem", "Uid")
            own, swapped, shared, uid = (status_number(status, name) or 0 for name in names)
            caught = int((*status_field(status, "SigCgt"), "0")[0], 16)
            memory, start = (own + swapped) << 10, row.start_ticks
            found.append(Process(row.pid, start, row.name, memory, row.stopped, shared << 10, uid, caught))
    return found


def reap_orphans(others: Container[int]) -> None:
    """Reap adopted processes; a build that leaves thousands behind must not run out of pids.

    Our own children, ``others``, are reaped by the code that started them.
    """
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid not in others:
            os.waitpid(dead.si_pid, os.WNOHANG)


def send(processes: Iterable[Process], number: signal.Signals) -> int:
    """Send a signal to exactly these processes and return the number reached; skip those that have ended."""
    exact = (ExactProcess(one.pid, one.start_ticks, one.uid) for one in processes)
    return sum(not exact_signals.send(one, number) for one in exact)


def give_up_first(compilers: Iterable[Process]) -> None:
    """Have the kernel kill these before others when memory runs out: not a training, nor an editor with unsaved work.

    The rest of the tree keeps its chances: it may be a training.
    """
    for process in compilers:
        with contextlib.suppress(OSError):  # ended, or of another user
            Path(f"/proc/{process.pid}/oom_score_adj").write_text(f"{_OOM_SCORE}", encoding="ascii")


def to_stop(
    compilers: Sequence[Process], available_bytes: int, reserve_bytes: int, peak_bytes: int
) -> tuple[list[Process], list[Process]]:
    """Return which compilers to stop, and which of the stopped to resume: the oldest first, and always one.

    Each running one is given room to grow to ``peak_bytes``; one already beyond that, to grow by a quarter. A stopped
    one needs room only for its remaining growth.
    """
    room, stop, go = available_bytes - reserve_bytes, [], []
    # The biggest is closest to its end, and the others wait for its memory.
    sure = min(compilers, key=lambda p: (-p.bytes, p.start_ticks, p.pid), default=None)
    for process in sorted(compilers, key=lambda p: (p is not sure, p.start_ticks, p.pid)):
        room -= max(peak_bytes - process.bytes, process.bytes // 4)
        if process is sure or room >= 0:
            if process.stopped:
                go.append(process)
        elif not process.stopped:
            stop.append(process)
    return stop, go


class Rescue:
    """Resumes stopped compilers whatever becomes of the guard: ``kill -9``, an OOM kill, a bug.

    A shell that waits for our end, started when the first process is stopped.
    """

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    @property
    def pid(self) -> int | None:
        """The shell's pid, once started."""
        return self._shell.pid if self._shell else None

    def note(self, pids: Iterable[int]) -> None:
        """Record these; call it before they are stopped."""
        for pid in pids:
            if self._shell is None:
                end, self._pipe = os.pipe()
                # In its own session, so that Ctrl-C ends the build and not its rescue.
                self._shell = subprocess.Popen(["/bin/sh", "-c", _SCRIPT], stdin=end, start_new_session=True)
                os.close(end)
            os.write(self._pipe, f"{pid}\n".encode())

    def close(self) -> None:
        """End the shell, which resumes all processes."""
        if self._shell is not None:
            os.close(self._pipe)
            self._shell.wait()
            self._shell = None
