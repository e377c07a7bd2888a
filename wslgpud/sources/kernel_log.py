"""The kernel log: OOM kills, errors of WSL's GPU driver, of NVIDIA's, and of disks."""

from __future__ import annotations

import errno
import functools
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from wslgpud.host import NoData, SourceError
from wslgpud.metrics import counter
from wslgpud.model import Event, Reading, Sample
from wslgpud.security.redaction import named
from wslgpud.sources import Source
from wslgpud.sources.disk_errors import FailingDisks
from wslgpud.words import cause, say, template

_RECORD = re.compile(r"(\d{1,10}),(\d{1,18}),(\d{1,18}),[^;]*;([^\n]*)")
# mm/oom_kill.c: dump_global_header, oom_kill_process; the same from 5.0 on. All match at the start of a line: names of
# programs, cgroups and mount options, which any user can choose, come later.
_CONSTRAINT = re.compile(r"oom-kill:constraint=(\w{1,40}),(.*),task=.*,pid=(\d{1,10}),uid=\d{1,10}$")
# mm/memcontrol.c: mem_cgroup_print_oom_group; the processes that follow are killed with the victim (memory.oom.group).
_TOGETHER = re.compile(r"Tasks in .* are going to be killed due to memory\.oom\.group set$")
_GROUP = re.compile(r",(?:oom_memcg|task_memcg)=(/.*?)(?:,task_memcg=/.*)?$")
# Before 5.0 (WSL2 began with 4.19) the reason is on a separate line before it, and the cgroup on the line before that.
_KILLED = re.compile(
    r"(?:(?:Memory cgroup out of memory|Out of memory(?: \(oom_kill_allocating_task\))?): )?Killed process "
    r"(\d{1,10}) \((.*)\),?(?: UID \d{1,10},)? total-vm:(\d{1,15})kB, anon-rss:(\d{1,15})kB, "
    r"file-rss:(\d{1,15})kB(?:, shmem-rss:(\d{1,15})kB)?"
)
_KILLS = re.compile(
    r"(Memory cgroup out|Out) of memory: Kill process (\d{1,10}) \(.*\) score \d{1,10} or sacrifice child$"
)
_LIMITED = re.compile(r"Task in /.* killed as a result of limit of (/.*)$")
# mm/page_alloc.c: warn_alloc; kernel/workqueue.c: print_worker_info, which no other program's name can imitate. The
# ring buffers of a new channel to the host need 512 KiB in one piece: https://github.com/microsoft/WSL/issues/40795
_UNALLOCATED = re.compile(r"kworker/[\w:+-]{1,20}: page allocation failure: order:(\d{1,3}), mode:")
_CHANNEL = re.compile(r"Workqueue: hv_\w{1,20} vmbus_add_channel_work")
# drivers/hv/dxgkrnl: DXG_ERR prints the function before the text.
_DXG = re.compile(r"misc dxg: dxgk: (\w{1,60}): .*fail\w*:? (-?\d{1,10})\b")
#: the number of pages allocated, unless it is an errno (dxgvmbus.c, create_existing_sysmem)
_PAGES = "get_user_pages_fast failed"
# https://docs.nvidia.com/deploy/xid-errors/; at a start in three lines, in one record:
# https://github.com/NVIDIA/NVSentinel/issues/155
_FALLEN = "79"
_OFF_THE_BUS = re.compile(
    r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?([\da-fA-F:.]{1,40}?)(?::? |\\x0a).*fallen off the bus"
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([\w:.]{1,40})\): (\d{1,5}),")
#: constraint and cgroup of a kill of which nothing is told
_NO_GROUP = ("CONSTRAINT_NONE", "")
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
#: Questions, which dxgkrnl answers with an error at every boot and whenever a program asks for something that the host
#: does not have; nothing was to be changed, so nothing has failed, whatever the error: drivers/hv/dxgkrnl/ioctl.c;
#: https://github.com/microsoft/WSL/issues/11293, https://github.com/microsoft/WSL/issues/10595
_QUESTION = re.compile(r"dxgkio_(?:query_\w{1,40}|is_feature_enabled|enum_(?:adapters\d?|processes))")


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
        self._constraint = self._group = self._pid = ""
        self._or_child = False
        self._last = self._shared = _NO_GROUP
        self._disks = FailingDisks()
        self._order: int | None = None
        self._fallen: dict[str, bool] = {}

    def add(self, text: str) -> KernelEvent | None:
        """Return the event that the line completes, if any."""
        if match := _CONSTRAINT.match(text):
            self._constraint, self._group, self._pid = match[1], _group(match[2]), match[3]
            self._shared = _NO_GROUP
        elif _TOGETHER.match(text):
            self._shared = self._last
        elif match := _LIMITED.match(text):
            self._group = match[1]
        elif match := _KILLS.match(text):
            self._constraint = "CONSTRAINT_MEMCG" if match[1].startswith("Memory") else "CONSTRAINT_NONE"
            self._pid, self._or_child, self._shared = match[2], True, _NO_GROUP
        elif match := _KILLED.match(text):
            return self._kill(match)
        elif match := _UNALLOCATED.match(text):
            self._order = int(match[1])
        elif _CHANNEL.match(text) and self._order is not None:
            order, self._order = self._order, None
            return KernelEvent("vmbus_starved", (), {"order": order})
        elif disk := self._disks.add(text):
            return KernelEvent("disk_error", (disk,), {"device": disk})
        found = _driver_error(text)
        return None if found and found.labels == (_FALLEN,) and self._told(found, text) else found

    def _told(self, fall: KernelEvent, text: str) -> bool:
        """Return whether this only repeats, in text or by Xid number, that a card fell off the bus."""
        device, way = str(fall.fields["device"]), text.startswith("NVRM: Xid")
        before = self._fallen.pop(device, way)
        if before == way:
            self._fallen[device] = way
        return before != way

    def _kill(self, match: re.Match[str]) -> KernelEvent:
        constraint, group, pid, or_child = self._constraint, self._group, self._pid, self._or_child
        self._constraint = self._group = self._pid = ""
        self._or_child = False
        # A second victim of the same OOM (memory.oom.group) has no constraint of its own; before 5.1 the first may be a
        # child of the process that was chosen.
        if pid != match[1] and not or_child:
            constraint, group = self._shared
            if not match.string.startswith("Killed"):
                constraint = "CONSTRAINT_MEMCG" if match.string.startswith("Memory cgroup") else "CONSTRAINT_NONE"
        self._last = constraint, group
        virtual, anon, file, shmem = (int(match[i] or 0) * 1024 for i in (3, 4, 5, 6))
        fields: dict[str, str | int | float] = {
            "pid": int(match[1]),
            "victim": named(match[2]),
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
        if group == USERS:
            return KernelEvent("oom_kill", ("cgroup",), fields, _KILL_OF_USERS)
        return KernelEvent("oom_kill", ("cgroup",), fields, _KILL_OF_GROUP if group else _KILL_OF_SOME_GROUP)


def _driver_error(text: str) -> KernelEvent | None:
    """Return the GPU driver's error in a line."""
    if match := _DXG.match(text):
        number = int(match[2])
        number = errno.ENOMEM if number >= 0 and _PAGES in match[0] else abs(number)
        function, error = match[1], errno.errorcode.get(number, str(number))
        return KernelEvent("dxg_error", (function, error), {"function": function, "error": error})
    if match := _OFF_THE_BUS.match(text):
        return KernelEvent("nvidia_xid", (_FALLEN,), {"xid": _FALLEN, "device": match[1].removesuffix(".0")})
    if match := _XID.match(text):
        return KernelEvent("nvidia_xid", (match[2],), {"xid": match[2], "device": match[1]})
    return None


def _group(details: str) -> str:
    """Return the cgroup whose limit was hit, or else that of the victim; empty where unknown.

    Cgroup names may contain commas and anything that looks like the next detail.
    """
    if any(details.count(f",{name}=") > 1 for name in ("oom_memcg", "task_memcg", "mems_allowed")):
        return ""
    match = _GROUP.search(details)
    return match[1] if match is not None else ""


log = logging.getLogger(__name__)

_PATH = "/dev/kmsg"
_RECORD_BYTES = 8192  # the kernel does not return partial records
_MAX_RECORDS = 2000  # per tick; the rest waits in the kernel's ring buffer
_MAX_LABELS = 32

OOM_KILLS = counter(
    "kernel_oom_kills",
    "OOM kills in the kernel log: scope global is the whole machine, cgroup is a limit (a container's, or WSL's own "
    "on all user processes).",
    "scope",
)
DXG_ERRORS = counter(
    "dxg_errors",
    "Errors of WSL's GPU driver by function and error; make_resident with ENOMEM is VRAM running out "
    "although some looks free.",
    "function",
    "error",
)
DXG_NOTICES = counter(
    "dxg_notices",
    "Lines of WSL's GPU driver that look like errors and are usually harmless; a burst while a program hangs is not.",
)
XIDS = counter(
    "nvidia_xid_errors",
    "Errors of NVIDIA's Linux driver by number; https://docs.nvidia.com/deploy/xid-errors/ has their meanings.",
    "xid",
)
UNCONNECTED = counter(
    "vmbus_allocation_failures",
    "Connections to Windows for which the kernel had no contiguous memory: new WSL sessions hang.",
)
DISK_ERRORS = counter(
    "kernel_disk_errors",
    "Lines of the kernel log that say that a disk or its file system fails, by device; hv_storvsc is WSL's bridge to "
    "the virtual disks in Windows.",
    "device",
)
LOST = counter("kernel_log_lost_records", "Kernel messages overwritten before they could be read.")
_COUNTERS = {
    "oom_kill": OOM_KILLS,
    "dxg_error": DXG_ERRORS,
    "nvidia_xid": XIDS,
    "vmbus_starved": UNCONNECTED,
    "disk_error": DISK_ERRORS,
}
#: a failing disk floods the log (https://github.com/microsoft/WSL/issues/9173): one line in this time is an event
_QUIET_SECONDS = 60.0


@functools.cache
def _log_once(remedy: str) -> None:
    """Log what all readers of the log in this process lack."""
    log.info("%s", remedy)


class KernelLogSource(Source):
    """Reads /dev/kmsg without blocking: first the rest of this boot's log, then new records.

    Events older than our first read have ``past`` = 1, and each has the kernel's ``sequence`` number, which with the
    boot id shows whether it has been seen before.
    """

    name = "kernel_log"
    metrics = (OOM_KILLS, DXG_ERRORS, DXG_NOTICES, XIDS, UNCONNECTED, DISK_ERRORS, LOST)

    def _prepare(self) -> None:
        self._descriptor: int | None = None
        self.caught_up = False
        self._opened_mono = 0.0
        self._replayed = False
        self._story = LineParser()
        self._lost = self._notices = 0
        self._disk_told: dict[str, float] = {}
        self._counts: dict[str, Counter[tuple[str, ...]]] = {kind: Counter() for kind in _COUNTERS}
        self._counts["oom_kill"] = Counter({("global",): 0, ("cgroup",): 0})
        self._counts["vmbus_starved"] = Counter({(): 0})

    def read(self) -> Sample:
        """Return the counts since boot and the events since the last read; NoData where we have no read permission."""
        lines = filter(None, map(parse_line, self.records()))
        events = tuple(filter(None, map(self._note, lines)))
        return Sample(tuple(self._readings()), events=events)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def records(self) -> Iterator[str]:
        """Yield the records since the last read, a few thousand at most."""
        # A recording has no device; reading a real log to its end would block forever.
        if not self.host.live and not Path(self.host.path(_PATH)).is_char_device():
            if not self._replayed:
                self._replayed = True
                self._opened_mono = self.host.clock.mono()
                yield from self.host.read(_PATH).splitlines()
            return
        if self._descriptor is None:
            self._descriptor = self._open()
        for number in range(_MAX_RECORDS):
            try:
                yield os.read(self._descriptor, _RECORD_BYTES).decode("utf-8", "replace")
            except BlockingIOError:  # end of the log for now
                self.caught_up = True
                return
            except BrokenPipeError:  # overwritten before we read it; the next read continues after the gap
                self._lost += 1
            except OSError as error:
                if number:  # report what came before; this record waits for the next read
                    return
                raise SourceError("cannot read {path}: {why}", path=_PATH, why=cause(error)) from error

    def _open(self) -> int:
        try:
            descriptor = os.open(self.host.path(_PATH), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NoData("there is no {path}", path=_PATH) from error
        except PermissionError as error:
            # The default for users of most distributions: worth knowing, but no fault.
            remedy = say(
                "no permission to read {path}, so OOM kills go unseen: run as root, give the service "
                "AmbientCapabilities=CAP_SYSLOG, or run 'sudo sysctl kernel.dmesg_restrict=0'",
                path=_PATH,
            )
            _log_once(str(remedy))
            raise NoData(remedy) from error
        except OSError as error:
            # Containers often have the file without the device.
            if error.errno in (errno.ENXIO, errno.ENODEV):
                raise NoData("{path} has no device behind it", path=_PATH) from error
            raise SourceError("cannot open {path}: {why}", path=_PATH, why=cause(error)) from error
        self._opened_mono = self.host.clock.mono()
        return descriptor

    def _note(self, line: Line) -> Event | None:
        """Count the line's event; return it if it should be reported."""
        found = self._story.add(line.text)
        if found is None:
            return None
        if found.kind == "dxg_error" and _QUESTION.fullmatch(found.labels[0]):
            self._notices += 1
            return None
        counts = self._counts[found.kind]
        bounded = found.labels in counts or len(counts) < _MAX_LABELS
        counts[found.labels if bounded else ("other",) * len(found.labels)] += 1
        if found.kind == "disk_error":
            (device,) = found.labels
            if line.seconds - self._disk_told.get(device, -math.inf) < _QUIET_SECONDS:
                return None
            if bounded:
                self._disk_told[device] = line.seconds
        wall = self.host.clock.wall()
        if not self.caught_up:
            # The log's clock is never corrected and drifts by seconds per week, so new records get our own time.
            wall -= self.host.clock.mono() - line.seconds
        # A long log is read over several ticks; records written meanwhile are new.
        past = int(not self.caught_up and line.seconds <= self._opened_mono)
        return Event(
            found.kind, wall, found.text or line.text, {"sequence": line.sequence, "past": past, **found.fields}
        )

    def _readings(self) -> Iterator[Reading]:
        for kind, spec in _COUNTERS.items():
            for labels, count in self._counts[kind].items():
                yield Reading(spec, count, labels)
        yield Reading(DXG_NOTICES, self._notices)
        yield Reading(LOST, self._lost)
