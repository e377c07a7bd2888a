"""A virtual machine for tests of the real thing: real systemd, real OOM kills, real power cuts.

    with Machine(image(wheel), folder, memory_mib=512, swap_mib=128) as machine:
        machine.boot()
        machine.run("systemctl", "enable", "--now", "wslgpud")
        machine.cut_power()
        machine.boot()                      # the same disk, as the cut left it
        assert "unclean" in machine.run("wslgpud", "incidents").stdout

Tests take the ``machine`` fixture of ``conftest.py``, which boots one and ends it with the test.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import select
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tests.support.archives import unpack

from .image import Image

if TYPE_CHECKING:
    from typing_extensions import Self

LIFE_SECONDS = 3600  # of one boot; a test that hangs leaves no machine behind
COMMAND_SECONDS = 240  # bounds what hangs; says nothing about how long things take
GRACE_SECONDS = 60  # for the agent's answer after a command's own time limit: the machine may be thrashing
PROBE_SECONDS = 10
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})

# loglevel=5 keeps warnings and OOM reports: each line on an emulated serial port costs the boot time.
# The timer check panics ("IO-APIC + timer doesn't work") when a busy host is late with the first ticks.
# fsck is left out because ext4 replays its journal at the mount, which is all that a power cut asks for.
KERNEL_LINE = (
    "console=ttyS0 root=/dev/vda rw panic=-1 loglevel=5 mitigations=off fsck.mode=skip "
    "systemd.show_status=0 random.trust_cpu=1 no_timer_check systemd.default_timeout_start_sec=600"
)


class MachineError(RuntimeError):
    """The machine or a command in it did not do what was asked; the text holds what they said."""


@dataclass(frozen=True)
class Result:
    """What a command in the machine left: ``returncode`` is negative for the signal that ended it."""

    returncode: int
    stdout: str
    stderr: str


class Machine:
    """One virtual machine with a disk of its own, that survives :meth:`cut_power` and :meth:`shut_down`.

    All times are bounded: commands by their own limit, a boot by ``LIFE_SECONDS``, and qemu dies with the
    test process. Not safe to use from two threads; background work belongs into ``systemd-run`` inside.
    """

    def __init__(
        self,
        image: Image,
        folder: Path,
        *,
        memory_mib: int = 512,
        cpus: int = 1,
        swap_mib: int = 0,
        drives: Sequence[Path] = (),
        launcher: Sequence[str] = (),
        options: Sequence[str] = (),
        keep: bool = False,
    ) -> None:
        """Make the disks in ``folder``, unless they are to be kept; nothing runs before :meth:`boot`.

        ``drives`` are raw disks of the caller's, /dev/vdb first where there is no swap. ``launcher`` starts qemu
        (a command that runs its arguments in its own place), ``options`` are added to qemu's own.
        """
        self._image = image
        self._folder = folder
        self._memory_mib = memory_mib
        self._cpus = cpus
        self._launcher, self._options = launcher, options
        self._drives = [folder / "root.qcow2"]
        # qcow2 holds back its own tables until the guest flushes. A cut loses what was written since, as
        # the volatile cache of a real drive would; a raw file would keep it in the host's page cache.
        if not keep:
            _qemu_img("create", "-f", "qcow2", "-F", "raw", "-b", str(image.disk), str(self._drives[0]))
        if swap_mib:
            swap = folder / "swap.raw"
            with swap.open("wb") as file:
                file.truncate(swap_mib << 20)
            subprocess.run(["mkswap", "--quiet", str(swap)], check=True)
            self._drives.append(swap)
        self._drives += drives
        self._console = folder / "console.log"
        self._console.touch()
        self._qemu: subprocess.Popen[bytes] | None = None
        self._agent: socket.socket | None = None
        self._received = b""

    def __enter__(self) -> Self:
        """Return the machine, which ends with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take the power."""
        self.cut_power()

    @property
    def console(self) -> str:
        """What the kernel said on the serial console, over all boots; readable after the machine died."""
        return self._console.read_text(encoding="utf-8", errors="replace")

    @property
    def running(self) -> bool:
        """Whether the machine has power."""
        return self._qemu is not None and self._qemu.poll() is None

    def boot(self, timeout_seconds: float = 600) -> str:
        """Start the machine, wait until systemd has settled, and return the boot id.

        Raises:
            MachineError: It did not come up in time; the text ends with the console.
        """
        deadline = time.monotonic() + timeout_seconds
        self._start()
        boot_id = str(self._receive(deadline)["hello"])
        # Its exit status tells running from degraded; a test that cares asks again.
        self.run("systemctl", "is-system-running", "--wait", check=False, timeout_seconds=timeout_seconds)
        return boot_id

    def _start(self) -> None:
        if self.running:
            raise MachineError("the machine is running already")
        ours, its = socket.socketpair()
        with its, (self._folder / "qemu.log").open("ab") as log:
            self._qemu = subprocess.Popen(
                self._command(its.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=[its.fileno()],
            )
        self._agent, self._received = ours, b""
        life = threading.Timer(LIFE_SECONDS, self._qemu.kill)
        life.daemon = True
        life.start()

    def run(
        self,
        *argv: str,
        stdin: bytes = b"",
        environment: Mapping[str, str] = NO_VARIABLES,
        timeout_seconds: float = COMMAND_SECONDS,
        check: bool = True,
    ) -> Result:
        """Run one command as root in the machine, to its end.

        Raises:
            MachineError: It could not start, ran past its limit (it is killed then), or, with ``check``,
                failed; or the machine died.
        """
        returncode, stdout, stderr = self._ask(argv, stdin, environment, timeout_seconds)
        result = Result(returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))
        if check and returncode != 0:
            raise MachineError(f"{argv} ended with {returncode}\n{result.stdout}{result.stderr}")
        return result

    def python(
        self, code: str, *arguments: str, timeout_seconds: float = COMMAND_SECONDS, check: bool = True
    ) -> Result:
        """Run Python source in the machine's own interpreter."""
        return self.run("python3", "-c", code, *arguments, timeout_seconds=timeout_seconds, check=check)

    def read(self, path: str) -> bytes:
        """Return the content of a file in the machine (``/proc`` included)."""
        return self._checked("cat", path)

    def write(self, path: str, content: bytes | str, mode: int = 0o644) -> None:
        """Write a file in the machine, with the folders above it; not synced to its disk."""
        data = content.encode() if isinstance(content, str) else content
        self.run("install", "-D", f"-m{mode:o}", "/dev/stdin", path, stdin=data)

    def copy_in(self, source: Path, target: str) -> None:
        """Copy a file or a folder of the test's side to ``target`` in the machine."""
        name = PurePosixPath(target)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.add(source, arcname=name.name)
        self.run("mkdir", "-p", str(name.parent))
        self.run("tar", "-x", "--no-same-owner", "-C", str(name.parent), stdin=buffer.getvalue())

    def copy_out(self, source: str, target: Path) -> None:
        """Copy a file or a folder of the machine into the folder ``target`` on the test's side."""
        name = PurePosixPath(source)
        packed = self._checked("tar", "-c", "-C", str(name.parent), name.name)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            unpack(archive, target)

    def kernel_log(self) -> str:
        """Return the kernel's ring buffer of this boot."""
        return self.run("dmesg", "--notime").stdout

    def shut_down(self, timeout_seconds: float = COMMAND_SECONDS) -> None:
        """Power off in order: services stop, disks are unmounted.

        Raises:
            MachineError: It did not end in time.
        """
        if self._qemu is None:
            return
        self.run("systemctl", "poweroff", "--no-block")
        try:
            self._qemu.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise MachineError(f"no end {timeout_seconds} s after poweroff\n{self._last_words()}") from None
        finally:
            self.cut_power()

    def cut_power(self) -> None:
        """Take the power at this very moment: what was not synced to the disk is lost."""
        if self._qemu is not None:
            self._qemu.kill()
            self._qemu.wait()
        if self._agent is not None:
            self._agent.close()
        self._qemu = self._agent = None

    def _command(self, agent_fd: int) -> list[str]:
        command = [
            *self._launcher,
            # qemu must not outlive a test run that is itself killed.
            "setpriv",
            "--pdeathsig",
            "KILL",
            "qemu-system-x86_64",
            "-machine",
            "q35",
            *_acceleration(self._image.kernel),
            "-smp",
            str(self._cpus),
            "-m",
            str(self._memory_mib),
            "-nodefaults",
            "-no-reboot",
            "-display",
            "none",
            "-kernel",
            str(self._image.kernel),
            "-initrd",
            str(self._image.initrd),
            "-append",
            KERNEL_LINE,
            "-chardev",
            f"file,id=console,path={self._console},append=on",
            "-serial",
            "chardev:console",
            "-chardev",
            f"socket,id=agent,fd={agent_fd}",
            "-device",
            "virtio-serial-pci",
            "-device",
            "virtserialport,chardev=agent,name=tests",
            "-object",
            "rng-random,id=entropy,filename=/dev/urandom",
            "-device",
            "virtio-rng-pci,rng=entropy",
        ]
        for drive in self._drives:
            command += ["-drive", f"file={drive},format={drive.suffix[1:]},if=virtio,discard=unmap"]
        return [*command, *self._options]

    def _checked(self, *argv: str) -> bytes:
        returncode, stdout, stderr = self._ask(argv, b"", NO_VARIABLES, COMMAND_SECONDS)
        if returncode != 0:
            raise MachineError(f"{argv} ended with {returncode}\n{stderr.decode(errors='replace')}")
        return stdout

    def _ask(
        self, argv: tuple[str, ...], stdin: bytes, environment: Mapping[str, str], timeout_seconds: float
    ) -> tuple[int, bytes, bytes]:
        if self._agent is None:
            raise MachineError("the machine has no power")
        request = {
            "argv": argv,
            "stdin": base64.b64encode(stdin).decode(),
            "env": dict(environment),
            "timeout_seconds": timeout_seconds,
        }
        deadline = time.monotonic() + timeout_seconds + GRACE_SECONDS
        self._agent.settimeout(timeout_seconds + GRACE_SECONDS)
        try:
            self._agent.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise MachineError(f"the machine does not listen: {error}\n{self._last_words()}") from error
        answer = self._receive(deadline)
        if "error" in answer:
            raise MachineError(f"{argv}: {answer['error']}")
        stdout, stderr = (base64.b64decode(answer[name]) for name in ("stdout", "stderr"))
        return int(answer["returncode"]), stdout, stderr

    def _receive(self, deadline: float) -> dict[str, Any]:
        """Return the agent's next line.

        Raises:
            MachineError: None came by the deadline, or the machine died.
        """
        assert self._agent is not None
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._agent], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise MachineError(f"the machine gave no answer in time\n{self._last_words()}")
            received = self._agent.recv(1 << 20)
            if not received:
                self.cut_power()
                raise MachineError(f"the machine died\n{self._last_words()}")
            self._received += received
        line, self._received = self._received.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        qemu_said = (self._folder / "qemu.log").read_text(encoding="utf-8", errors="replace")
        return self.console[-4000:] + qemu_said[-2000:]


