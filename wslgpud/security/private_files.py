"""What the daemon keeps is closed to other users: modes are set, whatever the umask, and narrowed where too wide.

Only its owner reads a folder and its files; with the service's account, its group as well, whose members may read the
history. What every user must be able to open (``control.sock``) has a mode of its own.
"""

from __future__ import annotations

import grp
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from wslgpud.security.safe_files import open_plain

log = logging.getLogger(__name__)

#: the service's group, see wslgpud/service/accounts.py
_GROUP = "wslgpud"
#: name of the folders that are made for us alone
_OURS = "wslgpud"
#: the machine's data: everybody may connect to ``control.sock`` there, but not list it
SYSTEM_STATE = Path("/var/lib/wslgpud")
_WAY = 0o011


def _with_group() -> bool:
    try:
        return grp.getgrgid(os.getegid()).gr_name == _GROUP
    except KeyError:  # a group without a name
        return False


def file_mode() -> int:
    """Return the mode of a new private file."""
    return 0o640 if _with_group() else 0o600


def folder_mode(folder: Path) -> int:
    """Return the mode of a private folder."""
    mode = 0o750 if _with_group() else 0o700
    return mode | _WAY if folder == SYSTEM_STATE else mode


def make_folder(folder: Path) -> None:
    """Create a private folder if there is none, and what lies above it.

    One that exists is narrowed only if it has our name and owner: any other was made by somebody for other things, too.
    Raises OSError: it cannot be created.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    mode = folder_mode(folder)
    try:
        folder.mkdir(mode)
        made = True
    except FileExistsError:
        folder.mkdir(exist_ok=True)  # raises where this is no folder
        made = False
    if not made and (folder.name != _OURS or folder.is_symlink()):
        return
    # Whoever owns the folder above may put a link in its place at any moment.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    if made and os.fstat(descriptor).st_uid == os.geteuid():
        os.fchmod(descriptor, mode)
    _narrow(folder, mode, descriptor)


def make_file(path: Path) -> None:
    """Create an empty private file if there is none. Raises OSError: it cannot be created."""
    try:
        descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    try:
        os.fchmod(descriptor, file_mode())
    finally:
        os.close(descriptor)


def narrow_files(paths: Iterable[Path]) -> None:
    """Take the rights of others away from our files; links, and files of other owners, are left as they are."""
    for path in paths:
        try:
            descriptor = open_plain(path)
        except OSError as error:
            log.debug("%s: its mode stays as it is (%s)", path, error)
            continue
        _narrow(path, file_mode(), descriptor)


def _narrow(path: Path, max_mode: int, descriptor: int) -> None:
    try:
        status = os.fstat(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid == os.geteuid() and mode & ~max_mode:
            os.fchmod(descriptor, mode & max_mode)
    except OSError as error:
        log.warning("%s: other users may be able to read it, as its mode cannot be changed (%s)", path, error)
    finally:
        os.close(descriptor)
