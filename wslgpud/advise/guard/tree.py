"""The processes under watch: all that a command has started, also what has left its session."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from wslgpud.advise.guard.plan import Process
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources.text import whole

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parents end: none gets out of sight.

    Raises:
        OSError: the kernel refuses (before Linux 3.4).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot adopt orphaned processes")


class Row(NamedTuple):
    """One process as /proc/<pid>/stat has it."""

    parent: int
    name: str
    state: str
    start_ticks: int


def scan(host: Host) -> dict[int, Row]:
    """Return all processes that we may see, the dead that nobody has waited for included.

    Format: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    rows = {}
    for pid in host.names("/proc"):
        if not pid.isdecimal():
            continue
        try:
            head, _, rest = host.read(f"/proc/{pid}/stat").rpartition(")")
        except (NoData, SourceError):
            continue
        words = rest.split()
        if len(words) > 19:
            rows[int(pid)] = Row(int(words[1]), head.partition("(")[2], words[0], int(words[19]))
    return rows


def descendants(
    host: Host, rows: Mapping[int, Row], root: int, without: Container[int] = ()
) -> list[Process]:
    """Return all living descendants of ``root``; itself, and ``without`` with all below, are left out."""
    children: dict[int, list[int]] = {}
    for pid, row in rows.items():
        children.setdefault(row.parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            row = rows[pid]
            if pid in without or row.state == "Z":
                continue
            queue.append(pid)
            stopped = row.state in ("T", "t")
            # RssAnon is there since Linux 4.5; a kernel thread has none of these.
            sizes = _sizes(host, pid)
            own, shared = sizes.get("RssAnon", 0) + sizes.get("VmSwap", 0), sizes.get("RssShmem", 0)
            found.append(Process(pid, row.start_ticks, row.name, own, stopped, shared))
    return found


def send(processes: Iterable[Process], number: signal.Signals) -> int:
    """Send a signal to exactly these processes and return to how many; who has ended is passed over."""
    sent = 0
    for process in processes:
        with contextlib.suppress(OSError, IndexError, ValueError):
            handle = os.pidfd_open(process.pid)
            try:
                # Only now: the handle is of one process for ever, so what is found out of it holds.
                with open(f"/proc/{process.pid}/stat", "rb") as file:  # noqa: PTH123 - a file of the kernel's
                    start = int(file.read().rpartition(b")")[2].split()[19])
                if start == process.start_ticks:
                    signal.pidfd_send_signal(handle, number)
                    sent += 1
            finally:
                os.close(handle)
    return sent


def catches(host: Host, process: Process, number: signal.Signals) -> bool:
    """Tell whether a process has a handler for a signal, so that it is not simply ended by it."""
    try:
        for line in host.read(f"/proc/{process.pid}/status").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (NoData, SourceError, IndexError, ValueError):
        pass
    return False


def most_resident_bytes(host: Host) -> int | None:
    """Return the most that this process has had in RAM with its present program; None: it is not told."""
    return _sizes(host, "self").get("VmHWM")


def _sizes(host: Host, pid: int | str) -> dict[str, int]:
    """Return the sizes in /proc/<pid>/status in bytes, as far as they are there."""
    try:
        lines = host.read(f"/proc/{pid}/status").splitlines()
    except (NoData, SourceError):
        return {}
    found = (line.split() for line in lines if line.startswith(("Vm", "Rss")))
    return {words[0].rstrip(":"): (whole(words[1]) or 0) << 10 for words in found if len(words) > 1}
