"""RAM, swap and pressure: levels from /proc/meminfo, reclaim activity from /proc/vmstat, stalls from /proc/pressure.

Three corrections of the levels:
ZFS's cache counts as used, yet is given back on demand. Names of files in use (dentries) count as available, yet stay:
a machine that fills up with small files on a tmpfs is killed while MemAvailable still has a tenth left. Swap on zram
lies compressed in RAM: free space there is no room beside RAM.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from wslgpud.host import Host, NoData, SourceError
from wslgpud.metrics import MetricSpec, counter, gauge
from wslgpud.model import Reading, Sample, Snapshot
from wslgpud.sources import Source, decimal, parse_uint, readings, table
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
_CORRECTIONS = (ZFS, PINNED, COMPRESSIBLE, ZRAM_TOTAL, ZRAM_FREE)

#: x86 addresses at most 52 bits. Containers may show 2^63 or 2^64: lxc/lxcfs#56, #170
_MAX_BYTES = 1 << 52
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


ARCSTATS = "/proc/spl/kstat/zfs/arcstats"
#: by state of ZFS's cache (ARC) and kind of block: the rest of its size is in use or not written yet
_ARC_CLEAN = tuple(f"{state}_evictable_{kind}" for state in ("mru", "mfu") for kind in ("data", "metadata"))
DENTRY_STATE = "/proc/sys/fs/dentry-state"
#: size of a struct dentry on 64-bit kernels from 4.x on, as /sys/kernel/slab/dentry/object_size tells
_DENTRY_BYTES = 192
_ZRAM = re.compile(r"^/dev/(zram\d{1,4})\s+partition\s+(\d{1,15})\s+(\d{1,15})\s", re.MULTILINE)
#: how well memory compresses is known once this much lies on zram
_ENOUGH_BYTES = 64 << 20


class Zram(NamedTuple):
    """Swap on zram in bytes; ``compressible`` is the RAM that filling the rest would free, None where not known yet."""

    total: int
    free: int
    compressible: int | None


class MemorySource(Source):
    """RAM, swap and reclaim; a few reads of about 20 us, so it is read in additional ticks as well."""

    name = "memory"
    fast = True
    metrics = (*MEMINFO.values(), *_CORRECTIONS, *dict.fromkeys(spec for spec, *_ in _VMSTAT))

    def read(self) -> Sample:
        """Return all levels and counters that this kernel has; SourceError for another form of /proc/meminfo."""
        arc, pinned = arc_bytes(self.host), pinned_bytes(self.host)
        levels = _corrected(meminfo(self.host.read("/proc/meminfo")), arc, pinned)
        known = [*((spec, levels.get(line)) for line, spec in MEMINFO.items()), (ZFS, arc), (PINNED, pinned)]
        if levels.get("SwapTotal") and (swap := zram(self.host)):
            known += [(COMPRESSIBLE, swap.compressible), (ZRAM_TOTAL, swap.total), (ZRAM_FREE, swap.free)]
        return Sample((*readings(known), *vmstat(self.host.read("/proc/vmstat"))))


def sizes(host: Host) -> dict[str, int]:
    """Return the levels in /proc/meminfo by line, in bytes, with the corrections above.

    Raises:
        NoData: there is no /proc/meminfo.
        SourceError: MemTotal is missing.
    """
    return _corrected(meminfo(host.read("/proc/meminfo")), arc_bytes(host), pinned_bytes(host))


def _corrected(levels: dict[str, int], arc: int | None, pinned: int | None) -> dict[str, int]:
    """Return the levels with ZFS's cache as available, and without pinned names."""
    if "MemAvailable" in levels:
        # A container with a /proc/meminfo of its own has its own slab there, but the host's names.
        taken = min(pinned or 0, levels.get("SReclaimable", 0))
        levels["MemAvailable"] = min(levels["MemTotal"], max(0, levels["MemAvailable"] - taken) + (arc or 0))
    return levels


def arc_bytes(host: Host) -> int | None:
    """Return the bytes of its cache that ZFS gives back on demand; None without ZFS, or where it does not tell.

    As its own shrinker counts them for Linux (module/os/linux/zfs/arc_os.c: arc_evictable_memory): the part above the
    minimum, but no more than its clean blocks, which releases before 0.7 do not count. In a container with a
    /proc/meminfo of its own (lxcfs) ZFS's figures are still the host's: https://github.com/moghtech/komodo/pull/1635
    """
    text = host.read_optional(ARCSTATS)
    if not text or " /proc/meminfo fuse" in host.read_optional("/proc/self/mounts"):
        return None
    counts = {row[0]: parse_uint(row[2]) for line in text.splitlines() if len(row := line.split()) == 3}
    size, minimum = counts.get("size"), counts.get("c_min")
    if size is None or minimum is None:
        return None
    clean = [value for name in _ARC_CLEAN if (value := counts.get(name)) is not None]
    return min(max(0, size - minimum), sum(clean) if len(clean) == len(_ARC_CLEAN) else size)


def pinned_bytes(host: Host) -> int | None:
    """Return the memory of names that cannot be freed; None where the kernel does not tell.

    The first two numbers are all names and those that nobody uses. Each of the latter may keep one in use that goes
    with it (its folder, or the name below an overlay), so that only the rest is certain; as memory gets scarce, the
    kernel frees the unused ones first. https://docs.kernel.org/admin-guide/sysctl/fs.html#dentry-state
    """
    words = host.read_optional(DENTRY_STATE).split()
    total, unused = map(parse_uint, words[:2]) if len(words) > 1 else (None, None)
    return None if total is None or unused is None else max(0, total - 2 * unused) * _DENTRY_BYTES


