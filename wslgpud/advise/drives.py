"""Data on Windows' drives (/mnt/c): many times slower from Linux, and a training whose card waits for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources.disk import mounts

#: roles of processes that read data sets
READERS = frozenset({"training", "gpu"})
_MOST_FILES = 2000


def windows_points(host: Host) -> list[str]:
    """Return where drives of Windows are mounted; empty outside WSL."""
    return [mount.point for mount in mounts(host.read_optional("/proc/self/mounts")) if mount.windows]


def open_there(host: Host, pids: Iterable[int], points: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield (pid, path) of what these processes have open below ``points``, as far as it is visible to us.

    Only links below /proc are read: a drive that hangs holds nobody up.
    """
    inside = tuple(f"{point.rstrip('/')}/" for point in points)
    for pid in pids:
        # A folder on a drive stands for what is read below it.
        paths = [f"{host.link(f'/proc/{pid}/cwd') or ''}/"]
        with contextlib.suppress(NoData, SourceError):
            paths += (host.link(f"/proc/{pid}/fd/{name}") or "" for name in host.names(f"/proc/{pid}/fd", _MOST_FILES))
        yield from ((pid, path) for path in paths if path.startswith(inside))
