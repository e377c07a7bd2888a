"""VRAM of each process under WSL2, from the counters of Windows' graphics kernel behind ``/dev/dxg``.

Structures and numbers are those of WSL's kernel (include/uapi/misc/d3dkmthk.h), the contents of answers those of the
Windows SDK (d3dkmthk.h, D3DKMT_QUERYSTATISTICS_*). By the kernel's source (drivers/hv/dxgkrnl/ioctl.c, dxgprocess.c):

- ENUMPROCESSES lists the processes that use an adapter, of our own PID namespace only, by the thread that opened the
  device first. Kernels without it answer ENOTTY, and those ask Windows about a Linux PID as if it were a handle.
- QUERYSTATISTICS finds a PID whichever namespace it is of, so only listed ones are asked for. An adapter that has gone
  is no error: the question comes back as it was, so all zeros are no answer.
- Every call that fails writes a line into the kernel's log, so a failed call is not repeated soon.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import struct
import sys
import threading
import time
from enum import IntEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

DEVICE = "/dev/dxg"
#: sizes of the structures, and where the answer and the element lie in the second
ADAPTER_BYTES, STATISTICS_BYTES, RESULT_AT, ELEMENT_AT = 20, 0x328, 24, 0x320


def _call(number: int, size: int) -> int:
    """Return the code of a call, ``_IOWR(0x47, number, size)``."""
    return 3 << 30 | size << 16 | 0x47 << 8 | number


class Ioctl(IntEnum):
    """The calls, by their names in the kernel."""

    LX_DXQUERYADAPTERINFO = _call(0x09, 24)
    LX_DXCLOSEADAPTER = _call(0x15, 4)
    LX_DXENUMADAPTERS3 = _call(0x3E, 24)
    LX_DXQUERYSTATISTICS = _call(0x43, STATISTICS_BYTES)
    LX_DXENUMPROCESSES = _call(0x48, 24)


#: D3DKMT_QUERYSTATISTICS_TYPE
OF_ADAPTER, OF_SEGMENT, OF_PROCESS_GROUP = 0, 3, 9
#: D3DKMT_MEMORY_SEGMENT_GROUP: VRAM
LOCAL = 0
INCLUDE_COMPUTE_ONLY = 1
ADAPTER_ADDRESS = 6  # KMTQAITYPE_ADAPTERADDRESS: PCI bus, device, function

MAX_ADAPTERS, MAX_SEGMENTS, MAX_PROCESSES = 64, 32, 4096
#: An answer takes milliseconds; one that takes longer comes with a later sample. The first sample is to be complete.
WAIT_SECONDS, FIRST_WAIT_SECONDS = 0.05, 1.0
#: Adapters are looked up again after this long: the driver's restart changes their LUIDs.
ADAPTERS_SECONDS = 600.0
#: A failed call is repeated after this long; for a single process after the second.
RETRY_SECONDS, REFUSED_SECONDS = 600.0, 60.0
#: limit of a report for people
REPORT_SECONDS = 10.0
#: in the place of the call and the error
HANGS = ["ioctl", "HANGS"]


class DxgFailed(Exception):
    """A call that failed: its name and the error's (``EINVAL``)."""

    def __init__(self, call: str, error: str) -> None:
        super().__init__(call, error)
        self.call, self.error = call, error


class DxgAdapter:
    """A GPU by Windows: LUID (low, high) as in its counters, VRAM in bytes, PCI address where it tells one."""

    def __init__(self, luid: tuple[int, int], pci: str, vram_bytes: int) -> None:
        self.luid, self.pci, self.vram_bytes = luid, pci, vram_bytes


