"""The lock file, held shared by a program that must not be disturbed, and exclusively by our runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wslgpud.host import Host, NoData, SourceError
from wslgpud.security import safe_files
from wslgpud.sources import parse_uint
from wslgpud.sources.procfs import identity
from wslgpud.words import MessageError, MessageLike, cause, say

#: Folders for locks: the first writable one. Another user may use the first where we use the second.
PLACES = ("/run/lock", "/tmp")  # noqa: S108 - shared on purpose
#: read limit of /proc/locks, some 20,000 locks; any user can create more, and an unseen lock proves nothing
_MAX_BYTES = 1 << 20


class LockError(MessageError):
    """A card's lock file cannot be used; the message names the file and the remedy."""


class LockEntry(NamedTuple):
    """A process's part in a lock: held or waited for."""

    pid: int
    waits: bool


def lock_entries(text: str, device: int, inode: int) -> list[LockEntry]:
    """Return the holders of and waiters for a file lock (flock(2)), from the text of /proc/locks.

    Format: https://man7.org/linux/man-pages/man5/proc_locks.5.html. Pids are those of the reader's namespace.
    """
    place = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    entries = []
    for line in text.splitlines():
        words = line.split()
        waits = "->" in words
        # The last line may be cut off at our limit: within its inode it would name another file.
        if len(words) >= 7 + waits and words[5 + waits] == place and words[1 + waits] == "FLOCK":
            entries.append(LockEntry(parse_uint(words[4 + waits]) or 0, waits))
    return entries


class GpuLock:
    """One card's lock.

    ``flock -s /run/lock/wslgpud-gpu0.lock python train.py`` is all that a training needs: it prevents runs, and if it
    starts during one, the run sees it waiting and ends.
    """

    def __init__(self, index: int, folder: str | Path | None = None) -> None:
        place = folder or next((p for p in PLACES if os.access(p, os.W_OK)), PLACES[-1])
        self.path = Path(place) / f"wslgpud-gpu{index}.lock"

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the lock inside; False if another process holds it.

        Raises LockError: not a regular file, or no access.
        """
        try:
            descriptor = self._open()
        except OSError as error:
            remedy = f"sudo {'chmod a+r' if isinstance(error, PermissionError) else 'rm -r'} {self.path}"
            facts = {"path": str(self.path), "why": cause(error), "remedy": remedy}
            raise LockError("the lock file {path} cannot be used, {why}: {remedy}", **facts) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            yield False
            return
        try:
            yield True
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        # No O_CREAT on an existing file: in a sticky folder the kernel rejects that for others' files, even for root
        # (fs.protected_regular). Read-only, as the file may belong to another user's flock(1).
        with contextlib.suppress(FileNotFoundError):
            return safe_files.open_plain(self.path)
        try:
            descriptor = safe_files.open_plain(self.path, os.O_CREAT | os.O_EXCL)
        except FileExistsError:  # another run has just created it
            return safe_files.open_plain(self.path)
        os.fchmod(descriptor, 0o666)  # whatever the umask: every user's training must be able to take it
        return descriptor

    def wanted(self, host: Host) -> bool:
        return any(entry.waits for entry in self._entries(host))

    def holders(self, host: Host) -> list[MessageLike]:
        """Return the holders, as "name (pid 42)"."""
        pids = [entry.pid for entry in self._entries(host) if not entry.waits]
        return [
            f"{who.name} (pid {pid})"
            if (who := identity(host, pid))
            else say("a process that has ended (pid {pid})", pid=pid)
            for pid in pids
        ]

    def _entries(self, host: Host) -> list[LockEntry]:
        with contextlib.suppress(OSError, NoData, SourceError):
            if stat.S_ISREG((status := self.path.lstat()).st_mode):
                return lock_entries(host.head("/proc/locks", _MAX_BYTES), status.st_dev, status.st_ino)
        return []
