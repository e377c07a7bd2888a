"""Devices that record every write, or fail, inside a machine: the kernel's device mapper by its own calls.

Runs in the machine with its bare Python (dmsetup is not in the image); as a program:
``device_mapper.py create|load|mark|remove NAME [ARGUMENT]``. See include/uapi/linux/dm-ioctl.h.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys

CREATE, REMOVE, SUSPEND, LOAD, MESSAGE = 3, 4, 6, 9, 14
#: struct dm_ioctl: version, data_size, data_start, target_count, open_count, flags, event_nr, padding, dev,
#: then name, uuid and data
_HEAD = struct.Struct("=3IIIIiIIIQ128s129s7s")
_TARGET = struct.Struct("=QQiI16s")
_SUSPEND_FLAG, _SKIP_LOCKFS_FLAG, _NOFLUSH_FLAG = 1 << 1, 1 << 10, 1 << 11


def call(command: int, name: str, data: bytes = b"", targets: int = 0, flags: int = 0) -> None:
    size = _HEAD.size + len(data)
    head = _HEAD.pack(4, 0, 0, size, _HEAD.size, targets, 0, flags, 0, 0, 0, name.encode(), b"", b"")
    number = 3 << 30 | _HEAD.size << 16 | 0xFD << 8 | command
    control = os.open("/dev/mapper/control", os.O_RDWR)
    try:
        fcntl.ioctl(control, number, bytearray(head + data))
    finally:
        os.close(control)


def load(name: str, sectors: int, kind: str, parameters: str = "") -> None:
    """Give a device another table, at once: what is under way fails or is done by the new one."""
    text = parameters.encode() + b"\0"
    text += b"\0" * (-len(text) % 8)
    target = _TARGET.pack(0, sectors, 0, _TARGET.size + len(text), kind.encode())
    call(LOAD, name, target + text, targets=1)
    call(SUSPEND, name, flags=_SUSPEND_FLAG | _SKIP_LOCKFS_FLAG | _NOFLUSH_FLAG)
    call(SUSPEND, name)


def create(name: str, sectors: int, kind: str, parameters: str = "") -> None:
    call(CREATE, name)
    load(name, sectors, kind, parameters)


def mark(name: str, text: str) -> None:
    """Have a log of writes say that ``text``, one word, is true from here on."""
    call(MESSAGE, name, struct.pack("=Q", 0) + f"mark {text}".encode() + b"\0")


def remove(name: str) -> None:
    call(REMOVE, name)


if __name__ == "__main__":
    what, device, *rest = sys.argv[1:]
    if what in ("create", "load"):
        {"create": create, "load": load}[what](device, int(rest[0]), rest[1], " ".join(rest[2:]))
    elif what == "mark":
        mark(device, rest[0])
    else:
        remove(device)
