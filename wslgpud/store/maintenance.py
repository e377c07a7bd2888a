"""What people do to the file of a history by hand: a copy while it is written, and a smaller one."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from wslgpud.store import engine as engines
from wslgpud.store.errors import LockedError, StoreError, UnwritableError, explained
from wslgpud.words import cause

#: pages copied between two calls of ``progress``
SLICE_PAGES = 2048


class Compaction(NamedTuple):
    """What compacting frees, or has freed."""

    file_bytes: int
    free_bytes: int


def file_of(target: str) -> Path:
    """Return the file behind a path or URL, or raise StoreError: there is none, or it lies on a server."""
    path = engines.sqlite_path(target)
    if path is None:
        raise StoreError(
            "{database}: lies on a server; use its own tools (pg_dump, VACUUM)", database=engines.shown(target)
        )
    if not path.is_file():
        raise StoreError("{path}: no history here yet; start the daemon, or name its file", path=str(path))
    engines.refuse_odd_files(path)
    return path


def backup(target: str, copy: Path, progress: Callable[[int, int], None]) -> int:
    """Copy a history as it is at this moment, beside a daemon that writes; return the bytes of the copy.

    ``copy`` is there whole, or not at all. ``progress`` is told (pages done, pages).

    Raises:
        StoreError: it cannot be read or written, or is damaged.
    """
    path = file_of(target)
    part = copy.with_name(f"{copy.name}.part")
    try:
        part.unlink(missing_ok=True)
        with closing(_reading(path)) as source, closing(sqlite3.connect(part)) as made:
            # without a transaction around it each commit of the daemon would have the copy begin again
            source.isolation_level = None
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            source.backup(made, pages=SLICE_PAGES, progress=lambda _, left, total: progress(total - left, total))
            problems = [row for (row,) in made.execute("PRAGMA quick_check(3)") if row != "ok"]
        if problems:
            raise StoreError(
                "{path}: is damaged ({problem}); no copy was kept", path=str(path), problem=str(problems[0])
            )
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.rename(copy)
    except (sqlite3.Error, OSError) as error:
        why = cause(error)
        raise UnwritableError(
            "{copy}: cannot be made from {path}: {reason}", copy=str(copy), path=str(path), reason=why
        ) from error
    finally:
        with suppress(OSError):
            for suffix in ("", "-wal", "-shm", "-journal"):
                Path(f"{part}{suffix}").unlink(missing_ok=True)
    return copy.stat().st_size


def would_free(target: str) -> Compaction:
    """Return what ``compact`` would free, or raise StoreError: there is no file that can be read."""
    path = file_of(target)
    with explained(target), closing(_reading(path)) as database:
        free, page = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_size"))
    return Compaction(path.stat().st_size, free * page)


def compact(target: str) -> Compaction:
    """Write the file anew without its free pages; return its size now and what that freed.

    Raises:
        LockedError: a daemon writes into it.
        StoreError: there is no room for the new file beside the old one, or it cannot be written.
    """
    path = file_of(target)
    with _as_its_owner(path):
        before = would_free(target)
        needed, left = 2 * (before.file_bytes - before.free_bytes), shutil.disk_usage(path.parent).free
        if left < needed:
            raise StoreError(
                "{path}: needs {needed_bytes} of disk meanwhile, and {left_bytes} are left",
                path=str(path),
                needed_bytes=needed,
                left_bytes=left,
            )
        try:
            lock = engines.WriterLock(path)
        except LockedError as error:
            raise LockedError(
                "{path}: the daemon writes into it; stop it first (sudo systemctl stop wslgpud)", path=str(path)
            ) from error
        try:
            with closing(sqlite3.connect(path, timeout=engines.BUSY_SECONDS, isolation_level=None)) as database:
                database.execute("VACUUM")
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise UnwritableError(
                "{path}: cannot be compacted: {error}; it is as it was", path=str(path), error=cause(error)
            ) from error
        finally:
            lock.release()
        size = path.stat().st_size
        return Compaction(size, before.file_bytes - size)


def _reading(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)


@contextmanager
def _as_its_owner(path: Path) -> Iterator[None]:
    """Have root act as the user whose file it is.

    SQLite opens, creates and deletes files whose names lie beside the database or within its journal: root
    would do that to any file of the system for whoever may write there.
    """
    owner = path.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)
