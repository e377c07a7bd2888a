"""Names of files that the kernel must keep in RAM (dentries), though it counts them as available.

MemAvailable takes nearly all of SReclaimable for memory that can be had, names in use included: those of every file on
a tmpfs, and of open files. A machine that fills up with small files there is killed while MemAvailable still has a
tenth left.
"""

from __future__ import annotations

from wslgpud.host import Host
from wslgpud.sources import parse_uint

PATH = "/proc/sys/fs/dentry-state"
#: size of a struct dentry on 64-bit kernels from 4.x on, as /sys/kernel/slab/dentry/object_size tells
DENTRY_BYTES = 192


def pinned_bytes(text: str) -> int | None:
    """Return the memory of names that cannot be freed, by ``dentry-state``; None where it does not tell.

    The first two numbers are all names and those that nobody uses. Each of the latter may keep one in use that goes
    with it (its folder, or the name below an overlay), so that only the rest is certain; as memory gets scarce, the
    kernel frees the unused ones first. https://docs.kernel.org/admin-guide/sysctl/fs.html#dentry-state
    """
    words = text.split()
    total, unused = (parse_uint(words[i]) if len(words) > 1 else None for i in (0, 1))
    if total is None or unused is None:
        return None
    return max(0, total - 2 * unused) * DENTRY_BYTES


def read(host: Host) -> int | None:
    """Return the memory of this machine's names that cannot be freed; None where the kernel does not tell."""
    return pinned_bytes(host.read_optional(PATH))
