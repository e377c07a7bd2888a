"""ZFS's cache (ARC): Linux counts it as used, yet it is given back on demand down to its minimum."""

from __future__ import annotations

from wslgpud.host import Host
from wslgpud.sources import parse_uint

PATH = "/proc/spl/kstat/zfs/arcstats"
#: by state of the cache and kind of block; what is left of the size is in use or not written yet
_CLEAN = tuple(f"{state}_evictable_{kind}" for state in ("mru", "mfu") for kind in ("data", "metadata"))


def given_back(text: str) -> int | None:
    """Return the bytes that ZFS gives back on demand by its ``arcstats``; None where they do not tell.

    As its own shrinker counts them for Linux (module/os/linux/zfs/arc_os.c: arc_evictable_memory): what is above the
    minimum, but no more than what is clean. Releases before 0.7 do not tell what is clean.
    """
    words = (line.split() for line in text.splitlines())
    counts = {row[0]: parse_uint(row[2]) for row in words if len(row) == 3}
    size, minimum = counts.get("size"), counts.get("c_min")
    if size is None or minimum is None:
        return None
    clean = [counts.get(name) for name in _CLEAN]
    known = [value for value in clean if value is not None]
    return min(max(0, size - minimum), sum(known) if len(known) == len(clean) else size)


def read(host: Host) -> int | None:
    """Return the bytes that this machine's ZFS gives back on demand; None without ZFS.

    In a container with a /proc/meminfo of its own (lxcfs) ZFS's figures are still the host's:
    https://github.com/moghtech/komodo/pull/1635
    """
    text = host.read_optional(PATH)
    if not text or " /proc/meminfo fuse" in host.read_optional("/proc/self/mounts"):
        return None
    return given_back(text)
