"""RAM and swap: levels from /proc/meminfo, what reclaim does from /proc/vmstat."""

from __future__ import annotations

import os
from typing import ClassVar

from wslgpud.host import SourceError
from wslgpud.metrics import Kind, MetricSpec
from wslgpud.model import Reading, Sample
from wslgpud.sources import Source
from wslgpud.sources.text import table, whole
from wslgpud.words import say

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _bytes(name: str, text: str, kind: Kind = "gauge") -> MetricSpec:
    return MetricSpec(name, kind, "bytes", text)


#: Line of /proc/meminfo (kB) -> metric. Meanings: https://docs.kernel.org/filesystems/proc.html#meminfo
MEMINFO = {
    "MemTotal": _bytes("memory_total_bytes", "RAM of this machine (under WSL2: of its virtual machine)."),
    "MemAvailable": _bytes(
        "memory_available_bytes",
        "RAM that programs can still take without swapping; memory runs out when this and swap reach zero.",
    ),
    "MemFree": _bytes(
        "memory_free_bytes", "RAM used for nothing; low is normal, see memory_available_bytes."
    ),
    "Cached": _bytes(
        "memory_cached_bytes", "Files kept in RAM, tmpfs included; given back on demand except shmem."
    ),
    "Buffers": _bytes("memory_buffers_bytes", "Raw disk blocks kept in RAM; given back on demand."),
    "Dirty": _bytes("memory_dirty_bytes", "Written data that waits for the disk; much of it: a slow disk."),
    "Writeback": _bytes("memory_writeback_bytes", "Written data that is on its way to the disk."),
    "Shmem": _bytes(
        "memory_shmem_bytes",
        "Shared memory and tmpfs (/dev/shm of data loaders): cannot be dropped, only swapped.",
    ),
    "AnonPages": _bytes("memory_anon_bytes", "Memory of programs themselves: heaps, tensors, stacks."),
    "SReclaimable": _bytes("memory_slab_reclaimable_bytes", "Kernel caches that can be given back."),
    "SUnreclaim": _bytes(
        "memory_slab_unreclaimable_bytes", "Kernel memory that stays; steady growth points to a driver leak."
    ),
    "KernelStack": _bytes("memory_kernel_stack_bytes", "Kernel stacks; grows with the number of threads."),
    "PageTables": _bytes("memory_page_tables_bytes", "Page tables; grows with mapped memory."),
    "Mlocked": _bytes("memory_locked_bytes", "Memory that programs have locked in RAM; cannot be swapped."),
    "Balloon": _bytes(
        "memory_balloon_bytes", "Memory the host has taken back from this virtual machine (Linux 6.17 on)."
    ),
    "Hugetlb": _bytes("memory_hugepages_bytes", "RAM set aside as huge pages; unusable for anything else."),
    "CommitLimit": _bytes(
        "memory_commit_limit_bytes", "How much memory may be promised when overcommit is forbidden."
    ),
    "Committed_AS": _bytes("memory_committed_bytes", "Memory promised to programs, touched or not."),
    "SwapTotal": _bytes("swap_total_bytes", "Swap space; WSL2 adds it some seconds after its start."),
    "SwapFree": _bytes("swap_free_bytes", "Swap space left."),
    "SwapCached": _bytes("swap_cached_bytes", "Memory that is both in RAM and in swap."),
}

SWAP_IN = _bytes(
    "swap_in_bytes", "Memory read back from swap; a steady rate means RAM is too small.", "counter"
)
SWAP_OUT = _bytes("swap_out_bytes", "Memory written to swap; alone, with no swap-in, harmless.", "counter")


def _events(name: str, text: str, labels: tuple[str, ...] = ()) -> MetricSpec:
    return MetricSpec(name, "counter", "", text, labels)


