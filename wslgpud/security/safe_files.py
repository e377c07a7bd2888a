"""Files and JSON of programs and places that somebody may have spoiled."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from typing_extensions import Self

#: more than any document of ours holds
MOST_BYTES = 1 << 20
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
    """Open a plain file where anybody may have put something else; return its descriptor.

    Nothing else is ever opened: not a FIFO (that nobody writes to), not a device (opening one can have an
    effect). Nor is a link followed (into somebody's home), unless ``follow``, because an administrator named it or
    all links have been checked; nor is an owner waited for who holds a lease (fcntl(2)).

    ``path`` is relative to the open ``folder``, if given; ``flags`` with ``O_CREAT`` need ``O_EXCL``, too; ``mode`` is
    that of a file that this makes, less the umask.

    Raises OSError: it cannot be opened, or is something else; the message says which.
    """
    flags |= os.O_CLOEXEC | os.O_NONBLOCK
    if flags & os.O_CREAT:
        return os.open(path, flags, mode, dir_fd=folder)
    # O_PATH finds the file without opening it; by that descriptor it can be no other any more.
    found = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW), dir_fd=folder)
    try:
        kind = stat.S_IFMT(os.fstat(found).st_mode)
        if kind == stat.S_IFREG:
            return os.open(f"/proc/self/fd/{found}", flags)
    except OSError as error:
        why = "its owner holds a lease on it" if isinstance(error, BlockingIOError) else error.strerror
        raise OSError(error.errno, why, os.fspath(path)) from error
    finally:
        os.close(found)
    raise OSError(errno.EINVAL, f"this is {_KINDS.get(kind, 'something else')}, not a plain file", os.fspath(path))


def contents(
    path: str | os.PathLike[str], most_bytes: int = MOST_BYTES, *, folder: int | None = None, follow: bool = False
) -> bytes:
    """Return all of a small plain file. Raises OSError: as ``open_plain``, or it is larger than ``most_bytes``."""
    with os.fdopen(open_plain(path, folder=folder, follow=follow), "rb") as file:
        found = file.read(most_bytes + 1)
    if len(found) > most_bytes:
        raise OSError(errno.EFBIG, "larger than any such file may be", os.fspath(path))
    return found


class Folder:
    """A folder held open: whatever becomes of its path, nothing here leads elsewhere.

    Root works in folders of others (the service's state, ``/run/lock``), whose owners may put a link in the
    place of any name at any moment. All names here are single ones in this very folder.
    """

    def __init__(self, path: str | os.PathLike[str], below: str = "") -> None:
        """Open it, or one ``below`` it. Raises OSError: it, or one on the way, is not there, or is a link or a file."""
        self.path = Path(path, below)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags)
        for name in Path(below).parts:
            outer = self._descriptor
            try:
                self._descriptor = os.open(name, flags, dir_fd=outer)
            finally:
                os.close(outer)

    @classmethod
    def made(cls, path: Path) -> Self:
        """Make it where it is not there, as its parent's owner's, and open it; else as ``Folder``."""
        owner = path.parent.stat()
        with contextlib.suppress(FileExistsError):
            path.mkdir()
        found = cls(path)
        if os.geteuid() == 0:
            os.fchown(found._descriptor, owner.st_uid, owner.st_gid)  # who will remove its entries
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    def changed_ns(self) -> int:
        """Return when an entry last came or went, by the file system's clock."""
        return os.fstat(self._descriptor).st_mtime_ns

    def names(self, most: int) -> list[str]:
        """Return the names in it, no more than ``most``, in no order. Raises OSError: it cannot be listed."""
        with os.scandir(self._descriptor) as entries:
            return [entry.name for entry in islice(entries, most)]

    def stat(self, name: str) -> os.stat_result:
        """Return the facts of an entry, a link's own. Raises OSError: it is not there."""
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """Open a plain file to read; yield its descriptor. Raises OSError: it cannot be opened, or is no plain file."""
        descriptor = open_plain(name, folder=self._descriptor)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def contents(self, name: str, most_bytes: int) -> bytes:
        return contents(name, most_bytes, folder=self._descriptor)

    def create(self, name: str) -> BinaryIO:
        """Begin a new file, to be written without a buffer. Raises OSError: it is there already, or cannot be made."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        return os.fdopen(open_plain(name, flags, folder=self._descriptor, mode=0o666), "wb", buffering=0)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there. Raises OSError: it may not be removed."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    @contextlib.contextmanager
    def replacing(self, name: str, mode: int = 0o600) -> Iterator[int]:
        """Yield a new file's descriptor; it takes the name when the block ends well, and goes otherwise.

        Raises OSError: it cannot be made or take the name; what was there is then as it was.
        """
        part = f".{name.partition('.')[0][:100]}-{os.urandom(8).hex()}.part"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        descriptor = open_plain(part, flags, folder=self._descriptor, mode=mode)
        try:
            yield descriptor
            os.replace(part, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error tells more
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
def draft(target: Path) -> Iterator[Path]:
    """Lend a path to write a file by, which takes the target's name when it is whole, and is gone otherwise.

    Whose folder it lies in does not matter: the path is that of an open file, and the name that it has until
    then cannot be foretold. A link of the target's name is replaced, not followed.

    Raises OSError: it cannot be made or take the name; what was there is then as it was.
    """
    with Folder(target.parent.resolve()) as folder, folder.replacing(target.name, 0o666) as descriptor:
        yield Path(f"/proc/self/fd/{descriptor}")


def put(path: Path, text: str, *, mode: int = 0o600, synced: bool = False) -> None:
    """Replace a file in one step, so that nobody ever reads half of it, in a folder that is no link.

    Until then it has a name that cannot be foretold: where everybody may write, a link could lie there.

    ``mode`` says who may read and write it, whatever the umask; ``synced`` returns only when it is on disk.

    Raises OSError: it cannot be written; what was there is then as it was.
    """
    with Folder(path.parent) as folder:
        folder.put(path.name, text, mode=mode, synced=synced)


def parsed(text: str | bytes) -> dict[str, Any]:
    """Return the object in a JSON text. Raises ValueError: it holds none, or nests deeper than can be read."""
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document
