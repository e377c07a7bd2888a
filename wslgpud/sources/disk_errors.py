"""Lines of the kernel log that say that a disk fails: reads or writes that did not succeed, file systems that gave up.

Under WSL2 a disk is a file in Windows: when the drive below it is full or fails, this is what Linux sees of it.
"""

from __future__ import annotations

import re

#: Not loop, floppy, CD and network devices, which fail without harm, nor RAM disks: a full one is no failing disk.
_DISK = r"(?!loop|fd\d|sr\d|ram\d|zram|nbd)(dm-\d{1,5}|[a-z][\w!]{1,30})"
#: in the log, WSL's bridge to the virtual disks stands for the disk
BRIDGE = "hv_storvsc"
_FAILED = tuple(
    re.compile(pattern)
    for pattern in (
        # drivers/scsi/storvsc_drv.c, storvsc_on_io_completion: each command that did not succeed. What counts is that
        # the disk itself (scsi 2: check condition) refuses to read, write or flush, without a reason (srb 4: no sense
        # data). A reason may be as harmless as a new size; what Windows has no memory for (scsi 0, host 0xc00000a1)
        # succeeds later; disks need not know all other commands. What is given up in the end, the block layer tells.
        (
            rf"({BRIDGE}) [\w-]{{1,40}}: (?:tag#\d{{1,10}} )?cmd 0x(?:8|a|28|2a|88|8a|a8|aa|35|91) "
            r"(?:status: scsi|scsi status) 0x2 srb(?: status)? 0x4\b"
        ),
        # block/blk-core.c, blk_print_req_error, and its forms since 3.0; a disk may refuse to discard blocks (3, 5) or
        # to write zeroes (9).
        (
            r"(?:blk_update_request: |print_req_error: |end_request: )?"
            r"(?:I/O|critical medium|critical space allocation|timeout|recoverable transport|protection) error, "
            rf"dev {_DISK}, sector \d{{1,20}}\b(?! op 0x[359]:)"
        ),
        rf"Buffer I/O error on dev(?:ice)? {_DISK}, logical block ",  # fs/buffer.c
        # fs/ext4: super.c, page-io.c, inode.c
        rf"EXT4-fs error \(device {_DISK}\)",
        rf"EXT4-fs warning \(device {_DISK}\): ext4_end_bio:\d{{1,6}}: I/O error",
        (
            rf"EXT4-fs \({_DISK}\): (?:Remounting filesystem read-only|I/O error while writing superblock"
            r"|failed to convert unwritten extents)"
        ),
        # fs/jbd2/journal.c: the journal is inode 8 of the disk
        rf"(?:Aborting journal on device|JBD2: .{{1,60}} (?:superblock|file data) (?:for|on)) {_DISK}-8",
        # fs/xfs; fs/btrfs/volumes.c, which tells the counts of earlier errors as well, but as information
        rf"XFS \({_DISK}\): (?:metadata I/O error|log I/O error|writeback error)",
        rf"BTRFS error \(device {_DISK}[^)]{{0,40}}\): bdev .{{1,80}} errs: wr ",
    )
)
#: A disk that is taken away while it is in use (Docker Desktop's, a USB stick) loses what was not written, yet it does
#: not fail: https://github.com/microsoft/WSL/issues/40389. block/blk-core.c, fs/ext4/ioctl.c, drivers/scsi/sd.c
_GONE = re.compile(
    r"device offline error, dev (\w{1,30}),|EXT4-fs \((\w{1,30})\): shut down requested"
    r"|sd [\d:]{1,20}: \[(\w{1,30})\] Synchronizing SCSI cache"
)
_BACK = re.compile(r"sd [\d:]{1,20}: \[(\w{1,30})\] Attached SCSI")
_PARTITION = re.compile(r"(?<=^sd[a-z])\d+$|(?<=^sd[a-z][a-z])\d+$")


def failing_disk(text: str) -> str:
    """Return the disk, partition or bridge to Windows that fails by this line alone; empty: none."""
    return next((match[1] for pattern in _FAILED if (match := pattern.match(text)) is not None), "")


class FailingDisks:
    """Tells which disk fails by a line, unless it has been taken away."""

    def __init__(self) -> None:
        self._gone: set[str] = set()

    def add(self, text: str) -> str:
        """Return the disk that fails by the next line; empty: none."""
        if match := _GONE.match(text):
            self._gone.add(_whole(match[match.lastindex or 1]))
        elif match := _BACK.match(text):
            self._gone.discard(match[1])
        device = failing_disk(text)
        return "" if _whole(device) in self._gone else device


def _whole(device: str) -> str:
    """Return the disk of a partition."""
    return _PARTITION.sub("", device)
