"""Cgroup v2: membership and the freezer. Standard library only, as the watchdog imports it.

https://docs.kernel.org/admin-guide/cgroup-v2.html#core-interface-files
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Collection
from pathlib import Path
from typing import Final

#: bound on descendant cgroups walked; a cgroup with more is not frozen
_MAX_GROUPS: Final = 200


def mount_point() -> str:
    """Return the mount point of cgroup v2; empty if it is not mounted."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, point, kind, *_ = (*line.split(" "), "", "", "")
            if kind == "cgroup2":
                return point
    return ""


def reclaim_file() -> str:
    """Return the root cgroup's file that has memory reclaimed (Linux 5.19 and newer); empty where there is none."""
    path = f"{mount_point()}/memory.reclaim"
    return path if Path(path).exists() else ""


def folder_of(path: str) -> str:
    """Return the folder of a cgroup given its path as in /proc/PID/cgroup; empty for the root or a malformed path."""
    top = mount_point()
    plain = path.startswith("/") and not {"", ".", ".."} & {*path.split("/")[1:]}
    return f"{top}{path}" if top and plain else ""


def is_folder(folder: str) -> bool:
    """Return whether this is the folder of a cgroup other than the root."""
    top = mount_point()
    return bool(top) and folder.startswith(f"{top}/") and folder == folder_of(folder[len(top) :])


def common_cgroup(paths: Collection[str]) -> str:
    """Return the deepest cgroup that contains all of these; empty if that is the root, which contains everything."""
    if not paths or any(not path.startswith("/") or ".." in path.split("/") for path in paths):
        return ""
    return posixpath.commonpath(paths).rstrip("/")


def pids_in(folder: str) -> set[int] | None:
    """Return the pids in a cgroup and its descendants; None if they cannot be read or the cgroup is too large."""
    pids: set[int] = set()
    waiting = [folder]
    for looked, path in enumerate(waiting):
        if looked >= _MAX_GROUPS:
            return None
        try:
            text = Path(f"{path}/cgroup.procs").read_text(encoding="ascii")
            pids.update(int(line) for line in text.split())
            with os.scandir(path) as entries:
                waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (OSError, ValueError):
            return None
    return pids


def set_frozen(folder: str, *, frozen: bool) -> None:
    """Freeze or thaw a cgroup and its descendants. Raises OSError: the kernel refused, or the cgroup is gone."""
    # The path has no symbolic links: cgroupfs has none, and ``is_folder`` checked the prefix.
    descriptor = os.open(f"{folder}/cgroup.freeze", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(descriptor, b"1" if frozen else b"0")
    finally:
        os.close(descriptor)


def is_frozen(folder: str) -> bool | None:
    """Return whether a cgroup is completely frozen; None if it is gone or empty."""
    try:
        facts = dict(line.split() for line in Path(f"{folder}/cgroup.events").read_text(encoding="ascii").splitlines())
        return None if facts.get("populated") == "0" else facts.get("frozen") == "1"
    except (OSError, ValueError):
        return None
