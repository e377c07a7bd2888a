"""Who could replace a file that is about to be run: everybody who may write a folder on its path."""

from __future__ import annotations

import grp
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path


def replaceable(path: Path) -> str:
    """Return who else could replace a file (``/home/bob belongs to uid 1001``); empty when nobody could.

    Only root and we ourselves may own, or be able to write, the file and each folder on its path, links
    followed. A folder with the sticky bit (/tmp) keeps others from replacing what is not theirs.
    """
    trusted = {0, os.geteuid()}
    for component in _components(path):
        try:
            found = component.lstat()
        except OSError as error:
            return f"{component}: {error.strerror}"
        if found.st_uid not in trusted:
            return f"{component} belongs to uid {found.st_uid}"
        shared = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if stat.S_ISLNK(found.st_mode) or shared:
            continue
        if found.st_mode & stat.S_IWOTH:
            return f"{component} can be written by everybody"
        if found.st_mode & stat.S_IWGRP and not _ours_alone(found.st_gid):
            return f"{component} can be written by group {found.st_gid}"
    return ""


def program(name: str, path: str | None = None) -> str | None:
    """Return where a program lies: the first on ``path`` (else ``PATH``) that only we or root can replace.

    A name with a slash is taken as it stands; ``replaceable`` says whether it is to be run.
    """
    if os.sep in name:
        return shutil.which(name)
    folders = (path if path is not None else os.environ.get("PATH", os.defpath)).split(os.pathsep)
    found = (shutil.which(name, path=folder) for folder in folders if folder)
    return next((place for place in found if place is not None and not replaceable(Path(place))), None)


def _components(path: Path) -> Iterator[Path]:
    """Yield each folder, link and file that is passed on the way to ``path``, from the root on."""
    waiting = list(reversed(Path(os.path.abspath(path)).parts[1:]))  # noqa: PTH100 - links must stay
    here, links = Path("/"), 0
    yield here
    while waiting:
        part = waiting.pop()
        if part == "..":
            here = here.parent
            continue
        step = here / part
        yield step
        if step.is_symlink() and links < 40:
            links += 1
            target = step.readlink()
            if target.is_absolute():
                here = Path("/")
            waiting += reversed([part for part in target.parts if part != "/"])
        else:
            here = step


def _ours_alone(group: int) -> bool:
    """Tell whether a group is root's, or that of our own account without other members."""
    if group == 0:
        return True
    if group != os.getegid():
        return False
    try:
        others = set(grp.getgrgid(group).gr_mem)
    except KeyError:
        return True
    return not others
