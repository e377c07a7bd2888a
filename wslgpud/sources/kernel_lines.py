"""The meaning of lines of the kernel log: OOM kills, errors of WSL's GPU driver, of NVIDIA's, and of disks. Pure.

All patterns match at the start of a line: names of programs, cgroups and mount options, which any user can choose, come
later. Under WSL2 a disk is a file in Windows: when the drive below it is full or fails, this is what Linux sees of it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import NamedTuple

from wslgpud.security.redaction import named
from wslgpud.words import template

_RECORD = re.compile(r"(\d{1,10}),(\d{1,18}),(\d{1,18}),[^;]*;([^\n]*)")
# mm/oom_kill.c: dump_global_header, __oom_kill_process; the same from 5.3 on, without which we do not run.
_CONSTRAINT = re.compile(r"oom-kill:constraint=(\w{1,40}),(.*),task=.*,pid=(\d{1,10}),uid=\d{1,10}$")
# mm/memcontrol.c: mem_cgroup_print_oom_group; the processes that follow are killed with the victim (memory.oom.group).
_TOGETHER = re.compile(r"Tasks in .* are going to be killed due to memory\.oom\.group set$")
_GROUP = re.compile(r",(?:oom_memcg|task_memcg)=(/.*?)(?:,task_memcg=/.*)?$")
_KILLED = re.compile(
    r"(Memory cgroup out|Out) of memory(?: \(oom_kill_allocating_task\))?: Killed process (\d{1,10}) \((.*)\) "
    r"total-vm:(\d{1,15})kB, anon-rss:(\d{1,15})kB, file-rss:(\d{1,15})kB, shmem-rss:(\d{1,15})kB"
)
# mm/page_alloc.c: warn_alloc; kernel/workqueue.c: print_worker_info, which no other program's name can imitate. The
# ring buffers of a new channel to the host need 512 KiB in one piece: https://github.com/microsoft/WSL/issues/40795
_UNALLOCATED = re.compile(r"kworker/[\w:+-]{1,20}: page allocation failure: order:(\d{1,3}), mode:")
_CHANNEL = re.compile(r"Workqueue: hv_\w{1,20} vmbus_add_channel_work")
# drivers/hv/dxgkrnl: DXG_ERR prints the function before the text.
_DXG = re.compile(r"misc dxg: dxgk: (\w{1,60}): .*fail\w*:? (-?\d{1,10})\b")
#: the number of pages allocated, unless it is an errno (dxgvmbus.c, create_existing_sysmem)
_PAGES = "get_user_pages_fast failed"
#: Questions, which dxgkrnl answers with an error at every boot and whenever a program asks for something that the host
#: does not have; nothing was to be changed, so nothing has failed, whatever the error: drivers/hv/dxgkrnl/ioctl.c;
#: https://github.com/microsoft/WSL/issues/11293, https://github.com/microsoft/WSL/issues/10595
_QUESTION = re.compile(r"dxgkio_(?:query_\w{1,40}|is_feature_enabled|enum_(?:adapters\d?|processes))")
# https://docs.nvidia.com/deploy/xid-errors/; at a start in three lines, in one record:
# https://github.com/NVIDIA/NVSentinel/issues/155
_FALLEN = "79"
_OFF_THE_BUS = re.compile(
    r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?([\da-fA-F:.]{1,40}?)(?::? |\\x0a).*fallen off the bus"
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([\w:.]{1,40})\): (\d{1,5}),")
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
_BACK = re.compile(r"sd [\d:]{1,20}: \[(\w{1,30})\] (?:Attached SCSI|Starting disk)")
#: Caches are synchronized for a sleep as well, from which not every disk says that it is back: kernel/power/suspend.c,
#: hibernate.c
_AWAKE = re.compile(r"PM: (?:suspend|(?:hibernation: )?hibernation) exit")
_PARTITION = re.compile(r"(?<=^sd[a-z])\d+$|(?<=^sd[a-z][a-z])\d+$")
#: last lines of a machine that crashes or becomes unusable; the same in 4.19 and 6.18
PRECEDES_THE_END = {
    # kernel/rcu: tree_stall.h, tree_exp.h; kernel/watchdog.c, hung_task.c, workqueue.c. A name of a task has at most 15
    # characters, of a worker 63.
    "stall": re.compile(
        r"(?:rcu: )?INFO: rcu_\w{1,20} (?:self-)?detected (?:expedited )?stall"
        r"|(?:NMI )?watchdog: (?:CPU\d{1,5}: )?(?:BUG: soft lockup - CPU#|Watchdog detected hard LOCKUP)"
        r"|INFO: task .{1,64}:\d{1,10} blocked (?:in I/O wait )?for more than \d{1,10} seconds"
        r"|BUG: workqueue lockup - pool"
    ),
    "init": re.compile(r"(?:.{0,40}: )?Killed process \d{1,10} \((?:systemd|init|init\(\S{0,40})\)"),
    # arch/x86/mm/fault.c and kernel/traps.c; program names have at most 15 characters
    "library": re.compile(
        r"(?:traps: )?.{1,15}\[\d{1,10}\]:? (?:segfault at|general protection fault) .{1,100} in "
        r"lib(?:nvidia-ml|cuda|dxcore|nvwgf2umx|nvdxgdmal)[\w.-]{0,40}\["
    ),
}

_KILL_OF_ALL = template("the kernel killed {victim} (pid {pid}, {size_bytes}): all memory was used up")
#: WSL puts all user processes into one cgroup with all but 32 MiB: its limit is the machine's.
USERS = "/wsl-user"
_KILL_OF_USERS = template(
    "the kernel killed {victim} (pid {pid}, {size_bytes}): all memory that WSL gives programs was used up"
)
_KILL_OF_SOME_GROUP = template(
    "the kernel killed {victim} (pid {pid}, {size_bytes}): the memory limit of a cgroup was used up"
)
_KILL_OF_GROUP = template(
    "the kernel killed {victim} (pid {pid}, {size_bytes}): the memory limit of {cgroup} was used up"
)


class Line(NamedTuple):
    """A message of the kernel itself; ``seconds`` since boot, on the monotonic clock."""

    sequence: int
    seconds: float
    text: str


class KernelEvent(NamedTuple):
    """A pattern of lines: the kind of its event, the labels under which it is counted, and the event's fields.

    ``text`` is the event's template; where it is empty, the line itself is shown.
    """

    kind: str
    labels: tuple[str, ...]
    fields: Mapping[str, str | int | float]
    text: str = ""


def parse_line(record: str) -> Line | None:
    """Return the message in a record of /dev/kmsg; None for another program's record or an invalid one.

    Format: https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg
    """
    match = _RECORD.match(record)
    # Above the three bits of the priority comes the facility: 0 is the kernel, anything else a program that wrote to
    # /dev/kmsg and must not be able to fake an OOM kill.
    if match is None or int(match[1]) >> 3:
        return None
    return Line(int(match[2]), int(match[3]) / 1e6, match[4])


class LineParser:
    """Parses lines; keeps state where the kernel spreads one message over several."""

    def __init__(self) -> None:
        #: pid, constraint and cgroup of the kill that was announced last
        self._announced = ("", "", "")
        #: cgroup of the last kill, and that of all victims that follow
        self._last = self._shared = ""
        self._order: int | None = None
        self._gone_disks: set[str] = set()
        #: cards that fell off the bus, and whether an Xid told it first
        self._fallen: dict[str, bool] = {}

    def add(self, text: str) -> KernelEvent | None:
        """Return the event that the line completes, if any."""
        if match := _CONSTRAINT.match(text):
            self._announced, self._shared = (match[3], match[1], _group(match[2])), ""
        elif _TOGETHER.match(text):
            self._shared = self._last
        elif match := _KILLED.match(text):
            return self._kill(match)
        elif match := _UNALLOCATED.match(text):
            self._order = int(match[1])
        elif _CHANNEL.match(text) and self._order is not None:
            order, self._order = self._order, None
            return KernelEvent("vmbus_starved", (), {"order": order})
        elif match := _DXG.match(text):
            return _dxg_error(match)
        elif match := _OFF_THE_BUS.match(text):
            return self._xid(_FALLEN, match[1].removesuffix(".0"), numbered=False)
        elif match := _XID.match(text):
            return self._xid(match[2], match[1], numbered=True)
        return self._disk_error(text)

    def _kill(self, match: re.Match[str]) -> KernelEvent:
        limited = match[1].startswith("Memory")
        # A second victim of the same OOM (memory.oom.group) is not announced.
        constraint, group = "CONSTRAINT_MEMCG" if limited else "CONSTRAINT_NONE", self._shared
        if self._announced[0] == match[2]:
            _, constraint, group = self._announced
        self._announced, self._last = ("", "", ""), group
        virtual, anon, file, shmem = (int(size) * 1024 for size in match.groups()[3:])
        fields: dict[str, str | int | float] = {
            "pid": int(match[2]),
            "victim": named(match[3]),
            "constraint": constraint,
            "cgroup": group,
            "anon_bytes": anon,
            "file_bytes": file,
            "shmem_bytes": shmem,
            "virtual_bytes": virtual,
            "size_bytes": anon + file + shmem,  # freed by the kill
        }
        if constraint != "CONSTRAINT_MEMCG":
            return KernelEvent("oom_kill", ("global",), fields, _KILL_OF_ALL)
        text = _KILL_OF_USERS if group == USERS else _KILL_OF_GROUP if group else _KILL_OF_SOME_GROUP
        return KernelEvent("oom_kill", ("cgroup",), fields, text)

    def _xid(self, number: str, device: str, *, numbered: bool) -> KernelEvent | None:
        """Return NVIDIA's error, unless it repeats, in text or by number, that a card fell off the bus."""
        if number == _FALLEN and self._fallen.setdefault(device, numbered) != numbered:
            del self._fallen[device]
            return None
        return KernelEvent("nvidia_xid", (number,), {"xid": number, "device": device})

    def _disk_error(self, text: str) -> KernelEvent | None:
        """Return the error of a disk that fails, unless it has been taken away."""
        if match := _GONE.match(text):
            self._gone_disks.add(_disk_of(match[match.lastindex or 1]))
        elif match := _BACK.match(text):
            self._gone_disks.discard(match[1])
        elif _AWAKE.match(text):
            self._gone_disks.clear()
        device = failing_disk(text)
        if not device or _disk_of(device) in self._gone_disks:
            return None
        return KernelEvent("disk_error", (device,), {"device": device})


def _dxg_error(match: re.Match[str]) -> KernelEvent:
    function, number = match[1], int(match[2])
    if _QUESTION.fullmatch(function):
        return KernelEvent("dxg_notice", (), {})
    number = errno.ENOMEM if number >= 0 and _PAGES in match[0] else abs(number)
    error = errno.errorcode.get(number, str(number))
    return KernelEvent("dxg_error", (function, error), {"function": function, "error": error})


def _group(details: str) -> str:
    """Return the cgroup whose limit was hit, or else that of the victim; empty where unknown.

    Cgroup names may contain commas and anything that looks like the next detail.
    """
    if any(details.count(f",{name}=") > 1 for name in ("oom_memcg", "task_memcg", "mems_allowed")):
        return ""
    match = _GROUP.search(details)
    return match[1] if match is not None else ""


def failing_disk(text: str) -> str:
    """Return the disk, partition or bridge to Windows that fails by this line alone; empty: none."""
    return next((match[1] for pattern in _FAILED if (match := pattern.match(text)) is not None), "")


def _disk_of(device: str) -> str:
    """Return the disk of a partition."""
    return _PARTITION.sub("", device)
