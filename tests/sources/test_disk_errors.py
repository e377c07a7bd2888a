"""A disk that fails is told from one that is busy, taken away, empty or asked for what it cannot do."""

from __future__ import annotations

import pytest

from tests.sources.test_kernel_log import read
from wslgpud.sources.kernel_lines import BRIDGE, LineParser, failing_disk

STORVSC = "hv_storvsc fd1d2cbd-ce7c-535c-966b-eb5f811c95f0: "


@pytest.mark.parametrize(
    ("line", "device"),
    [
        # microsoft/WSL#41482, #9173, #10873: read and written in Windows, and not; the last words differ by kernel
        (f"{STORVSC}tag#542 cmd 0x28 status: scsi 0x2 srb 0x4 host 0xc0000001", BRIDGE),
        (f"{STORVSC}tag#208 cmd 0x28 status: scsi 0x2 srb 0x4 hv 0xc0000001", BRIDGE),
        (f"{STORVSC}tag#674 cmd 0x2a status: scsi 0x2 srb 0x4 hv 0xc0000001", BRIDGE),
        # drivers/scsi/storvsc_drv.c of 4.19
        (f"{STORVSC}cmd 0x2a scsi status 0x2 srb status 0x4", BRIDGE),
        # microsoft/WSL#5895
        ("blk_update_request: I/O error, dev sde, sector 0 op 0x1:(WRITE) flags 0x800 phys_seg 0 prio class 0", "sde"),
        ("Buffer I/O error on dev sde, logical block 134184960, lost sync page write", "sde"),
        ("JBD2: Error -5 detected when updating journal superblock for sde-8.", "sde"),
        ("Aborting journal on device sde-8.", "sde"),
        ("EXT4-fs error (device sde): ext4_put_super:1188: comm Xwayland: Couldn't clean up the journal", "sde"),
        ("EXT4-fs (sde): Remounting filesystem read-only", "sde"),
        # Requiem4Eternity/Appstream#107 (4.19), openebs/openebs#1433, archiecobbs/s3backer#122
        ("print_req_error: I/O error, dev sdc, sector 1098288304 flags 0", "sdc"),
        ("blk_update_request: critical medium error, dev sdb, sector 5120", "sdb"),
        ("print_req_error: critical medium error, dev sdn, sector 33928", "sdn"),
        # oxidecomputer/crucible#1239; the form since 5.16
        (
            "blk_update_request: I/O error, dev nvme0n1, sector 100492368 op 0x1:(WRITE) flags 0x104000 phys_seg 16",
            "nvme0n1",
        ),
        ("I/O error, dev sdc, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2", "sdc"),
        # xcat2/xcat-core#1175, raspberrypi/linux#703
        ("Buffer I/O error on device dm-0, logical block 2477053", "dm-0"),
        (
            (
                "EXT4-fs warning (device sdc): ext4_end_bio:316: I/O error -19 writing to inode 10223621 (offset "
                "50331648 size 6148096 starting block 14409150)"
            ),
            "sdc",
        ),
        # fs/jbd2/journal.c, fs/ext4/inode.c
        ("JBD2: Detected IO errors while flushing file data on dm-0-8", "dm-0"),
        ("JBD2: I/O error when updating journal superblock for sdb1-8.", "sdb1"),
        (
            (
                "EXT4-fs (sda1): failed to convert unwritten extents to written extents -- potential data loss!  "
                "(inode 7371563, error -5)"
            ),
            "sda1",
        ),
        # dm-vdo/kvdo#25, scylladb/scylla-tools-java#217, cloudflare/linux#1
        ('XFS (dm-7): metadata I/O error: block 0x280000010 ("xlog_bread_noalign") error 5 numblks 8', "dm-7"),
        (
            'XFS (nvme0n1p1): metadata I/O error in "xfs_trans_read_buf_map" at daddr 0x8e8c20 len 8 error 74',
            "nvme0n1p1",
        ),
        ("BTRFS error (device dm-0): bdev /dev/mapper/root_1 errs: wr 0, rd 3535, flush 0, corrupt 0, gen 0", "dm-0"),
    ],
)
def test_a_disk_that_fails_is_named(line, device):
    assert failing_disk(line) == device


