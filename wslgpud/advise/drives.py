"""Data on Windows' drives (/mnt/c): many times slower from Linux, and a training whose card waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources.disk import mounts

#: roles of processes that read data sets
READERS = frozenset({"training", "gpu"})
_MOST_FILES = 2000


def windows_points(host: Host) -> list[str]:
    """Return where drives of Windows are mounted; empty outside WSL."""
    try:
        return [mount.point for mount in mounts(host.read("/proc/self/mounts")) if mount.windows]
    except (NoData, SourceError):
        return []


def open_there(host: Host, pids: Iterable[int], points: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield (pid, path) of what these processes have open below ``points``, as far as we may see it.

    Only links below /proc are read: a drive that hangs holds nobody up.
    """
    for pid in pids:
        for path in _open_files(host, pid):
            if any(path.startswith(f"{point.rstrip('/')}/") for point in points):
                yield pid, path


def _open_files(host: Host, pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        names = host.names(folder, _MOST_FILES)
    except (NoData, SourceError):
        names = []
    for path in (f"/proc/{pid}/cwd", *(f"{folder}/{name}" for name in names)):
        target = host.link(path)
        if target:
            # A folder on a drive stands for what is read below it.
            yield target if not path.endswith("/cwd") else f"{target}/"
