"""/proc as containers and file systems show it: impossible sizes are unknown, zram is no room, ZFS's cache is."""

from __future__ import annotations

import pytest

from wslgpud.config import Config
from wslgpud.sources.memory import ARCSTATS, DENTRY_STATE, MemorySource, arc_bytes, meminfo, pinned_bytes, zram

GIB, MIB = 1 << 30, 1 << 20
LXCFS = {"/proc/self/mounts": "lxcfs /proc/meminfo fuse.lxcfs rw,nosuid,nodev,relatime 0 0\n"}


def levels(**kilobytes: int) -> str:
    return "".join(f"{name}: {count} kB\n" for name, count in kilobytes.items())


def found(machine, values, files):
    return values(MemorySource(machine({"/proc/vmstat": "", **files}), Config()).read())


@pytest.mark.parametrize(
    ("total", "free", "known"),
    [
        # lxc/lxcfs#56, #170: no limit is 2^64 and 2^63 bytes
        (18014398508465152, 18014398508465152, set()),
        (9007199246672720, 9007199246535028, set()),
        # lxc/lxcfs#115, #695: none at all, of which less than nothing is used
        (0, 18446744073709551488, {"SwapTotal"}),
        (0, 18446744073709346016, {"SwapTotal"}),
        # lxc/lxcfs#412: more is free than there is
        (1048576, 1048580, {"SwapTotal"}),
        # lxc/lxcfs#240: more than the limit on RAM, yet possible
        (1835008, 1834348, {"SwapTotal", "SwapFree"}),
        (7340032, 7340032, {"SwapTotal", "SwapFree"}),
    ],
)
def test_an_impossible_size_of_swap_is_unknown(total, free, known):
    sizes = meminfo(levels(MemTotal=1016340, MemAvailable=400000, SwapTotal=total, SwapFree=free))
    assert sizes.keys() - {"MemTotal", "MemAvailable"} == known


def test_more_available_than_there_is_is_unknown():
    sizes = meminfo(levels(MemTotal=100, MemAvailable=101, MemFree=100))
    assert sizes == {"MemTotal": 100 << 10, "MemFree": 100 << 10}


def arcstats(**figures: int) -> str:
    rows = "".join(f"{name:<32}4    {value}\n" for name, value in figures.items())
    return f"13 1 0x01 147 39984 4242 4242\nname                            type data\n{rows}"


CLEAN = ("mru_evictable_data", "mru_evictable_metadata", "mfu_evictable_data", "mfu_evictable_metadata")


