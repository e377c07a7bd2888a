"""SQLite's write-ahead log, synced and checkpointed by us, so that no disk error goes unnoticed.

Linux reports a failed write-back once, to each descriptor open at the time (`man 2 fsync`_), and then considers the
lost pages written. SQLite's automatic checkpoint ignores the error; and ``PRAGMA wal_checkpoint`` does not sync while a
reader holds the log, as a backup does.

.. _man 2 fsync: https://man7.org/linux/man-pages/man2/fsync.2.html
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from wslgpud.store import engines
from wslgpud.store.errors import LostWriteError
from wslgpud.words import MessageLike, cause, say

#: the log is checkpointed when it has about this many pages: each page is then copied once for all its changes
CHECKPOINT_PAGES = 256
#: calm commits are synced at the latest after this, by the next commit
SYNC_SECONDS = 25.0
PAGE = 4096
_REMEDIES = {
    errno.EDQUOT: say("delete files of this user, or raise its quota"),
    errno.ENOSPC: say("free some space or name another folder in store.path"),
    errno.EROFS: say("mount the file system writable again; the kernel log (dmesg) shows why it is not"),
    errno.EIO: say("the disk fails: see the kernel log (dmesg), and name another folder in store.path"),
}


class Wal:
    """A connection and its log; on a server there is none, and commits are durable."""

    def __init__(self, connection: Connection, path: Path | None) -> None:
        self.connection, self._path = connection, path
        self._descriptor: int | None = None
        self._pages = 0
        self._synced_mono = time.monotonic()

    @property
    def long(self) -> bool:
        """Return whether it should be checkpointed; always on a server, where that does nothing."""
        return self._path is None or self._pages >= CHECKPOINT_PAGES

    @property
    def due(self) -> bool:
        """Return whether commits should be synced although nothing is at risk."""
        return self.long or time.monotonic() - self._synced_mono >= SYNC_SECONDS

    @property
    def inode(self) -> tuple[int, int] | None:
        if self._descriptor is None:
            return None
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino

    def grew(self, row_bytes: int) -> None:
        self._pages += 1 + row_bytes // PAGE

    def sync(self) -> None:
        """Wait until all commits are on disk, or raise LostWriteError: some may be lost."""
        if self._path is None:
            return
        if self._descriptor is None:
            # SQLite's locks are on the other two files: closing this descriptor drops none
            self._descriptor = os.open(engines.log_path(self._path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with _kept(self._path):
            os.fdatasync(self._descriptor)
        self._synced_mono = time.monotonic()

    def checkpoint(self) -> None:
        """Checkpoint as far as readers allow, or raise LostWriteError: everything is copied again later."""
        if self._path is not None:
            with _kept(self._path):
                engines.run_outside(self.connection, "PRAGMA wal_checkpoint(PASSIVE)")
        self._pages = 0

    def write_again(self) -> None:
        """After a failed write-back, copy the log from the page cache into the file, or raise LostWriteError."""
        if self._path is not None:
            with _kept(self._path):
                row = self.connection.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if row[0]:
                    raise sqlite3.OperationalError("a reader holds the log")

    def close(self) -> None:
        with suppress(SQLAlchemyError):
            self.connection.close()
        if self._descriptor is not None:
            os.close(self._descriptor)


def refusal(path: Path) -> tuple[MessageLike, MessageLike]:
    """Return why writing next to the database ``path`` fails, and the remedy, as far as known.

    SQLite reports an exhausted quota as a "disk I/O error", like a broken disk.
    """
    try:
        # the history's lock file is ours and empty
        descriptor = os.open(engines.lock_path(path), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(descriptor, bytes(PAGE), 0)
            os.fsync(descriptor)
        finally:
            os.ftruncate(descriptor, 0)
            os.close(descriptor)
    except OSError as error:
        return cause(error), _REMEDIES.get(error.errno or 0, "")
    return "", ""


def written_bytes() -> int | None:
    """Return the bytes that this thread has written to disks, None where the kernel does not count them."""
    try:
        counts = Path("/proc/thread-self/io").read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in counts.splitlines() if line.startswith("write_bytes:")), None)


@contextmanager
def _kept(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise LostWriteError(
            "{path}: the disk has lost written data ({why})", path=str(path), why=cause(error)
        ) from error
