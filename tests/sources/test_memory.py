"""RAM, swap and reclaim are the kernel's own numbers, in bytes and counts."""

from __future__ import annotations

import pytest

from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources import memory
from wslgpud.sources.memory import MemorySource, meminfo

MEMINFO = """\
MemTotal:       26220580 kB
MemFree:        26108576 kB
MemAvailable:   25898488 kB
Buffers:            4716 kB
Cached:             8320 kB
SwapCached:           12 kB
Active(anon):       1568 kB
SwapTotal:       7340032 kB
SwapFree:        7000000 kB
Dirty:                40 kB
AnonPages:         86996 kB
Shmem:              8788 kB
SReclaimable:     153892 kB
CommitLimit:    12342048 kB
Committed_AS:     147220 kB
HugePages_Total:       4
HugePages_Free:        1
Hugepagesize:       2048 kB
Hugetlb:            8192 kB
"""
VMSTAT = """\
nr_free_pages 945491
workingset_refault_anon 11
workingset_refault_file 22
pswpin 3
pswpout 5
allocstall_dma32 1
allocstall_normal 20
allocstall_movable 300
pgmajfault 1494
pgsteal_kswapd 1000
pgsteal_direct 7
pgscan_kswapd 2000
pgscan_direct 70
pgscan_direct_throttle 9
pgscan_anon 1
oom_kill 2
"""


def test_levels_are_in_bytes(machine, values):
    host = machine({"/proc/meminfo": MEMINFO, "/proc/vmstat": VMSTAT})
    found = values(MemorySource(host, Config()).read())
    assert found["memory_total_bytes"] == 26220580 * 1024
    assert found["memory_available_bytes"] == 25898488 * 1024
    assert found["swap_total_bytes"] - found["swap_free_bytes"] == 340032 * 1024
    assert found["memory_committed_bytes"] == 147220 * 1024
    assert found["memory_hugepages_bytes"] == 8192 * 1024
    assert found["memory_slab_reclaimable_bytes"] == 153892 * 1024


def test_counters_are_summed_over_zones_and_kinds_of_reclaim(machine, values):
    host = machine({"/proc/meminfo": MEMINFO, "/proc/vmstat": VMSTAT})
    found = values(MemorySource(host, Config()).read())
    assert found["swap_in_bytes_total"] == 3 * memory.PAGE_BYTES
    assert found["swap_out_bytes_total"] == 5 * memory.PAGE_BYTES
    assert found["memory_alloc_stalls_total"] == 321
    assert found["memory_reclaim_scanned_pages_total"] == 2070
    assert found["memory_reclaim_stolen_pages_total"] == 1007
    assert found["memory_direct_reclaim_scanned_pages_total"] == 70
    assert found["memory_refaulted_pages_total{anon}"] == 11
    assert found["memory_refaulted_pages_total{file}"] == 22
    assert found["page_major_faults_total"] == 1494
    assert found["oom_kills_total"] == 2


def test_what_this_kernel_does_not_tell_is_absent(machine, values):
    # WSL1 has no MemAvailable: https://github.com/microsoft/WSL/issues/296
    host = machine({"/proc/meminfo": "MemTotal: 100 kB\nMemFree: 50 kB\n", "/proc/vmstat": "pgmajfault 1\n"})
    assert values(MemorySource(host, Config()).read()) == {
        "memory_total_bytes": 102400,
        "memory_free_bytes": 51200,
        "page_major_faults_total": 1,
    }


@pytest.mark.parametrize("text", ["", "MemFree: 5 kB\n", "MemTotal: 0 kB\nMemFree: 5 kB\n", "MemTotal: lots\n"])
def test_a_meminfo_without_a_total_is_an_error_that_says_so(text):
    with pytest.raises(SourceError, match="MemTotal"):
        meminfo(text)


def test_a_machine_with_nothing_available_is_read(machine, values):
    files = {"/proc/meminfo": "MemTotal: 5 kB\nMemAvailable: 0 kB\n", "/proc/vmstat": ""}
    assert values(MemorySource(machine(files), Config()).read()) == {
        "memory_total_bytes": 5 << 10,
        "memory_available_bytes": 0,
    }


def test_a_machine_without_a_meminfo_has_no_data(machine):
    with pytest.raises(NoData, match="there is no /proc/meminfo"):
        MemorySource(machine({"/proc/vmstat": VMSTAT}), Config()).read()


def test_this_machine_has_more_memory_than_it_has_available(values):
    found = values(MemorySource(Host(), Config()).read())
    assert found["memory_total_bytes"] > found["memory_available_bytes"] > 0
    assert found["page_major_faults_total"] > 0


def test_memory_serves_the_extra_ticks():
    assert MemorySource.fast
    assert MemorySource.period_seconds == 0
