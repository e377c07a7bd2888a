"""How much memory a tree of processes holds, each page counted once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from wslgpud.advise.guard.memory import shared_bytes
from wslgpud.advise.guard.plan import Process, is_compiler
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources.text import table, whole

#: less than that, many times over, is nothing beside a build or a training
_WORTH_BYTES = 16 << 20
#: The kernel walks over every page to tell what is shared, some 10 ms for each GB: so many times as long
#: passes before it is asked again.
_REST = 100


class Holding:
    """Adds up a tree of processes.

    Two things would be counted many times over, or not at all. Workers that a program has forked (those of a
    DataLoader; make's load a program of their own) have its pages without a copy: of them the kernel is asked
    for shares (PSS). Shared memory (``/dev/shm``, any tmpfs) belongs to no process, and may stay without one:
    what there is more of than at the start is taken for the command's, in our cgroup where we have one.
    """

    def __init__(self, host: Host) -> None:
        """Take what is shared now for others'."""
        self._host = host
        self._before_bytes = shared_bytes(host)
        self._ask_at = float("-inf")

    def now_bytes(self, processes: Sequence[Process]) -> int | None:
        """Return what these processes hold together, in bytes; None: not known exactly at this look."""
        grown = max(0, shared_bytes(self._host) - self._before_bytes)
        forked = self._forked(processes)
        if not forked:
            return sum(p.bytes for p in processes) + grown
        began = self._host.clock.mono()
        if began < self._ask_at:
            return None
        shares = sum(self._share(process) for process in forked)
        now = self._host.clock.mono()
        self._ask_at = now + _REST * (now - began)
        others = {p.key for p in forked}
        return shares + sum(p.bytes for p in processes if p.key not in others) + grown

    def _forked(self, processes: Sequence[Process]) -> list[Process]:
        """Return those that may share pages with another: several that run one and the same program."""
        families: dict[str | None, list[Process]] = defaultdict(list)
        for process in processes:
            if process.bytes >= _WORTH_BYTES and not is_compiler(process.name):
                families[self._host.link(f"/proc/{process.pid}/exe")].append(process)
        return [p for family in families.values() if len(family) > 1 for p in family]

    def _share(self, process: Process) -> int:
        """Return a process's share of what it has without files, in bytes; all of it where it is not told.

        Pss_Anon is there since Linux 5.4: https://docs.kernel.org/filesystems/proc.html
        """
        try:
            parts = table(self._host.read(f"/proc/{process.pid}/smaps_rollup"))
        except (NoData, SourceError):  # ended meanwhile, or another user's
            return process.bytes
        kilobytes = [whole(parts.get(name)) for name in ("Pss_Anon", "SwapPss")]
        return process.bytes if kilobytes[0] is None else sum(k or 0 for k in kilobytes) << 10
