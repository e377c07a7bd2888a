"""The Windows of a machine: a limited group that qemu and Windows' own programs live in, and what it does to WSL.

Windows keeps the memory of WSL's machine in its own, which may be smaller than ``memory=`` promises: it takes free
memory back (a balloon), writes the machine's memory to its page file (here: guest memory is a file on disk, which the
kernel writes back to stay within the limit), or has none left and the machine dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

MIB = 1 << 20
ROOT = Path("/sys/fs/cgroup")
V1 = (ROOT / "memory").is_dir()
#: a program of Windows: grows by so many MiB in so many seconds, and keeps them
PROGRAM = """
import sys, time
grown, mib, seconds, began = [], int(sys.argv[1]), float(sys.argv[2]), time.monotonic()
while True:
    while len(grown) < mib * min(1.0, (time.monotonic() - began) / seconds):
        grown.append(bytearray(b"x" * (1 << 20)))
    time.sleep(0.2)
"""


class WindowsHost:
    """A control group that stands for the Windows around one machine."""

    def __init__(self, folder: Path) -> None:
        self._group = (ROOT / "memory" if V1 else ROOT) / f"wslgpud-windows-{os.getpid()}-{folder.name}"
        self._group.mkdir()
        self._disk = ROOT / "blkio" / self._group.name
        self._folder = folder
        self._monitor = folder / "monitor"
        self._programs: list[subprocess.Popen[bytes]] = []
        self.total = 0

    def __enter__(self) -> Self:
        """Return the host, whose programs end with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what is left in the group, and remove it."""
        for _ in range(100):
            for pid in (self._group / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            for program in self._programs:
                program.poll()
            with contextlib.suppress(OSError):  # until the last one has gone
                self._group.rmdir()
                if self._disk.exists():
                    self._disk.rmdir()
            if not self._group.exists():
                return
            time.sleep(0.1)

    @property
    def launcher(self) -> Sequence[str]:
        """What starts a program in the group."""
        return ("/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(self._group))

    def options(self, memory_mib: int, *, paged: bool) -> Sequence[str]:
        """Return qemu's options: a balloon that Windows pulls at, and guest memory that it can write to its disk."""
        options = [
            "-qmp",
            f"unix:{self._monitor},server=on,wait=off",
            "-device",
            "virtio-balloon-pci,id=balloon,free-page-reporting=on",
        ]
        if paged:
            file = self._monitor.with_name("pagefile")
            backend = f"memory-backend-file,id=ram,size={memory_mib}M,mem-path={file},share=on"
            options += ["-object", backend, "-machine", "memory-backend=ram"]
        return options

    def give(self, spare_mib: int) -> None:
        """Make Windows' RAM so much larger than what is in use now."""
        self.total = self.used + spare_mib * MIB
        (self._group / ("memory.limit_in_bytes" if V1 else "memory.max")).write_text(str(self.total))

    def slow_down(self, read_mib_per_second: int) -> None:
        """Make the page file's disk as slow as that for the machine (cgroup v1 only): it waits for its own memory."""
        device = self._folder.stat().st_dev
        limit = f"{os.major(device)}:{os.minor(device)} {read_mib_per_second * MIB}"
        self._disk.mkdir()
        (self._disk / "blkio.throttle.read_bps_device").write_text(limit)
        for pid in (self._group / "cgroup.procs").read_text().split():
            (self._disk / "cgroup.procs").write_text(pid)

    @property
    def used(self) -> int:
        """What programs hold: their own memory and files that they have mapped, as guest memory may be."""
        stat = self._fields("memory.stat")
        if V1:
            return stat["rss"] + stat["mapped_file"]
        return stat["anon"] + stat["file_mapped"] + stat["shmem"]

    @property
    def kills(self) -> int:
        """How many programs the kernel has killed for the limit."""
        return self._fields("memory.oom_control" if V1 else "memory.events").get("oom_kill", 0)

    def memory(self) -> dict[str, int]:
        """Return what Windows would tell of its memory."""
        return {"total": self.total, "available": max(0, self.total - self.used)}

    def start_program(self, mib: int, seconds: float) -> None:
        """Start a program of Windows that grows by so much in that time, and then stays."""
        command = [*self.launcher, sys.executable, "-c", PROGRAM, str(mib), str(seconds)]
        self._programs.append(subprocess.Popen(command))

    def balloon(self, memory_mib: float) -> None:
        """Ask the machine to make do with so much."""
        with socket.socket(socket.AF_UNIX) as monitor, monitor.makefile("rw") as lines:
            monitor.settimeout(30)
            monitor.connect(str(self._monitor))
            json.loads(lines.readline())
            for command in ({"execute": "qmp_capabilities"}, _balloon(memory_mib)):
                lines.write(json.dumps(command) + "\n")
                lines.flush()
                while "return" not in (answer := json.loads(lines.readline())):
                    if "error" in answer:
                        raise RuntimeError(f"{command}: {answer['error']}")

    def _fields(self, name: str) -> dict[str, int]:
        lines = (line.split() for line in (self._group / name).read_text().splitlines())
        return {words[0]: int(words[1]) for words in lines}


def _balloon(memory_mib: float) -> dict[str, Any]:
    return {"execute": "balloon", "arguments": {"value": int(memory_mib * MIB)}}
