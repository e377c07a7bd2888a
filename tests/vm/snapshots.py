"""A virtual machine whose state can be saved and restored, and whose clock does not depend on the host's load.

Its processor takes so many nanoseconds for an instruction as it is told to, and time passes for it as it executes
them: a host that is busy makes the machine slow for us, not for what runs in it. While it is idle, and while its disk
works, time passes as it does for us. https://www.qemu.org/docs/master/devel/tcg-icount.html
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .image import Image
from .machine import KERNEL_LINE, Machine, MachineError

if TYPE_CHECKING:
    from typing_extensions import Self

#: 2 to the power of this many nanoseconds an instruction: 250 million a second, a tenth of a real processor's
CLOCK_SHIFT = 2
_PROMPT = b"(qemu) "
_MAX_SECONDS = 900.0


class SnapshotMachine(Machine):
    """A machine with one processor; its drives besides the first must be qcow2 as well, to be part of a snapshot."""

    def __init__(self, image: Image, folder: Path, *, kernel_line: str = "", start_from: str = "", **more: Any) -> None:
        """Make the disks, unless ``folder`` has them: then the machine starts from the snapshot of that name."""
        self._kernel_more, self._start_from = kernel_line, start_from
        self._monitor = folder / "monitor"
        super().__init__(image, folder, cpus=1, keep=bool(start_from), **more)

    def __enter__(self) -> Self:
        """Return the machine, which ends with the block."""
        return self

    def save(self, name: str) -> None:
        """Save memory, processor and disks under a name. Raises MachineError: qemu could not."""
        self._asked(f"savevm {name}")

    def restore(self, name: str) -> None:
        """Return to a saved state. Raises MachineError: qemu could not."""
        self._asked(f"loadvm {name}")

    def resume(self) -> None:
        """Start from the snapshot that the machine was made for, without a boot."""
        self._start()
        self.run("true")  # it has listened when this is answered

    def _command(self, agent_fd: int) -> list[str]:
        command = super()._command(agent_fd)
        command[command.index("-accel") + 1] = "tcg,thread=single"
        # Each byte of a repeated string instruction takes the time of one: to fill memory would take minutes.
        command[command.index("-cpu") + 1] = "max,erms=off,fsrm=off"
        command[command.index("-append") + 1] = f"{KERNEL_LINE} {self._kernel_more}"
        command += ["-icount", f"shift={CLOCK_SHIFT},sleep=on", "-monitor", f"unix:{self._monitor},server,nowait"]
        return [*command, "-loadvm", self._start_from] if self._start_from else command

    def _asked(self, command: str) -> None:
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(_MAX_SECONDS)
            monitor.connect(str(self._monitor))
            _until_prompt(monitor)
            monitor.sendall(command.encode() + b"\n")
            said = _until_prompt(monitor)
        # What comes back begins with an echo that redraws the line at each character.
        answer = re.sub(r"^.*?\r\n", "", said.decode(errors="replace"), count=1, flags=re.DOTALL)
        if text := answer.removesuffix(_PROMPT.decode()).strip():
            raise MachineError(f"{command}: {text}")


def _until_prompt(monitor: socket.socket) -> bytes:
    said, deadline = b"", time.monotonic() + _MAX_SECONDS
    while not said.endswith(_PROMPT):
        received = monitor.recv(1 << 16)
        if not received or time.monotonic() > deadline:
            raise MachineError(f"qemu's monitor does not answer: {said[-200:]!r}")
        said += received
    return said


def make_drives(folder: Path, sizes_mib: Sequence[int]) -> list[Path]:
    """Return empty drives that can be part of a snapshot."""
    from .machine import _qemu_img

    drives = [folder / f"drive{number}.qcow2" for number in range(len(sizes_mib))]
    for drive, mib in zip(drives, sizes_mib, strict=True):
        if not drive.exists():
            _qemu_img("create", "-f", "qcow2", str(drive), f"{mib}M")
    return drives
