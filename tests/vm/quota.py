"""Limits what a user may take of a file system, inside a machine; see quotactl(2).

``quota.py DEVICE USER KIB``; 0 is no limit. setquota is not in the image.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import struct
import sys

SET_QUOTA, OF_USERS, BLOCK_LIMITS = 0x800008, 0, 1


def main() -> None:
    device, user, kib = sys.argv[1:]
    # struct if_dqblk: hard and soft limit of blocks first; the last field says which fields count
    limits = struct.pack("=8QI4x", int(kib), int(kib), 0, 0, 0, 0, 0, 0, BLOCK_LIMITS)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.quotactl(SET_QUOTA << 8 | OF_USERS, device.encode(), pwd.getpwnam(user).pw_uid, limits):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), device)


if __name__ == "__main__":
    main()
