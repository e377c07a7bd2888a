"""The kernel's own sentences about memory and GPUs, understood one at a time."""

from __future__ import annotations

import errno
import re
from typing import NamedTuple

from wslgpud.security.redaction import named
from wslgpud.words import template

_RECORD = re.compile(r"(\d{1,10}),(\d{1,18}),(\d{1,18}),[^;]*;([^\n]*)")
# mm/oom_kill.c: dump_global_header, oom_kill_process; the same from 5.0 on.
# All of them hold from the beginning of a line: names of programs, of cgroups and of mount options, which are
# anybody's choice, come after it.
_CONSTRAINT = re.compile(r"oom-kill:constraint=(\w{1,40}),(.*),task=.*,pid=(\d{1,10}),uid=\d{1,10}$")
# mm/memcontrol.c: mem_cgroup_print_oom_group; those that follow die with the victim (memory.oom.group).
_TOGETHER = re.compile(r"Tasks in .* are going to be killed due to memory\.oom\.group set$")
_GROUP = re.compile(r",(?:oom_memcg|task_memcg)=(/.*?)(?:,task_memcg=/.*)?$")
_KILLED = re.compile(
    r"(?:Memory cgroup out of memory|Out of memory(?: \(oom_kill_allocating_task\))?): Killed process "
    r"(\d{1,10}) \((.*)\),? total-vm:(\d{1,15})kB, anon-rss:(\d{1,15})kB, "
    r"file-rss:(\d{1,15})kB(?:, shmem-rss:(\d{1,15})kB)?"
)
# drivers/hv/dxgkrnl: DXG_ERR prints the function before the text.
_DXG = re.compile(r"misc dxg: dxgk: (\w{1,60}): .*fail\w*:? (-?\d{1,10})\b")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([\w:.]{1,40})\): (\d{1,5}),")
#: What dxgkrnl complains of at every boot and whenever a program asks for what the host does not have:
#: https://github.com/microsoft/WSL/issues/11293, https://github.com/microsoft/WSL/issues/9099
_BENIGN = frozenset(
    {
        ("dxgkio_query_adapter_info", "EINVAL"),
        ("dxgkio_query_adapter_info", "ENOENT"),
        ("dxgkio_is_feature_enabled", "EINVAL"),
    }
)


class Line(NamedTuple):
    """A message of the kernel itself; ``seconds`` since boot, on the monotonic clock."""

    sequence: int
    seconds: float
    text: str


class OomKill(NamedTuple):
    """A process that the kernel has killed because memory had run out; sizes in bytes."""

    pid: int
    victim: str
    constraint: str
    cgroup: str
    anon_bytes: int
    file_bytes: int
    shmem_bytes: int
    virtual_bytes: int

    @property
    def scope(self) -> str:
        """``cgroup`` when a limit was hit, ``global`` when the machine was full."""
        return "cgroup" if self.constraint == "CONSTRAINT_MEMCG" else "global"

    @property
    def text(self) -> str:
        """What an event says of it, with ``fields`` as its facts."""
        if self.scope == "global":
            return template("the kernel killed {victim} (pid {pid}, {size_bytes}): all memory was used up")
        if not self.cgroup:
            return template(
                "the kernel killed {victim} (pid {pid}, {size_bytes}): the memory limit of a cgroup was used up"
            )
        return template(
            "the kernel killed {victim} (pid {pid}, {size_bytes}): the memory limit of {cgroup} was used up"
        )

    def fields(self) -> dict[str, str | int | float]:
        """Return all of it for an event; ``size_bytes`` is what the kill gives back."""
        return {**self._asdict(), "size_bytes": self.anon_bytes + self.file_bytes + self.shmem_bytes}


class DxgError(NamedTuple):
    """A failed call of WSL's GPU driver; ``error`` is the errno's name."""

    function: str
    error: str

    @property
    def benign(self) -> bool:
        """Tell whether healthy machines show this line as well."""
        return (self.function, self.error) in _BENIGN


class Xid(NamedTuple):
    """An error of NVIDIA's Linux driver."""

    device: str
    number: str


def parse_line(record: str) -> Line | None:
    """Return the message in a record of /dev/kmsg; None for another program's record or an invalid one.

    Format: https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg
    """
    match = _RECORD.match(record)
    # Above the three bits of the priority stands the facility: 0 is the kernel, anything else a program
    # that wrote to /dev/kmsg and must not be able to feign an OOM kill.
    if match is None or int(match[1]) >> 3:
        return None
    return Line(int(match[2]), int(match[3]) / 1e6, match[4])


class Story:
    """Understands lines; remembers one where the kernel takes two to say one thing."""

    def __init__(self) -> None:
        self._constraint = self._group = self._pid = ""
        self._last_group = self._shared_group = ""

    def add(self, text: str) -> OomKill | DxgError | Xid | None:
        """Return what the line tells, if it completes something that matters."""
        if match := _CONSTRAINT.match(text):
            self._constraint, self._group, self._pid = match[1], _group(match[2]), match[3]
            self._shared_group = ""
            return None
        if _TOGETHER.match(text):
            self._shared_group = self._last_group
            return None
        if match := _KILLED.match(text):
            return self._kill(match)
        if match := _DXG.match(text):
            number = abs(int(match[2]))
            return DxgError(match[1], errno.errorcode.get(number, str(number)))
        if match := _XID.match(text):
            return Xid(match[1], match[2])
        return None

    def _kill(self, match: re.Match[str]) -> OomKill:
        constraint, group, pid = self._constraint, self._group, self._pid
        self._constraint = self._group = self._pid = ""
        # A second victim of the same OOM (memory.oom.group) comes without a constraint of its own.
        if pid != match[1]:
            group = self._shared_group
            constraint = "CONSTRAINT_MEMCG" if match.string.startswith("Memory cgroup") else "CONSTRAINT_NONE"
        self._last_group = group
        virtual, anon, file, shmem = (int(match[i] or 0) * 1024 for i in (3, 4, 5, 6))
        return OomKill(int(match[1]), named(match[2]), constraint, group, anon, file, shmem, virtual)


def _group(details: str) -> str:
    """Return the cgroup whose limit was hit, or else that of the victim; nothing where it cannot be told.

    Names of cgroups may hold commas and whatever looks like the next detail.
    """
    if any(details.count(f",{name}=") > 1 for name in ("oom_memcg", "task_memcg", "mems_allowed")):
        return ""
    match = _GROUP.search(details)
    return match[1] if match is not None else ""