@pytest.mark.parametrize(
    ("text", "bytes_back"),
    [
        # netdata/netdata#12843, openzfs/zfs#10255, htop-dev/htop#1002, rfjakob/earlyoom#339: all above the minimum
        (arcstats(size=10 * GIB, c=10 * GIB, c_min=GIB), 9 * GIB),
        # matthart1983/syswatch#24: right after the module was loaded, whatever its target
        (arcstats(size=MIB, c=60 * GIB, c_min=GIB), 0),
        # module/os/linux/zfs/arc_os.c: what is dirty or in use stays
        (arcstats(size=10 * GIB, c_min=GIB, **dict.fromkeys(CLEAN, GIB)), 4 * GIB),
        (arcstats(size=10 * GIB, c_min=GIB, **dict.fromkeys(CLEAN, 5 * GIB // 2)), 9 * GIB),
        (arcstats(size=10 * GIB, c_min=GIB, **dict.fromkeys(CLEAN[:3], GIB)), 9 * GIB),
        (arcstats(size=10 * GIB), None),
        ("", None),
        ("size 4 lots\nc_min 4 -1\n", None),
    ],
)
def test_zfs_gives_back_what_is_above_its_minimum_and_clean(machine, text, bytes_back):
    assert arc_bytes(machine({ARCSTATS: text})) == bytes_back


def test_the_cache_of_zfs_counts_as_available(machine, values):
    files = {
        "/proc/meminfo": levels(MemTotal=16384000, MemAvailable=838860),
        ARCSTATS: arcstats(size=10 * GIB, c_min=GIB),
    }
    seen = found(machine, values, files)
    assert seen["memory_available_bytes"] == 838860 * 1024 + 9 * GIB
    assert seen["memory_zfs_reclaimable_bytes"] == 9 * GIB

    # moghtech/komodo#1635, htop-dev/htop#863: of a container the figures of memory are its own, of ZFS the host's
    inside = found(machine, values, {**files, **LXCFS})
    assert inside["memory_available_bytes"] == 838860 * 1024
    assert "memory_zfs_reclaimable_bytes" not in inside

    more = found(machine, values, {**files, ARCSTATS: arcstats(size=64 * GIB, c_min=GIB)})
    assert more["memory_available_bytes"] == more["memory_total_bytes"]


SWAPS = "Filename                                Type            Size            Used            Priority\n"


@pytest.mark.parametrize(
    ("swaps", "stats", "told"),
    [
        # util-linux/util-linux#3903: 2.3 GB stored in 0.9 GB
        (
            "/dev/zram0 partition 8388604 7475912 100\n",
            ["2469606195 895483904 947702169 0 947702169 1304576 0 0 0\n"],
            (8388604 << 10, 912692 << 10, int((912692 << 10) * (1 - 947702169 / 2469606195))),
        ),
        # Grarak/KernelAdiutor#444: the columns of Linux 4
        (
            "/dev/zram0 partition 524284 177716 -1\n",
            ["181977088 57352941 64512000 0 106196992 3992 0\n"],
            (524284 << 10, 346568 << 10, int((346568 << 10) * (1 - 64512000 / 181977088))),
        ),
        # rfjakob/earlyoom#71: what does not compress frees nothing
        (
            "/dev/zram0 partition 6016076 1048576 5\n",
            [f"{GIB} {GIB} {GIB + MIB} 0 0 0 0\n"],
            (6016076 << 10, 4967500 << 10, 0),
        ),
        # nothing is known yet: rfjakob/earlyoom#62
        ("/dev/zram0 partition 6016076 0 5\n", ["4096 74 12288 0 12288 0 0\n"], (6016076 << 10, 6016076 << 10, None)),
        ("/dev/zram0 partition 6016076 0 5\n", [""], (6016076 << 10, 6016076 << 10, None)),
        # one for each processor, as Debian's zram-tools once made them
        (
            "/dev/zram0 partition 1000 500 5\n/dev/sdb partition 4194304 0 -2\n/dev/zram1 partition 1000 1000 5\n",
            [f"{GIB} 1 {GIB // 4} 0 0 0 0\n", f"{GIB} 1 {GIB // 4} 0 0 0 0\n"],
            (2000 << 10, 500 << 10, 375 << 10),
        ),
        ("/dev/sdb                                partition       4194304         0               -2\n", [], None),
        ("/swap/zram0 file 4194304 0 -2\n", [], None),
    ],
)
def test_zram_is_room_only_by_what_it_compresses(machine, swaps, stats, told):
    files = {f"/sys/block/zram{number}/mm_stat": text for number, text in enumerate(stats)}
    assert zram(machine({"/proc/swaps": SWAPS + swaps, **files})) == told


def test_swap_on_zram_is_told_beside_the_rest(machine, values):
    files = {
        "/proc/meminfo": levels(MemTotal=16384000, MemAvailable=8388608, SwapTotal=8388608, SwapFree=6291456),
        "/proc/swaps": f"{SWAPS}/dev/zram0 partition 4194304 2097152 100\n/dev/sdb partition 4194304 0 -2\n",
        "/sys/block/zram0/mm_stat": f"{2 * GIB} 1 {GIB} 0 0 0 0 0 0\n",
    }
    seen = found(machine, values, files)
    assert (seen["swap_total_bytes"], seen["swap_free_bytes"]) == (8 * GIB, 6 * GIB)
    assert (seen["swap_zram_total_bytes"], seen["swap_zram_free_bytes"]) == (4 * GIB, 2 * GIB)
    assert seen["memory_compressible_bytes"] == GIB


def test_a_machine_without_zram_or_zfs_tells_of_neither(machine, values):
    files = {"/proc/meminfo": levels(MemTotal=100, MemAvailable=50, SwapTotal=10, SwapFree=10), "/proc/swaps": SWAPS}
    assert not [name for name in found(machine, values, files) if "zram" in name or "zfs" in name or "compress" in name]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        # this project's own measurements on 6.18: before and with 300,000 files on a tmpfs, after the cache was dropped
        ("1099752	1081903	45	0	264459	0", 0),
        ("317979	2000	45	0	0	0", 313979),
        # each unused one may keep another in use: its folder, or the name below an overlay
        ("1000	400	45	0	0	0", 200),
        ("", None),
        ("lots	3", None),
        ("7", None),
    ],
)
def test_names_in_use_beyond_the_unused_ones_stay(machine, text, names):
    assert pinned_bytes(machine({DENTRY_STATE: text})) == (None if names is None else names * 192)


def test_names_that_stay_in_ram_do_not_count_as_available(machine, values):
    files = {
        "/proc/meminfo": levels(MemTotal=512000, MemAvailable=60000, SReclaimable=50000),
        DENTRY_STATE: "204800	0	45	0	0	0\n",
    }
    seen = found(machine, values, files)

    assert seen["memory_pinned_names_bytes"] == 38400 << 10
    assert seen["memory_available_bytes"] == (60000 - 38400) << 10


def test_names_of_the_host_are_not_more_than_the_slab_here(machine, values):
    files = {
        "/proc/meminfo": levels(MemTotal=512000, MemAvailable=60000, SReclaimable=100),
        DENTRY_STATE: "204800	0	45	0	0	0\n",
    }

    assert found(machine, values, files)["memory_available_bytes"] == (60000 - 100) << 10
