"""RAM and swap: levels from /proc/meminfo, reclaim activity from /proc/vmstat."""

from __future__ import annotations

import os

from wslgpud.host import Host, SourceError
from wslgpud.metrics import MetricSpec, counter, gauge
from wslgpud.model import Reading, Sample, Snapshot
from wslgpud.sources import Source, parse_uint, pinned_names, readings, table, zfs_arc, zram
from wslgpud.words import say

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


#: Line of /proc/meminfo (kB) -> metric. Meanings: https://docs.kernel.org/filesystems/proc.html#meminfo
MEMINFO = {
    "MemTotal": gauge("memory_total_bytes", "RAM of this machine (under WSL2: of its virtual machine)."),
    "MemAvailable": gauge(
        "memory_available_bytes",
        "RAM that programs can still take without swapping, with ZFS's cache and without pinned names; memory runs out "
        "when this and swap reach zero.",
    ),
    "MemFree": gauge("memory_free_bytes", "RAM used for nothing; low is normal, see memory_available_bytes."),
    "Cached": gauge("memory_cached_bytes", "Files kept in RAM, including tmpfs; freed on demand except shmem."),
    "Buffers": gauge("memory_buffers_bytes", "Raw disk blocks kept in RAM; freed on demand."),
    "Dirty": gauge("memory_dirty_bytes", "Written data that waits for the disk; much of it: a slow disk."),
    "Writeback": gauge("memory_writeback_bytes", "Written data that is on its way to the disk."),
    "Shmem": gauge(
        "memory_shmem_bytes", "Shared memory and tmpfs (/dev/shm of data loaders): cannot be dropped, only swapped."
    ),
    "AnonPages": gauge("memory_anon_bytes", "Memory of programs themselves: heaps, tensors, stacks."),
    "SReclaimable": gauge("memory_slab_reclaimable_bytes", "Kernel caches that can be freed."),
    "SUnreclaim": gauge(
        "memory_slab_unreclaimable_bytes", "Kernel memory that stays; steady growth points to a driver leak."
    ),
    "KernelStack": gauge("memory_kernel_stack_bytes", "Kernel stacks; grows with the number of threads."),
    "PageTables": gauge("memory_page_tables_bytes", "Page tables; grows with mapped memory."),
    "Mlocked": gauge("memory_locked_bytes", "Memory that programs have locked in RAM; cannot be swapped."),
    "Balloon": gauge(
        "memory_balloon_bytes", "Memory the host has taken back from this virtual machine (Linux 6.17 on)."
    ),
    "Hugetlb": gauge("memory_hugepages_bytes", "RAM set aside as huge pages; unusable for anything else."),
    "CommitLimit": gauge("memory_commit_limit_bytes", "Memory that may be committed when overcommit is disabled."),
    "Committed_AS": gauge("memory_committed_bytes", "Memory committed to programs, touched or not."),
    "SwapTotal": gauge("swap_total_bytes", "Swap space; WSL2 adds it some seconds after its start."),
    "SwapFree": gauge("swap_free_bytes", "Swap space left."),
    "SwapCached": gauge("swap_cached_bytes", "Memory that is both in RAM and in swap."),
}

ZFS = gauge(
    "memory_zfs_reclaimable_bytes",
    "ZFS's cache (ARC) that is given back on demand; counts as available, which the kernel's own figure leaves out.",
)
PINNED = gauge(
    "memory_pinned_names_bytes",
    "Names of files in use (of all files on a tmpfs), which cannot be freed; does not count as available, though the "
    "kernel's own figure has it in.",
)
COMPRESSIBLE = gauge(
    "memory_compressible_bytes",
    "RAM that filling the swap on zram would free, if programs' memory compresses as well as so far.",
)
ZRAM_TOTAL = gauge("swap_zram_total_bytes", "Swap space on zram, which lies compressed in RAM.")
ZRAM_FREE = gauge("swap_zram_free_bytes", "Swap space left on zram: no room beside RAM, see memory_compressible_bytes.")
_ADDED = (ZFS, PINNED, COMPRESSIBLE, ZRAM_TOTAL, ZRAM_FREE)

#: x86 addresses at most 52 bits. Containers may show 2^63 or 2^64: lxc/lxcfs#56, #170
_MOST_BYTES = 1 << 52
#: a part larger than its whole is as impossible: lxc/lxcfs#115, #412, #695
_WHOLES = {"MemAvailable": "MemTotal", "MemFree": "MemTotal", "SwapFree": "SwapTotal"}

