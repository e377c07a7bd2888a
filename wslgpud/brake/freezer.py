"""Cgroups of version 2: who is in one, and its freezer. Standard library only, for the watchdog.

https://docs.kernel.org/admin-guide/cgroup-v2.html#core-interface-files
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Collection
from pathlib import Path
from typing import Final

#: cgroups below one that are looked at; of one with more nobody can tell who is in it
_MOST_GROUPS: Final = 200


def mount_point() -> str:
    """Return where the cgroups of version 2 are mounted, empty where they are not."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, point, kind, *_ = (*line.split(" "), "", "", "")
            if kind == "cgroup2":
                return point
    return ""


def folder_of(path: str) -> str:
    """Return the folder of a cgroup by its path in the tree; empty where that is no path of one, or only the root."""
    top = mount_point()
    plain = path.startswith("/") and not {"", ".", ".."} & {*path.split("/")[1:]}
    return f"{top}{path}" if top and plain else ""


def is_folder(folder: str) -> bool:
    """Tell whether this is the folder of a cgroup other than the root."""
    top = mount_point()
    return bool(top) and folder.startswith(f"{top}/") and folder == folder_of(folder[len(top) :])


def common_cgroup(paths: Collection[str]) -> str:
    """Return the cgroup that has all of these in it; empty where that is only the root, in which everybody is."""
    if not paths or any(not path.startswith("/") or ".." in path.split("/") for path in paths):
        return ""
    return posixpath.commonpath(paths).rstrip("/")


def pids_in(folder: str) -> set[int] | None:
    """Return the pids of all in a cgroup and below it; None where that cannot be told."""
    found: set[int] = set()
    waiting = [folder]
    for looked, path in enumerate(waiting):
        if looked >= _MOST_GROUPS:
            return None
        try:
            text = Path(f"{path}/cgroup.procs").read_text(encoding="ascii")
            found.update(int(line) for line in text.split())
            with os.scandir(path) as entries:
                waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (OSError, ValueError):
            return None
    return found


def set_frozen(folder: str, *, frozen: bool) -> None:
    """Freeze all processes of a cgroup and below it, or thaw them. Raises OSError: that is not possible."""
    # No folder on the way is a link: there are none in this file system, and ``is_folder`` saw to the rest.
    descriptor = os.open(f"{folder}/cgroup.freeze", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(descriptor, b"1" if frozen else b"0")
    finally:
        os.close(descriptor)


def is_frozen(folder: str) -> bool | None:
    """Tell whether all in a cgroup stand still; None where it has ended, or is empty."""
    try:
        facts = dict(line.split() for line in Path(f"{folder}/cgroup.events").read_text(encoding="ascii").splitlines())
        return None if facts.get("populated") == "0" else facts.get("frozen") == "1"
    except (OSError, ValueError):
        return None
