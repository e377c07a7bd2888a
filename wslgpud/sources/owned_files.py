"""Files of /proc that make their readers wait for the process that they describe.

For ``cmdline``, ``maps`` and ``smaps_rollup`` the kernel takes the lock of the process's own memory map, which the
process can hold for ever: an mmap of a file on a FUSE of its own suffices
(https://docs.kernel.org/filesystems/proc.html, https://docs.kernel.org/mm/process_addrs.html). So nothing that decides
a warning is read from them, and each is read in a thread that is left behind if it does not return in time.
``stat``, ``status``, ``statm``, ``comm``, ``cgroup``, ``exe`` and ``fd`` answer without that lock.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import Literal

from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources.identity import Identity, identity

log = logging.getLogger(__name__)

OwnedFile = Literal["cmdline", "maps", "smaps_rollup"]
#: A read takes 20 us, and milliseconds while the process is being swapped.
PATIENCE_SECONDS = 0.5
#: threads left behind, one for each user at most; the wait of each can be killed, so they do not outlive us
MAX_HANGING = 16
#: read of one file: a training maps thousands of libraries and arenas
MAX_BYTES = 16 << 20


class Hangs(SourceError):
    """The process, or another one of its user, keeps readers waiting."""


class OwnedFiles:
    """Reads them, each with a deadline, for one thread.

    While a process keeps a reader waiting, no other process of its user is read: a user with a thousand of them costs
    one thread, and another user's programs are still told by their titles.
    """

    def __init__(self, host: Host, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Prepare to read on ``host``; files in a folder (a recorded machine) are read at once."""
        self.host, self._patience_seconds = host, patience_seconds
        self._hanging: dict[Identity, Future[str]] = {}
        self._complained: set[frozenset[int]] = set()

    @property
    def hanging(self) -> int:
        """The number of reads that are being waited for."""
        return sum(not read.done() for read in self._hanging.copy().values())

    def text(self, pid: int, name: OwnedFile) -> str:
        """Return the text of the file.

        Raises:
            NoData: the process has ended.
            Hangs: it did not answer in time, or another one of its user still does not.
            SourceError: the file is hidden from us.
        """
        path = f"/proc/{pid}/{name}"
        if self.host.root:
            return self.host.head(path, MAX_BYTES)
        who = identity(self.host, pid)
        if who is None:
            raise NoData("there is no {path}", path=path)
        self._hanging = {one: read for one, read in self._hanging.items() if not read.done()}
        if len(self._hanging) >= MAX_HANGING or any(one.uids == who.uids for one in self._hanging):
            raise Hangs("{path} is not read: a process of its user keeps readers waiting", path=path)
        read = Future[str]()
        threading.Thread(target=self._read, args=(path, read), name="owned-file", daemon=True).start()
        try:
            return read.result(self._patience_seconds)
        except Late as late:
            self._hanging[who] = read
            if who.uids not in self._complained and len(self._complained) < MAX_HANGING:  # not a line per process
                self._complained.add(who.uids)
                users = ", ".join(map(str, sorted(who.uids)))
                log.warning("process %d (%s) of user %s keeps readers of its memory map waiting", pid, who.name, users)
            raise Hangs("{path} does not answer", path=path) from late

    def optional(self, pid: int, name: OwnedFile) -> str:
        """Return the text of the file, nothing where it cannot be had."""
        try:
            return self.text(pid, name)
        except (NoData, SourceError):
            return ""

    def _read(self, path: str, read: Future[str]) -> None:
        try:
            read.set_result(self.host.head(path, MAX_BYTES))
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            read.set_exception(error)