@functools.cache
def _acceleration(kernel: Path) -> tuple[str, ...]:
    """Return qemu's options for KVM where a kernel really starts under it, else for emulation.

    A /dev/kvm that opens proves nothing: in nested and paravirtual hosts qemu gives up at once, or a stock
    kernel never prints a line.
    """
    kvm = ("-accel", "kvm", "-cpu", "host")
    if Path("/dev/kvm").exists():
        with tempfile.TemporaryFile() as output:
            probe = subprocess.Popen(
                [
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    "qemu-system-x86_64",
                    "-machine",
                    "q35",
                    *kvm,
                    "-m",
                    "256",
                    "-nodefaults",
                    "-no-reboot",
                    "-display",
                    "none",
                    "-serial",
                    "stdio",
                    "-kernel",
                    str(kernel),
                    "-append",
                    "console=ttyS0 panic=-1",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
            )
            try:  # without a root disk the kernel panics, and panic=-1 ends qemu
                probe.wait(PROBE_SECONDS)
            except subprocess.TimeoutExpired:
                probe.kill()
                probe.wait()
            output.seek(0)
            if b"Linux version" in output.read():
                return kvm
    # All that our wheels ask for (x86-64-v2). Emulated, what newer processors have on top of it, page tables of five
    # levels and AVX, makes a start of Python half as slow again.
    return ("-accel", "tcg,thread=multi", "-cpu", "Nehalem")


def _qemu_img(*arguments: str) -> None:
    done = subprocess.run(["qemu-img", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MachineError(f"qemu-img {arguments[0]}: {done.stderr}")
