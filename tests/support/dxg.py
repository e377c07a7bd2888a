"""A stand-in for ``/dev/dxg`` that answers as the source of WSL's kernel does (drivers/hv/dxgkrnl/ioctl.c).

Used in process (``device``) and behind CUSE in a virtual machine (``tests/vm/dxg_cuse.py``). Nobody has compared
it with the real one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

GIB = 1 << 30
#: what the ioctl's number says of its argument
SIZES = {0x09: 24, 0x15: 4, 0x3E: 24, 0x43: 0x328, 0x48: 24}

#: of 6.6: a PID is translated; the ones before hand it to Windows as a handle, or answer for the caller
Generation = Literal["pids", "einval", "caller", "no statistics"]


class Entry(NamedTuple):
    """A process that has opened an adapter, by the number that the kernel keeps."""

    number: int
    usage: int
    budget: int = 15 * GIB
    demoted: int = 0
    namespace: str = "ours"


@dataclass
class Adapter:
    """An adapter of Windows with what uses it; ``pci`` None: Windows does not tell."""

    luid: tuple[int, int] = (0x1234, 0)
    vram: int = 16 * GIB
    entries: list[Entry] = field(default_factory=list)
    pci: tuple[int, int, int] | None = None


class Refused(Exception):
    """The error number that the ioctl returns."""


@dataclass
class Kernel:
    """The driver. ``hang`` blocks every question about a process until it is set; ``log`` has one line per failure."""

    adapters: list[Adapter]
    generation: Generation = "pids"
    hang: threading.Event | None = None
    own: tuple[int, int] = (15 * GIB, 0)  # budget and usage of the caller
    log: list[str] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    open_handles: set[int] = field(default_factory=set)

    def answer(self, code: int, argument: bytes) -> tuple[bytes, bytes]:
        """Return the argument as it comes back, and what is written where its pointer points.

        Raises:
            Refused: with the error number.
        """
        number, size = code & 0xFF, code >> 16 & 0x3FFF
        self.calls.append(number)
        known = SIZES if self.generation == "pids" else {n: s for n, s in SIZES.items() if n <= 0x43}
        if self.generation == "no statistics":
            known = {n: s for n, s in known.items() if n != 0x43}
        if known.get(number) != size or code >> 30 != 3 or code >> 8 & 0xFF != 0x47:
            raise self._refused("bad ioctl", errno.ENOTTY)
        call = {
            0x09: self._adapter_info,
            0x15: self._close,
            0x3E: self._enum_adapters,
            0x43: self._statistics,
            0x48: self._enum_processes,
        }
        return call[number](bytearray(argument))

    def _refused(self, function: str, error: int) -> Refused:
        self.log.append(f"misc dxg: dxgk: {function}: Ioctl failed: -{error}")
        return Refused(error)

    def _find(self, luid: tuple[int, int]) -> Adapter | None:
        return next((one for one in self.adapters if one.luid == luid), None)

    def _enum_adapters(self, argument: bytearray) -> tuple[bytes, bytes]:
        _, most, _, _ = struct.unpack("<QIIQ", argument)
        assert most >= len(self.adapters)
        table = b""
        for one in self.adapters:
            handle = 0x40000000 + len(table) // 20
            self.open_handles.add(handle)
            table += struct.pack("<5I", handle, *one.luid, 0, 0)
        struct.pack_into("<I", argument, 8, len(self.adapters))
        return bytes(argument), table

    def _close(self, argument: bytearray) -> tuple[bytes, bytes]:
        self.open_handles.remove(struct.unpack("<I", argument)[0])
        return bytes(argument), b""

    def _adapter_info(self, argument: bytearray) -> tuple[bytes, bytes]:
        handle, kind, _, size = struct.unpack_from("<IIQI", argument)
        address = self.adapters[handle - 0x40000000].pci
        if handle not in self.open_handles or kind != 6 or address is None or size != 12:
            raise self._refused("dxgkio_query_adapter_info", errno.EINVAL)
        return bytes(argument), struct.pack("<3I", *address)

    def _enum_processes(self, argument: bytearray) -> tuple[bytes, bytes]:
        low, high, _, most = struct.unpack("<IIQQ", argument)
        adapter = self._find((low, high))
        if adapter is None or not most:
            raise self._refused("dxgkio_enum_processes", errno.EINVAL)
        here = [entry.number for entry in adapter.entries if entry.namespace == "ours"]
        if len(here) > most:
            raise self._refused("dxgkio_enum_processes", errno.EOVERFLOW)
        struct.pack_into("<I", argument, 16, len(here))  # the lower half only, as the kernel does
        return bytes(argument), struct.pack(f"<{len(here)}I", *here)

    def _statistics(self, argument: bytearray) -> tuple[bytes, bytes]:
        kind, low, high, _, pid = struct.unpack_from("<IIIIQ", argument)
        (element,) = struct.unpack_from("<I", argument, 0x320)
        adapter = self._find((low, high))
        everywhere = [entry for one in self.adapters for entry in one.entries]
        if pid and self.generation == "einval":
            raise self._refused("dxgkio_query_statistics", errno.EINVAL)
        if pid and self.generation == "pids" and all(entry.number != pid for entry in everywhere):
            raise self._refused("dxgkio_query_statistics", errno.EINVAL)
        if adapter is None:
            return bytes(argument), b""  # as if all were well
        if kind == 0:
            struct.pack_into("<II", argument, 24, 2, 9)
        elif kind == 3 and element < 2:
            size = adapter.vram if element == 0 else 32 * GIB
            struct.pack_into("<QQQ16xI", argument, 24, size, 0, 0, element)
        elif kind == 9 and element < 2:
            if self.hang is not None:
                self.hang.wait()
            struct.pack_into("<QQQQ", argument, 24, *self._figures(adapter, pid, element))
        else:
            raise self._refused("dxgkio_query_statistics", errno.EINVAL)
        return bytes(argument), b""

    def _figures(self, adapter: Adapter, pid: int, element: int) -> tuple[int, int, int, int]:
        # The first of this number, whichever namespace it is of.
        entry = next((one for one in adapter.entries if one.number == pid), None)
        if not pid or self.generation == "caller":
            return (self.own[0], self.own[1], self.own[1], 0)
        if entry is None:
            return (0, 0, 0, 0)
        if element == 1:
            return (32 * GIB, entry.demoted, entry.demoted, 0)
        return (entry.budget, entry.usage, entry.usage, entry.demoted)

    def ioctl(self, _file: int, code: int, buffer: bytearray) -> int:
        """Answer in process, writing through the argument's pointer as the kernel does."""
        try:
            back, written = self.answer(code, bytes(buffer))
        except Refused as refused:
            raise OSError(refused.args[0], os.strerror(refused.args[0])) from refused
        pointer_at = {0x09: 8, 0x3E: 16, 0x48: 8}.get(code & 0xFF)
        if pointer_at is not None:
            ctypes.memmove(struct.unpack_from("<Q", buffer, pointer_at)[0], written, len(written))
        buffer[:] = back
        return 0
