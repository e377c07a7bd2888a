"""Follows how much of RAM goes out of the brake's reach, and says when that makes a pause unfair."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from wslgpud.brake import fairness, tmpfs
from wslgpud.brake.culprit import Job, NotPaused, loss_to_explain
from wslgpud.brake.fairness import Pools, ShortageStart, Taker
from wslgpud.brake.growth_history import MAX_SECONDS
from wslgpud.brake.process_scan import cgroup_of
from wslgpud.brake.process_tree import ProcessTree, ScannedProcess
from wslgpud.host import Host
from wslgpud.model import Forecast
from wslgpud.sources import parse_uint, table

_TAKERS: Final[Mapping[Taker, str]] = {
    "users": "other users' programs",
    "files": "files in RAM (tmpfs, /dev/shm, memfd)",
    "slab": "objects of the kernel (slab)",
    "kernel": "the kernel for no known program (pipes, socket buffers, drivers)",
}


class Reach:
    """RAM since its shortage began; ``users`` are those whose jobs may be paused."""

    def __init__(self, host: Host, users: Collection[int]) -> None:
        self._host, self._users = host, users
        #: when half of RAM was left, or at the last scan before
        self._since: ShortageStart | None = None

    def watch(self, t: float, ram: Forecast | None, processes: Collection[ScannedProcess] | None = None) -> None:
        """Take a tick, with the scan made at it; a shortage begins with the last scan before half is gone."""
        if ram is None:
            return
        roomy = ram.headroom_bytes > fairness.BEGINS_RATIO * ram.capacity_bytes
        if processes is not None and (roomy or self._since is None):
            sizes = ram.headroom_bytes, ram.capacity_bytes
            self._since = fairness.begun(t, sizes, processes, self._users, self.pools(processes))
        elif roomy and self._since is not None and t - self._since.t > MAX_SECONDS:
            self._since = None

    def pools(self, processes: Iterable[ScannedProcess]) -> Pools:
        """Return the memory that is charged to no process."""
        levels = table(self._host.read_optional("/proc/meminfo"))
        files, slab = ((parse_uint(levels.get(name)) or 0) << 10 for name in ("Shmem", "SUnreclaim"))
        groups = {
            process.cgroup or cgroup_of(process.pid, self._host) for process in processes if process.uid in self._users
        }
        return Pools(files, slab, tmpfs.shmem_bytes(groups))

    def unfair(self, job: Job | NotPaused, processes: Collection[ScannedProcess], left_bytes: int) -> str:
        """Return what else took RAM, for the log, if the job took less or there is none; empty if a pause is fair."""
        since = self._since
        if since is None or not (isinstance(job, Job) or job == "nobody"):
            return ""
        pools = self.pools(processes)
        lost = loss_to_explain(since.left_bytes - left_bytes, self._host.read_optional("/proc/swaps"))
        outside = fairness.outside_bytes(since, lost, processes, self._users, pools)
        taken = 0
        if isinstance(job, Job):
            tree = ProcessTree(processes, since.own_bytes)
            taken = fairness.taken_bytes(since, tree, job.members, job.files_of, pools)
        if taken >= outside:
            return ""
        who = _TAKERS[fairness.taker(since, outside, processes, self._users, pools)]
        return f"{outside >> 20} MiB were taken by {who}, and {taken >> 20} MiB by the job that grows"
