"""Locks the process's memory: the brake must act while the machine is thrashing. Standard library only.

As in earlyoom (``mlockall`` in main.c), pages are locked when they are first touched, not loaded in advance. systemd's
``MemorySwapMax=`` protects anonymous memory only; programs and libraries are file-backed, and without swap the kernel
evicts them first.
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
    """Lock the current and future memory of this process; return why that failed, or nothing.

    Children do not inherit the lock. It is not attempted under a finite RLIMIT_MEMLOCK: the whole size of every mapping
    counts against the limit, and once that is reached, allocations fail.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    rights = int(status.partition("CapEff:")[2].split()[0], 16)
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit != resource.RLIM_INFINITY and not rights >> _CAP_IPC_LOCK & 1:
        return f"RLIMIT_MEMLOCK is {limit}, not unlimited"
    libc = ctypes.CDLL(None, use_errno=True)
    locked = libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0
    return "" if locked else os.strerror(ctypes.get_errno())