SWAP_IN = counter("swap_in_bytes", "Memory read back from swap; a steady rate means RAM is too small.")
SWAP_OUT = counter("swap_out_bytes", "Memory written to swap; alone, with no swap-in, harmless.")
MAJOR_FAULTS = counter("page_major_faults", "Page faults that had to wait for a disk; a flood of them is thrashing.")
RECLAIM_SCANNED = counter("memory_reclaim_scanned_pages", "Pages scanned in search of memory to reclaim.")
RECLAIM_STOLEN = counter("memory_reclaim_stolen_pages", "Pages reclaimed for other use.")
DIRECT_SCANNED = counter(
    "memory_direct_reclaim_scanned_pages",
    "Pages that programs had to scan themselves because the kernel's own reclaim was too slow.",
)
ALLOC_STALLS = counter("memory_alloc_stalls", "Times a program had to stop and reclaim memory before it got any.")
REFAULTS = counter(
    "memory_refaulted_pages",
    "Pages needed again soon after they were reclaimed, by type (anon, file): the measure of thrashing.",
    "type",
)
OOM_KILLS = counter("oom_kills", "Processes that the kernel has killed because memory had run out.")
#: Metric, its labels, the lines of /proc/vmstat that it sums up, and the factor of their unit.
_VMSTAT: tuple[tuple[MetricSpec, tuple[str, ...], tuple[str, ...], int], ...] = (
    (SWAP_IN, (), ("pswpin",), PAGE_BYTES),
    (SWAP_OUT, (), ("pswpout",), PAGE_BYTES),
    (MAJOR_FAULTS, (), ("pgmajfault",), 1),
    (RECLAIM_SCANNED, (), ("pgscan_kswapd", "pgscan_direct", "pgscan_khugepaged", "pgscan_proactive"), 1),
    (RECLAIM_STOLEN, (), ("pgsteal_kswapd", "pgsteal_direct", "pgsteal_khugepaged", "pgsteal_proactive"), 1),
    (DIRECT_SCANNED, (), ("pgscan_direct",), 1),
    (ALLOC_STALLS, (), ("allocstall",), 1),
    (REFAULTS, ("anon",), ("workingset_refault_anon",), 1),
    (REFAULTS, ("file",), ("workingset_refault_file",), 1),
    (OOM_KILLS, (), ("oom_kill",), 1),
)


class MemorySource(Source):
    """RAM, swap and reclaim; a few reads of about 20 us, so it is read in additional ticks as well."""

    name = "memory"
    fast = True
    metrics = (*MEMINFO.values(), *_ADDED, *dict.fromkeys(spec for spec, *_ in _VMSTAT))

    def read(self) -> Sample:
        """Return all levels and counters that this kernel has; SourceError for another form of /proc/meminfo."""
        arc, pinned = zfs_arc.read(self.host), pinned_names.read(self.host)
        found = _counting(meminfo(self.host.read("/proc/meminfo")), arc, pinned)
        swap = zram.read(self.host) if found.get("SwapTotal") else None
        known = [(spec, found.get(line)) for line, spec in MEMINFO.items()]
        if swap is not None:
            known += [(COMPRESSIBLE, swap.compressible), (ZRAM_TOTAL, swap.total), (ZRAM_FREE, swap.free)]
        return Sample((*readings([*known, (ZFS, arc), (PINNED, pinned)]), *vmstat(self.host.read("/proc/vmstat"))))


def sizes(host: Host) -> dict[str, int]:
    """Return the levels in /proc/meminfo by line, in bytes; available is what really is.

    Raises:
        NoData: there is no /proc/meminfo.
        SourceError: MemTotal is missing.
    """
    return _counting(meminfo(host.read("/proc/meminfo")), zfs_arc.read(host), pinned_names.read(host))


def _counting(found: dict[str, int], arc: int | None, pinned: int | None) -> dict[str, int]:
    """Return the levels with what ZFS gives back as available, and without pinned names."""
    if "MemAvailable" in found:
        # A container with a /proc/meminfo of its own has its own slab there, but the host's names.
        taken = min(pinned or 0, found.get("SReclaimable", 0))
        found["MemAvailable"] = min(found["MemTotal"], max(0, found["MemAvailable"] - taken) + (arc or 0))
    return found


def meminfo(text: str) -> dict[str, int]:
    """Return the levels in /proc/meminfo by line, in bytes, without impossible ones; SourceError without MemTotal."""
    words = ((line, parse_uint(word)) for line, word in table(text).items())
    found = {line: value << 10 for line, value in words if value is not None and value << 10 <= _MOST_BYTES}
    if not found.get("MemTotal"):
        raise SourceError(say("/proc/meminfo does not say how much memory there is (no MemTotal)"))
    for part, whole in _WHOLES.items():
        if part in found and found[part] > found.get(whole, _MOST_BYTES):
            del found[part]
    return found


def clean_cache_bytes(seen: Snapshot) -> int | None:
    """Return the page cache that can go without a write: files in RAM (tmpfs) and unwritten data stay."""
    cached, *others = (seen.value(MEMINFO[line]) for line in ("Cached", "Shmem", "Dirty", "Writeback"))
    return None if cached is None else max(0, int(cached - sum(other or 0 for other in others)))


def vmstat(text: str) -> list[Reading]:
    """Return the counters in /proc/vmstat, which differ between kernels."""
    found = table(text)
    # one per zone; zones differ between machines
    stalls = tuple(name for name in found if name.startswith("allocstall"))
    counters = []
    for spec, labels, lines, worth in _VMSTAT:
        names = stalls if spec is ALLOC_STALLS else lines
        values = [value for name in names if (value := parse_uint(found.get(name))) is not None]
        if values:
            counters.append(Reading(spec, sum(values) * worth, labels))
    return counters
