"""Staying in RAM: who acts when everybody waits for pages must not wait for its own. Standard library only.

As earlyoom does (main.c): what was touched once is kept, nothing is fetched that was not. systemd's ``MemorySwapMax=``
keeps only memory of our own; programs and libraries are files, which the kernel drops first where there is no swap.
"""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

#: mlockall(2), https://man7.org/linux/man-pages/man2/mlock.2.html
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
#: capability(7)
_CAP_IPC_LOCK = 14


def stay_resident() -> str:
    """Keep what this process has in RAM, and what it comes to have; return why that cannot be, or nothing.

    Children do not inherit it. Within a limit it is not tried: each mapping counts with all of its addresses, and
    whoever has reached the limit gets no memory at all.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    rights = int(status.partition("CapEff:")[2].split()[0], 16)
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit != resource.RLIM_INFINITY and not rights >> _CAP_IPC_LOCK & 1:
        return f"RLIMIT_MEMLOCK is {limit}, not unlimited"
    libc = ctypes.CDLL(None, use_errno=True)
    locked = libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0
    return "" if locked else os.strerror(ctypes.get_errno())
