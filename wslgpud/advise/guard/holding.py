"""How much memory a tree of processes holds, each page counted once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

from wslgpud.advise.guard.memory import most_bytes
from wslgpud.advise.guard.plan import Process, is_compiler
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources.text import table, whole

#: less than that, many times over, is nothing beside a build or a training
_WORTH_BYTES = 16 << 20
#: The kernel walks over every page to tell what is shared, some 10 ms for each GB: that is not to take more
#: than a hundredth of a processor.
_REST = 100


class Holding:
    """Adds up a tree of processes.

    Two things would be counted many times over. Workers that a program has forked (those of a DataLoader;
    make's load a program of their own) have its pages without a copy, and shared memory (``/dev/shm``) is
    mapped by all who hand tensors to each other. Of such processes the kernel is asked for shares (PSS).
    Files on a tmpfs that nobody has mapped are not counted: they stay when the processes end.
    """

    def __init__(self, host: Host) -> None:
        """Ask nothing yet."""
        self._host = host
        self._ask_at = float("-inf")

    def now_bytes(self, processes: Sequence[Process]) -> int | None:
        """Return what these processes hold together, in bytes; None: not known exactly at this look.

        More than the machine has is a sum that counts something twice, and not known.
        """
        held, most = self._sum(processes), most_bytes(self._host)
        return None if held is not None and most is not None and held > most else held

    def _sum(self, processes: Sequence[Process]) -> int | None:
        sharing = self._sharing(processes)
        alone = sum(p.bytes + p.shared_bytes for p in processes if p.key not in sharing)
        if not sharing:
            return alone
        if self._host.clock.mono() < self._ask_at:
            return None
        began = time.thread_time()  # waiting for a busy processor costs nobody anything
        shares = sum(self._share(process) for process in sharing.values())
        self._ask_at = self._host.clock.mono() + _REST * (time.thread_time() - began)
        return alone + shares

    def _sharing(self, processes: Sequence[Process]) -> dict[tuple[int, int], Process]:
        """Return those that may share pages: several with shared memory, several that run one program."""
        families: dict[str | None, list[Process]] = defaultdict(list)
        for process in processes:
            if process.shared_bytes >= _WORTH_BYTES:
                families["shared memory"].append(process)
            if process.bytes >= _WORTH_BYTES and not is_compiler(process.name):
                families[self._host.link(f"/proc/{process.pid}/exe")].append(process)
        return {p.key: p for family in families.values() if len(family) > 1 for p in family}

    def _share(self, process: Process) -> int:
        """Return a process's share of what it has without files, in bytes; all of it where it is not told.

        The parts of Pss are there since Linux 5.4: https://docs.kernel.org/filesystems/proc.html
        """
        try:
            parts = table(self._host.read(f"/proc/{process.pid}/smaps_rollup"))
        except (NoData, SourceError):  # ended meanwhile, or another user's
            parts = {}
        kilobytes = [whole(parts.get(name)) for name in ("Pss_Anon", "Pss_Shmem", "SwapPss")]
        if None in kilobytes:
            return process.bytes + process.shared_bytes
        return sum(k or 0 for k in kilobytes) << 10
