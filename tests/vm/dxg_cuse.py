"""``/dev/dxg`` through CUSE: a character device whose calls ``tests/support/dxg.py`` answers. Copied beside that file.

What it answers is in the JSON file given as its argument, read at every call: ``generation``, ``hang``, and
``adapters`` with their ``entries``. The protocol is that of linux/fuse.h: a call whose argument holds pointers is asked
for three times, each time with more of the caller's memory.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import dxg  # type: ignore[import-not-found]  # copied beside this file

CUSE_INIT, OPEN, RELEASE, INTERRUPT, IOCTL = 4096, 14, 18, 36, 39
UNRESTRICTED_IOCTL, RETRY = 1, 1 << 2
IN_HEADER = struct.Struct("<IIQQIIII")
MAX_REQUEST = 1 << 17
#: where the pointer is in the argument of a call, by its number
POINTER_AT = {0x09: 8, 0x3E: 16, 0x48: 8}


def kernel_of(path: str) -> tuple[Any, bool]:
    """Return the driver as the file describes it, and whether it hangs."""
    told = json.loads(Path(path).read_text(encoding="utf-8"))
    adapters = [
        dxg.Adapter(luid=(0x1234 + at, 0), vram=one["vram"], entries=[dxg.Entry(**entry) for entry in one["entries"]])
        for at, one in enumerate(told["adapters"])
    ]
    kernel = dxg.Kernel(adapters, told.get("generation", "pids"))
    kernel.open_handles = {0x40000000 + at for at in range(len(adapters))}
    return kernel, told.get("hang", False)


def ioctl(path: str, body: bytes) -> bytes | None:
    """Return the answer to a call, None where there never is one."""
    _, _, code, argument_at, in_size, out_size = struct.unpack_from("<QIIQII", body)
    size = code >> 16 & 0x3FFF
    here = struct.pack("<QQ", argument_at, size)
    if not in_size:
        return struct.pack("<iIII", 0, RETRY, 1, 0) + here
    argument = body[32 : 32 + in_size]
    kernel, hangs = kernel_of(path)
    if hangs and code & 0xFF == 0x43 and struct.unpack_from("<I", argument)[0] == 9:
        return None
    try:
        back, written = kernel.answer(code, argument)
    except dxg.Refused as refused:
        return struct.pack("<iIII", -refused.args[0], 0, 0, 0)
    if not out_size:
        places = here
        if written:
            pointer = struct.unpack_from("<Q", argument, POINTER_AT[code & 0xFF])[0]
            places += struct.pack("<QQ", pointer, len(written))
        return struct.pack("<iIII", 0, RETRY, 1, len(places) // 16) + here + places
    return struct.pack("<iIII", 0, 0, 0, 0) + back + written


def main(path: str) -> None:
    device = os.open("/dev/cuse", os.O_RDWR)
    while True:
        request = os.read(device, MAX_REQUEST)
        _, opcode, unique, *_ = IN_HEADER.unpack_from(request)
        body, answer = request[IN_HEADER.size :], b""
        if opcode == CUSE_INIT:
            answer = struct.pack("<8I40x", 7, 31, 0, UNRESTRICTED_IOCTL, 4096, 4096, 0, 0) + b"DEVNAME=dxg\0"
        elif opcode == OPEN:
            answer = struct.pack("<QII", 1, 0, 0)
        elif opcode == IOCTL:
            said = ioctl(path, body)
            if said is None:
                continue
            answer = said
        elif opcode == INTERRUPT:
            # Its process was killed: it would never end, and nothing could be asked again.
            (interrupted,) = struct.unpack_from("<Q", body)
            with suppress(OSError):  # answered meanwhile
                os.write(device, struct.pack("<IiQ", 16, -errno.EINTR, interrupted))
            continue
        os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)


if __name__ == "__main__":
    main(sys.argv[1])