class DxgDevice:
    """The open device and its calls; ``ioctl`` is the kernel's, or a stand-in."""

    def __init__(self, path: str = DEVICE, ioctl: Callable[[int, int, bytearray], int] | None = None) -> None:
        self._ioctl = ioctl or (lambda file, code, buffer: fcntl.ioctl(file, code, buffer, True))
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise DxgFailed("open", _name(error)) from error

    def close(self) -> None:
        os.close(self._file)

    def ask(self, code: Ioctl, layout: str, *values: int) -> bytearray:
        """Make a call with ``values``, packed by ``layout`` at the start of its structure, and return the answer."""
        buffer = bytearray(code >> 16 & 0x3FFF)
        struct.pack_into(layout, buffer, 0, *values)
        try:
            self._ioctl(self._file, code, buffer)
        except OSError as error:
            raise DxgFailed(code.name, _name(error)) from error
        return buffer

    def adapters(self) -> list[DxgAdapter]:
        """Return the adapters. The kernel opens each for us, and each is closed again.

        Windows is asked for PCI addresses where there are several.
        """
        table = ctypes.create_string_buffer(MAX_ADAPTERS * ADAPTER_BYTES)
        asked = (INCLUDE_COMPUTE_ONLY, MAX_ADAPTERS, 0, ctypes.addressof(table))
        count = min(struct.unpack_from("<I", self.ask(Ioctl.LX_DXENUMADAPTERS3, "<QIIQ", *asked), 8)[0], MAX_ADAPTERS)
        found = []
        for at in range(count):
            handle, low, high = struct.unpack_from("<III", table, at * ADAPTER_BYTES)
            pci = self._pci(handle) if count > 1 else ""
            self.ask(Ioctl.LX_DXCLOSEADAPTER, "<I", handle)
            found.append(DxgAdapter((low, high), pci, self.vram_bytes((low, high))))
        return found

    def statistics(self, kind: int, luid: tuple[int, int], layout: str, element: int = 0, pid: int = 0) -> Any:
        """Return the numbers at the start of a statistic; ``pid`` 0 means this process."""
        low, high = luid
        # packed up to the answer, which stays zero, and the element behind it
        asked = f"<IIIIQ{ELEMENT_AT - RESULT_AT}xI"
        answer = self.ask(Ioctl.LX_DXQUERYSTATISTICS, asked, kind, low, high, 0, pid, element)
        return struct.unpack_from(layout, answer, RESULT_AT)

    def vram_of(self, luid: tuple[int, int], pid: int = 0) -> list[int]:
        """Return budget, requested, usage and demoted bytes of a process in VRAM."""
        budget, requested, usage, *demoted = self.statistics(OF_PROCESS_GROUP, luid, "<8Q", LOCAL, pid)
        return [budget, requested, usage, sum(demoted)]

    def processes(self, luid: tuple[int, int]) -> list[int]:
        """Return the PIDs, or thread IDs, of the processes in our namespace that use an adapter."""
        pids = (ctypes.c_uint32 * MAX_PROCESSES)()
        answer = self.ask(Ioctl.LX_DXENUMPROCESSES, "<IIQQ", *luid, ctypes.addressof(pids), MAX_PROCESSES)
        count = struct.unpack_from("<I", answer, 16)[0]
        return list(pids[: min(count, MAX_PROCESSES)])

    def vram_bytes(self, luid: tuple[int, int]) -> int:
        """Return the bytes of an adapter's segments that lie on the card."""
        (segments,) = self.statistics(OF_ADAPTER, luid, "<I")
        size = 0
        for number in range(min(segments, MAX_SEGMENTS)):
            limit, aperture = self.statistics(OF_SEGMENT, luid, "<Q32xI", number)
            size += 0 if aperture else limit
        return size

    def _pci(self, handle: int) -> str:
        """Return the PCI address in NVML's notation, empty where Windows does not tell it."""
        address = (ctypes.c_uint32 * 3)()
        try:
            asked = (handle, ADAPTER_ADDRESS, ctypes.addressof(address), ctypes.sizeof(address))
            self.ask(Ioctl.LX_DXQUERYADAPTERINFO, "<IIQI", *asked)
        except DxgFailed:
            return ""
        return "{:08X}:{:02X}:{:02X}.{:X}".format(0, *address)


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error))


