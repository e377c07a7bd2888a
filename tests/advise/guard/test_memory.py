"""The memory left is that of the tightest limit: the machine's, or a cgroup's we are in."""

from __future__ import annotations

from pathlib import Path

import pytest

from wslgpud.advise.guard.usage import MemoryLeft, memory_left
from wslgpud.host import Host, NoData

GIB = 1 << 30
MACHINE = {
    "/proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\nSwapFree: 1048576 kB\n",
    "/proc/vmstat": "oom_kill 7\n",
    "/proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
}
VERSION_1 = {"/proc/self/mounts": "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"}
BUILD = "/sys/fs/cgroup/user.slice/build.scope"


def host(folder: Path, **files: str) -> Host:
    for path, text in (MACHINE | files).items():
        file = folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Host(folder)


def test_without_a_limit_it_is_what_the_machine_has_left(tmp_path):
    files = {"/proc/self/cgroup": "0::/user.slice/build.scope\n", f"{BUILD}/memory.max": "max\n"}

    assert memory_left(host(tmp_path, **files)) == MemoryLeft(6 * GIB, 8 * GIB, 7, GIB)


def test_a_kernel_without_kill_counter_or_swap_reports_zeros(tmp_path):
    files = {"/proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n", "/proc/vmstat": "nr_free_pages 1\n"}

    assert memory_left(host(tmp_path, **files)) == MemoryLeft(6 * GIB, 8 * GIB, 0, 0)


def test_a_group_above_its_lowered_limit_has_nothing_left(tmp_path):
    files = {
        "/proc/self/cgroup": "0::/user.slice/build.scope\n",
        f"{BUILD}/memory.max": f"{GIB}\n",
        f"{BUILD}/memory.current": f"{2 * GIB}\n",
    }

    assert memory_left(host(tmp_path, **files)) == MemoryLeft(0, GIB)


def test_the_limit_of_a_group_counts_and_its_page_cache_is_free(tmp_path):
    files = {
        "/proc/self/cgroup": "0::/user.slice/build.scope\n",
        f"{BUILD}/memory.max": f"{4 * GIB}\n",
        f"{BUILD}/memory.current": f"{3 * GIB}\n",
        f"{BUILD}/memory.stat": f"anon {2 * GIB}\ninactive_file {GIB // 2}\nactive_file {GIB // 2}\n",
        f"{BUILD}/memory.events": "low 0\nhigh 0\nmax 9\noom 1\noom_kill 2\n",
    }

    assert memory_left(host(tmp_path, **files)) == MemoryLeft(2 * GIB, 4 * GIB, 2)


def test_the_limit_of_a_group_above_counts_too(tmp_path):
    files = {
        "/proc/self/cgroup": "0::/user.slice/build.scope\n",
        f"{BUILD}/memory.max": "max\n",
        "/sys/fs/cgroup/user.slice/memory.max": f"{2 * GIB}\n",
        "/sys/fs/cgroup/user.slice/memory.current": f"{GIB}\n",
    }

    assert memory_left(host(tmp_path, **files)) == MemoryLeft(GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("mounts", "line", "folder", "limit", "used"),
    [
        ({}, "0::/", "/sys/fs/cgroup", "memory.max", "memory.current"),
        (VERSION_1, "4:memory:/docker/abc", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_in_a_container_its_own_limit_counts(tmp_path, mounts, line, folder, limit, used):
    """Its view of the cgroups begins at its own."""
    files = {"/proc/self/cgroup": f"{line}\n", f"{folder}/{limit}": f"{2 * GIB}\n", f"{folder}/{used}": f"{GIB}\n"}

    assert memory_left(host(tmp_path, **mounts, **files)) == MemoryLeft(GIB, 2 * GIB)


def test_groups_of_version_1_say_it_in_other_words(tmp_path):
    folder = "/sys/fs/cgroup/memory/docker/abc"
    files = {
        "/proc/self/cgroup": "12:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n",
        f"{folder}/memory.limit_in_bytes": f"{2 * GIB}\n",
        f"{folder}/memory.usage_in_bytes": f"{GIB}\n",
        f"{folder}/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB // 4}\ntotal_active_file 0\n",
        f"{folder}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes": "9223372036854771712\n",
    }

    assert memory_left(host(tmp_path, **VERSION_1, **files)) == MemoryLeft(GIB + GIB // 4, 2 * GIB, 3)


def test_the_cache_that_zfs_gives_back_is_left_to_a_run(tmp_path):
    arc = "/proc/spl/kstat/zfs/arcstats"
    evictable = "".join(f"{kind} 4 {GIB}\n" for kind in ("mru_evictable_data", "mfu_evictable_data"))
    evictable += "".join(f"{kind} 4 0\n" for kind in ("mru_evictable_metadata", "mfu_evictable_metadata"))
    files = {arc: f"size 4 {2 * GIB}\nc_min 4 {GIB // 2}\n{evictable}"}

    assert memory_left(host(tmp_path, **files)) == MemoryLeft(6 * GIB + 3 * GIB // 2, 8 * GIB, 7, GIB)


def test_unknown_memory_is_not_taken_for_no_memory_left(tmp_path):
    with pytest.raises(NoData, match="does not show"):
        memory_left(host(tmp_path, **{"/proc/meminfo": "MemTotal: 8388608 kB\n"}))


@pytest.mark.parametrize(
    ("mm_stat", "room_bytes"),
    # orig_data_size compr_data_size mem_used_total: a third of what is swapped out stays in RAM; nothing known yet
    [("402653184 120000000 134217728 0 0 0 0 0\n", 512 << 20), ("0 0 0 0 0 0 0 0\n", 0)],
)
def test_free_swap_on_zram_is_room_only_as_far_as_it_shrinks(tmp_path, mm_stat, room_bytes):
    files = {
        "/proc/self/cgroup": "0::/\n",
        "/proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\nSwapTotal: 1048576 kB\nSwapFree: 786432 kB\n",
        "/proc/swaps": "Filename Type Size Used Priority\n/dev/zram0 partition 1048576 262144 100\n",
        "/sys/block/zram0/mm_stat": mm_stat,
    }

    assert memory_left(host(tmp_path, **files)).swap_bytes == room_bytes