def zram(host: Host) -> Zram | None:
    """Return all swap on zram together; None where there is none.

    Swapping out F bytes frees F and takes F x held / stored: pages that a GPU program computes may not shrink at all,
    and zsmalloc's own needs count. https://docs.kernel.org/admin-guide/blockdev/zram.html#stats
    """
    total = free = stored = held = 0
    for name, size, used in _ZRAM.findall(host.read_optional("/proc/swaps")):
        total += int(size) << 10
        free += max(0, int(size) - int(used)) << 10
        # orig_data_size compr_data_size mem_used_total mem_limit ...
        words = host.read_optional(f"/sys/block/{name}/mm_stat").split()
        original, taken = (parse_uint(words[column]) if len(words) > 2 else None for column in (0, 2))
        if original is not None and taken is not None:
            stored, held = stored + original, held + taken
    if not total:
        return None
    return Zram(total, free, int(free * max(0.0, 1.0 - held / stored)) if stored >= _ENOUGH_BYTES else None)


def free_swap_bytes(host: Host, levels: Mapping[str, int]) -> int:
    """Return the free swap of ``/proc/meminfo`` as room beside RAM: of zram only the RAM that filling it would free."""
    free = levels.get("SwapFree", 0)
    swap = zram(host) if free else None
    return free if swap is None else max(0, free - swap.free) + (swap.compressible or 0)


def meminfo(text: str) -> dict[str, int]:
    """Return the levels in /proc/meminfo by line, in bytes, without impossible ones; SourceError without MemTotal."""
    words = ((line, parse_uint(word)) for line, word in table(text).items())
    found = {line: value << 10 for line, value in words if value is not None and value << 10 <= _MAX_BYTES}
    if not found.get("MemTotal"):
        raise SourceError(say("/proc/meminfo does not say how much memory there is (no MemTotal)"))
    for part, whole in _WHOLES.items():
        if part in found and found[part] > found.get(whole, _MAX_BYTES):
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


#: the resources that programs wait for
PRESSED = ("memory", "cpu", "io")

WAITING_SECONDS, STALLED_SECONDS = (
    counter(f"pressure_{state}_seconds", text, "resource", decimals=6)
    for state, text in (
        ("waiting", 'Time in which at least one program waited for the resource (memory, cpu, io); PSI\'s "some".'),
        ("stalled", 'Time in which every program waited for the resource, so nothing got done; PSI\'s "full".'),
    )
)
WAITING_RATIO, STALLED_RATIO = (
    gauge(f"pressure_{state}_ratio", f"The kernel's own average of {text}", "resource", "window", decimals=4)
    for state, text in (
        ("waiting", "waiting over the last 10 s or 60 s."),
        ("stalled", "stalls over the last 10 s or 60 s; memory above 0.2 is thrashing."),
    )
)
_KINDS = {"some": (WAITING_SECONDS, WAITING_RATIO), "full": (STALLED_SECONDS, STALLED_RATIO)}
_WINDOWS = {"avg10": "10s", "avg60": "60s"}


class PressureSource(Source):
    """PSI of the whole machine (https://docs.kernel.org/accounting/psi.html).

    WSL's 5.15 kernel has none; its 6.18 has it built in but switched off
    (``kernelCommandLine=psi=1`` under ``[wsl2]`` in .wslconfig switches it on).
    """

    name = "pressure"
    fast = True
    metrics = (WAITING_SECONDS, STALLED_SECONDS, WAITING_RATIO, STALLED_RATIO)

    def read(self) -> Sample:
        """Return the kernel's PSI; NoData where it has none, or it is switched off."""
        found: list[Reading] = []
        for resource in PRESSED:
            try:
                found += pressure(resource, self.host.read(f"/proc/pressure/{resource}"))
            except NoData:
                continue
            except SourceError as error:
                # Compiled in but off: the file exists, reading it fails with "not supported".
                if getattr(error.__cause__, "errno", None) != errno.EOPNOTSUPP:
                    raise
        if not found:
            raise NoData(say("this kernel has no pressure stall information, or it is off (boot with psi=1)"))
        return Sample(tuple(found))


def pressure(resource: str, text: str) -> list[Reading]:
    """Return the readings in a file of /proc/pressure."""
    found: list[Reading] = []
    for line in text.splitlines():
        kind, *fields = line.split() or ("",)
        # The kernel reports "full" for cpu as zero: it has no meaning for a whole machine.
        if kind not in _KINDS or (kind == "full" and resource == "cpu"):
            continue
        seconds, ratio = _KINDS[kind]
        values = dict(field.partition("=")[::2] for field in fields)
        if (total := parse_uint(values.get("total"))) is not None:
            found.append(Reading(seconds, total / 1e6, (resource,)))
        for name, window in _WINDOWS.items():
            if (percent := decimal(values.get(name))) is not None:
                # The kernel's running averages overshoot 100 by a rounding error.
                found.append(Reading(ratio, round(min(percent, 100) / 100, 4), (resource, window)))
    return found