@pytest.mark.parametrize(
    "line",
    [
        # what Windows had no memory for (STATUS_WORKING_SET_QUOTA): the disk is mounted 0.2 s later
        f"{STORVSC}tag#663 cmd 0x2a status: scsi 0x0 srb 0x4 hv 0xc00000a1",
        # drivers/scsi/storvsc_drv.c: a disk that is gone, one with a reason (its size has changed), questions
        f"{STORVSC}tag#520 cmd 0x25 status: scsi 0x0 srb 0x20 hv 0xc0000001",
        f"{STORVSC}tag#12 cmd 0x28 status: scsi 0x2 srb 0x82 hv 0xc0000001",
        f"{STORVSC}tag#12 cmd 0x28 status: scsi 0x2 srb 0x84 hv 0xc0000001",
        f"{STORVSC}tag#0 cmd 0x0 status: scsi 0x2 srb 0x4 hv 0xc0000001",
        f"{STORVSC}tag#199 cmd 0x85 status: scsi 0x2 srb 0x6 hv 0xc0000001",
        f"{STORVSC}tag#3 cmd 0x42 status: scsi 0x2 srb 0x4 hv 0xc0000001",
        # markfasheh/ocfs2-tools#46, voidlinux/void-packages#4804: a drive without a disk
        "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
        "blk_update_request: I/O error, dev fd0, sector 0",
        "blk_update_request: I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 0",
        # the file below has its own line
        "Buffer I/O error on device loop0, logical block 34304",
        "EXT4-fs warning (device zram0): ext4_end_bio:343: I/O error 10 writing to inode 16386 starting block 159744)",
        # block/blk-core.c: blk_op_str; to discard is advice
        "I/O error, dev sda, sector 4194304 op 0x3:(DISCARD) flags 0x800 phys_seg 1 prio class 2",
        "I/O error, dev sda, sector 12 op 0x9:(WRITE_ZEROES) flags 0x800 phys_seg 0 prio class 2",
        "critical target error, dev sda, sector 2048 op 0x3:(DISCARD) flags 0x800 phys_seg 1 prio class 2",
        # fs/btrfs/volumes.c: counts of long ago, at a mount
        "BTRFS info (device sdc): bdev /dev/sdc errs: wr 1, rd 0, flush 0, corrupt 0, gen 0",
        "EXT4-fs (sdd): recovery complete",
        "EXT4-fs (sdc): mounted filesystem with ordered data mode. Opts: discard,errors=remount-ro,data=ordered",
        # a program's name comes first in its own line
        "I/O error, dev s[42]: segfault at 0 ip 0 sp 0 error 4",
    ],
)
def test_a_disk_that_is_well_is_not_called_failing(line):
    assert failing_disk(line) == ""


# https://github.com/microsoft/WSL/issues/40389
TAKEN_AWAY = [
    "device offline error, dev sde, sector 0 op 0x1:(WRITE) flags 0x800 phys_seg 0 prio class 2",
    "EXT4-fs (sde): shut down requested (2)",
    "Aborting journal on device sde-8.",
    "Buffer I/O error on dev sde, logical block 134184960, lost sync page write",
    "JBD2: I/O error when updating journal superblock for sde-8.",
    "sd 0:0:0:5: [sde] Synchronizing SCSI cache",
]


def test_a_disk_that_was_taken_away_is_not_called_failing():
    parser = LineParser()

    def failing(line: str) -> str:
        event = parser.add(line)
        return str(event.fields["device"]) if event else ""

    assert [failing(line) for line in TAKEN_AWAY] == [""] * len(TAKEN_AWAY)
    assert failing("Buffer I/O error on dev sde1, logical block 1, lost async page write") == ""
    assert failing("Buffer I/O error on dev sd, logical block 1, lost async page write") == "sd"
    failing("sd 0:0:0:5: [sde] Attached SCSI disk")
    assert failing("Buffer I/O error on dev sde, logical block 1, async page read") == "sde"


@pytest.mark.parametrize(
    "line",
    [
        "sd 0:0:0:0: [sda] Starting disk",
        "PM: suspend exit",
        "PM: hibernation exit",
        "PM: hibernation: hibernation exit",  # from 5.5 on
    ],
)
def test_a_disk_that_fails_after_a_sleep_is_named(line):
    parser = LineParser()
    for text in ("PM: suspend entry (deep)", "sd 0:0:0:0: [sda] Synchronizing SCSI cache", line):
        assert parser.add(text) is None

    event = parser.add("I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2")
    assert event is not None
    assert event.fields["device"] == "sda"


def test_a_flood_of_disk_errors_is_one_event_a_minute(machine, values):
    # microsoft/WSL#9173: hundreds a second
    flood = [f"{STORVSC}tag#683 cmd 0x28 status: scsi 0x2 srb 0x4 hv 0xc0000001"] * 121
    sample = read(machine, *flood, "Buffer I/O error on dev sdc, logical block 7, async page read")

    told = [(event.kind, event.fields["device"]) for event in sample.events]
    assert told == [("disk_error", BRIDGE)] * 3 + [("disk_error", "sdc")]
    assert values(sample)[f"kernel_disk_errors_total{{{BRIDGE}}}"] == 121
    assert str(sample.events[-1].message).startswith("Buffer I/O error on dev sdc")
