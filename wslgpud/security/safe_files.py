"""Safe access to files and JSON that other users may have tampered with, and files closed to other users.

Modes of the daemon's own files are set, whatever the umask, and narrowed where too wide: only its owner reads a folder
and its files; with the service's account, its group as well, whose members may read the history. ``control.sock``, to
which every user may connect, has a mode of its own.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

#: the service's group, see wslgpud/service/install.py
_GROUP = "wslgpud"
#: name of the folders that are made for us alone
_OURS = "wslgpud"
#: the machine's data: everybody may connect to ``control.sock`` there, but not list it
SYSTEM_STATE = Path("/var/lib/wslgpud")
_WAY = 0o011
#: larger than any document of ours
MAX_BYTES = 1 << 20
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link"}
_KINDS |= dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "a device")


def open_plain(
    path: str | os.PathLike[str],
    flags: int = os.O_RDONLY,
    *,
    folder: int | None = None,
    mode: int = 0o600,
    follow: bool = False,
) -> int:
    """Open a regular file in a place where any user may have put something else; return its descriptor.

    Nothing else is ever opened: no FIFO (which may block), no device (opening one can have side effects). Links are not
    followed (into another user's home) unless ``follow``, for paths named by an administrator or with all links
    checked; nor does a lease (fcntl(2)) block.

    ``path`` is relative to the open ``folder``, if given; ``O_CREAT`` in ``flags`` requires ``O_EXCL``; ``mode`` is
    that of a new file, minus the umask.

    Raises OSError: it cannot be opened, or is not a regular file; the message says which.
    """
    flags |= os.O_CLOEXEC | os.O_NONBLOCK
    if flags & os.O_CREAT:
        return os.open(path, flags, mode, dir_fd=folder)
    # O_PATH resolves the path without opening the file; its descriptor cannot be swapped for another file.
    path_descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW), dir_fd=folder)
    try:
        kind = stat.S_IFMT(os.fstat(path_descriptor).st_mode)
        if kind == stat.S_IFREG:
            return os.open(f"/proc/self/fd/{path_descriptor}", flags)
    except OSError as error:
        why = "its owner holds a lease on it" if isinstance(error, BlockingIOError) else error.strerror
        raise OSError(error.errno, why, os.fspath(path)) from error
    finally:
        os.close(path_descriptor)
    raise OSError(errno.EINVAL, f"this is {_KINDS.get(kind, 'something else')}, not a plain file", os.fspath(path))


def contents(
    path: str | os.PathLike[str], max_bytes: int = MAX_BYTES, *, folder: int | None = None, follow: bool = False
) -> bytes:
    """Return the content of a small file. Raises OSError: as ``open_plain``, or it is larger than ``max_bytes``."""
    with os.fdopen(open_plain(path, folder=folder, follow=follow), "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, "larger than any such file may be", os.fspath(path))
    return content


class Folder:
    """A folder held open: even if its path changes, all operations stay in this folder.

    Root works in other users' folders (the service's state, ``/run/lock``), whose owners may replace any name by a link
    at any moment. All names here are single components in this folder.
    """

    def __init__(self, path: str | os.PathLike[str], below: str = "", *, make: bool = False) -> None:
        """Open it, or a folder ``below`` it, with ``make`` created where missing.

        Raises OSError: it or one in between is missing, a link or a file.
        """
        self.path = Path(path, below)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags)
        for name in Path(below).parts:
            outer = self._descriptor
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, dir_fd=outer)
                self._descriptor = os.open(name, flags, dir_fd=outer)
            finally:
                os.close(outer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    def names(self, max_names: int) -> list[str]:
        """Return the names in it, at most ``max_names``, unordered. Raises OSError: it cannot be listed."""
        with os.scandir(self._descriptor) as entries:
            return [entry.name for entry in islice(entries, max_names)]

    def stat(self, name: str) -> os.stat_result:
        """Return the lstat of an entry. Raises OSError: it does not exist."""
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    def create(self, name: str) -> BinaryIO:
        """Create a new file for unbuffered writing. Raises OSError: it exists already, or cannot be created."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        return os.fdopen(open_plain(name, flags, folder=self._descriptor), "wb", buffering=0)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists. Raises OSError: it cannot be removed."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    @contextlib.contextmanager
    def replacing(self, name: str, mode: int = 0o600) -> Iterator[int]:
        """Yield a new file's descriptor; it is renamed to the name if the block succeeds, else removed.

        Raises OSError: it cannot be created or renamed; an existing file is then unchanged.
        """
        part = f".{name.partition('.')[0][:100]}-{os.urandom(8).hex()}.part"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        descriptor = open_plain(part, flags, folder=self._descriptor, mode=mode)
        try:
            yield descriptor
            os.replace(part, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is more informative
                self.remove(part)
            raise
        finally:
            os.close(descriptor)

    def put(self, name: str, text: str, *, mode: int = 0o600, synced: bool = False) -> None:
        with self.replacing(name) as descriptor:
            os.fchmod(descriptor, mode)
            with os.fdopen(descriptor, "w", encoding="utf-8", closefd=False) as file:
                file.write(text)
            if synced:
                os.fsync(descriptor)


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yield an address of a Unix socket that is short enough, however long its path: unix(7) allows 107 bytes.

    Raises OSError: its folder cannot be opened.
    """
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def draft(target: Path) -> Iterator[Path]:
    """Yield a path for writing a private file, which is renamed to the target if complete, and removed otherwise.

    Safe in any user's folder: the path refers to an open file, whose temporary name is unpredictable. A link with the
    target's name is replaced, not followed.

    Raises OSError: it cannot be created or renamed; an existing file is then unchanged.
    """
    with Folder(target.parent.resolve()) as folder, folder.replacing(target.name) as descriptor:
        yield Path(f"/proc/self/fd/{descriptor}")


def put(path: Path, text: str, *, mode: int = 0o600, synced: bool = False) -> None:
    """Replace a file atomically, so that no reader sees half of it, in a folder that is no link.

    Its temporary name is unpredictable: in a world-writable folder, another user could have put a link there. ``mode``
    applies regardless of the umask; ``synced`` returns only when it is on disk.

    Raises OSError: it cannot be written; an existing file is then unchanged.
    """
    with Folder(path.parent) as folder:
        folder.put(path.name, text, mode=mode, synced=synced)


def parsed(text: str | bytes) -> dict[str, Any]:
    """Return the object in a JSON text. Raises ValueError: it is no object, or is nested too deeply."""
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


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
    """Create a private folder if there is none, and the folders above it.

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