class DxgReader:
    """Reads who holds how much of each adapter, for one thread at a time."""

    def __init__(self, device: Callable[[], DxgDevice] = DxgDevice, mono: Callable[[], float] = time.monotonic) -> None:
        self._open, self._mono = device, mono
        self._device: DxgDevice | None = None
        self._adapters: list[DxgAdapter] = []
        self._adapters_due = self._not_before = float("-inf")
        self._failed: DxgFailed | None = None
        #: PIDs that are listed and not answered for, and when they may be asked for again
        self._refused: dict[int, float] = {}

    def read(self) -> list[dict[str, Any]]:
        """Return each adapter with ``luid``, ``vram_bytes``, ``pci``, ``own`` and ``processes``.

        ``processes`` holds lists of a PID (or thread ID) and the figures of :meth:`DxgDevice.vram_of`, zeros where
        there is no answer; ``own`` are our own figures.

        Raises:
            DxgFailed: the kernel or Windows does not answer; for a while, that is repeated without asking.
        """
        now = self._mono()
        if self._failed is not None and now < self._not_before:
            raise self._failed
        self._refused = {pid: until for pid, until in self._refused.items() if until > now}
        try:
            self._device = self._device or self._open()
            if now >= self._adapters_due:
                self._adapters, self._adapters_due = self._device.adapters(), now + ADAPTERS_SECONDS
            return [self._of(self._device, adapter) for adapter in self._adapters]
        except DxgFailed as failed:
            self._failed, self._adapters_due = failed, float("-inf")
            self._not_before = float("inf") if failed.error == "ENOTTY" else now + RETRY_SECONDS
            raise

    def _of(self, device: DxgDevice, adapter: DxgAdapter) -> dict[str, Any]:
        luid, rows = adapter.luid, []
        for pid in device.processes(luid):
            if pid in (0, os.getpid()):
                continue
            rows.append([pid, 0, 0, 0, 0])
            if pid in self._refused:
                continue
            try:
                rows[-1] = [pid, *device.vram_of(luid, pid)]
            except DxgFailed as failed:
                if failed.error != "EINVAL":
                    raise
                self._refused[pid] = self._mono() + REFUSED_SECONDS  # it has probably just ended
        return {
            "luid": f"0x{luid[1]:x}_0x{luid[0]:x}",
            "vram_bytes": adapter.vram_bytes,
            "pci": adapter.pci,
            "own": device.vram_of(luid),
            "processes": rows,
        }


class PatientDxgReader:
    """Reads in a thread of its own: a kernel that is slow or never answers costs these figures, and not those of NVML.

    ``seconds`` is how long the last answer took.
    """

    def __init__(self, limit_seconds: float, read: Callable[[], list[dict[str, Any]]] | None = None) -> None:
        self._read = read or DxgReader().read
        self._limit_seconds = limit_seconds
        self._thread: threading.Thread | None = None
        self._answer: dict[str, Any] = {}
        self._began = self.seconds = 0.0

    def ask(self, wait_seconds: float) -> dict[str, Any]:
        """Return ``adapters``, or ``failed``: the call and the error, ``HANGS`` where there is no answer in time.

        Nothing while the answer may still come.
        """
        if self._thread is None:
            self._began = time.perf_counter()
            self._thread = threading.Thread(target=self._run, name="dxg", daemon=True)
            self._thread.start()
            self._thread.join(wait_seconds)
        if self._thread.is_alive():
            return {"failed": HANGS} if time.perf_counter() - self._began >= self._limit_seconds else {}
        self._thread = None
        return self._answer if self.seconds < self._limit_seconds else {"failed": HANGS}  # its figures are old

    def _run(self) -> None:
        try:
            self._answer = {"adapters": self._read()}
        except DxgFailed as failed:
            self._answer = {"failed": [failed.call, failed.error]}
        self.seconds = time.perf_counter() - self._began


if __name__ == "__main__":
    sys.stdout.write(json.dumps(PatientDxgReader(REPORT_SECONDS).ask(REPORT_SECONDS)) + "\n")