MAJOR_FAULTS = _events(
    "page_major_faults", "Page faults that had to wait for a disk; a flood of them is thrashing."
)
RECLAIM_SCANNED = _events("memory_reclaim_scanned_pages", "Pages looked at in search of memory to give back.")
RECLAIM_STOLEN = _events("memory_reclaim_stolen_pages", "Pages given back to those who needed memory.")
DIRECT_SCANNED = _events(
    "memory_direct_reclaim_scanned_pages",
    "Pages that programs had to look at themselves because the kernel's own reclaim was too slow.",
)
ALLOC_STALLS = _events(
    "memory_alloc_stalls", "Times a program had to stop and reclaim memory before it got any."
)
REFAULTS = _events(
    "memory_refaulted_pages",
    "Pages needed again soon after they were given back, by type (anon, file): the measure of thrashing.",
    ("type",),
)
OOM_KILLS = _events("oom_kills", "Processes that the kernel has killed because memory had run out.")


class MemorySource(Source):
    """RAM, swap and reclaim; all in two reads of about 20 us, so it also serves the extra ticks."""

    name: ClassVar[str] = "memory"
    fast: ClassVar[bool] = True
    metrics: ClassVar[tuple[MetricSpec, ...]] = (
        *MEMINFO.values(), SWAP_IN, SWAP_OUT, MAJOR_FAULTS, RECLAIM_SCANNED, RECLAIM_STOLEN, DIRECT_SCANNED,
        ALLOC_STALLS, REFAULTS, OOM_KILLS,
    )  # fmt: skip

    def read(self) -> Sample:
        """Return all levels and counters that this kernel has.

        Raises:
            NoData: there is no /proc.
            SourceError: /proc/meminfo is not what it should be.
        """
        levels = meminfo(self.host.read("/proc/meminfo"))
        return Sample((*levels, *vmstat(self.host.read("/proc/vmstat"))))


def meminfo(text: str) -> list[Reading]:
    """Return the levels in /proc/meminfo, in bytes.

    Raises:
        SourceError: it does not say how much memory there is.
    """
    found = table(text)
    readings = [
        Reading(spec, value * 1024)
        for line, spec in MEMINFO.items()
        if (value := whole(found.get(line))) is not None
    ]
    if not readings or readings[0].spec is not MEMINFO["MemTotal"] or not readings[0].value:
        raise SourceError(say("/proc/meminfo does not say how much memory there is (no MemTotal)"))
    return readings


def vmstat(text: str) -> list[Reading]:
    """Return the counters in /proc/vmstat; kernels differ in which there are."""
    found = table(text)

    def total(*names: str) -> int | None:
        values = [value for name in names if (value := whole(found.get(name))) is not None]
        return sum(values) if values else None

    stalls = [name for name in found if name.startswith("allocstall")]  # one per zone, zones differ
    pages_in, pages_out = total("pswpin"), total("pswpout")
    counters: tuple[tuple[MetricSpec, int | None, tuple[str, ...]], ...] = (
        (SWAP_IN, None if pages_in is None else pages_in * PAGE_BYTES, ()),
        (SWAP_OUT, None if pages_out is None else pages_out * PAGE_BYTES, ()),
        (MAJOR_FAULTS, total("pgmajfault"), ()),
        (
            RECLAIM_SCANNED,
            total("pgscan_kswapd", "pgscan_direct", "pgscan_khugepaged", "pgscan_proactive"),
            (),
        ),
        (
            RECLAIM_STOLEN,
            total("pgsteal_kswapd", "pgsteal_direct", "pgsteal_khugepaged", "pgsteal_proactive"),
            (),
        ),
        (DIRECT_SCANNED, total("pgscan_direct"), ()),
        (ALLOC_STALLS, total(*stalls), ()),
        (REFAULTS, total("workingset_refault_anon"), ("anon",)),
        (REFAULTS, total("workingset_refault_file"), ("file",)),
        (OOM_KILLS, total("oom_kill"), ()),
    )
    return [Reading(spec, value, labels) for spec, value, labels in counters if value is not None]
