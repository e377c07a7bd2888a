"""The work of ``wslgpud db``: size and health of a history, a backup, a smaller file; recovery of a damaged one."""

from __future__ import annotations

import glob
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from sqlalchemy import Connection, Table, func, select
from sqlalchemy.exc import IntegrityError

from wslgpud.security.safe_files import Folder
from wslgpud.store import codec, engines, schema, series_reader, statements
from wslgpud.store.errors import DAMAGE, LockedError, StoreError, UnwritableError, explained
from wslgpud.store.reader import Reader
from wslgpud.store.records import Oldest
from wslgpud.store.schema import MINUTES, tuples
from wslgpud.words import MessageLike, cause, say, template

log = logging.getLogger(__name__)

#: pages copied between two calls of ``progress``
SLICE_PAGES = 2048


class Compaction(NamedTuple):
    file_bytes: int
    free_bytes: int


def file_of(target: str) -> Path:
    """Return the file behind a path or URL, or raise StoreError: there is none, or it is on a server."""
    path = engines.sqlite_path(target)
    if path is None:
        raise StoreError(
            "{database}: lies on a server; use its own tools (pg_dump, VACUUM)", database=engines.shown(target)
        )
    return engines.existing_file(path)


def backup(target: str, copy: Path, progress: Callable[[int, int], None]) -> int:
    """Copy the present state of a history while the daemon writes; return the bytes of the copy.

    ``copy`` is complete or does not exist, and is readable only for users who can read the history. ``progress`` is
    called with (pages done, pages).

    Raises:
        StoreError: it cannot be read or written, or is damaged.
    """
    path = file_of(target)
    try:
        with closing(_reading(path)) as source:
            # without a transaction, each commit of the daemon would restart the copy
            source.isolation_level = None
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            mode = path.stat().st_mode & 0o777
            # In another user's folder any file may be replaced by a link at any time.
            with _as_its_owner(copy.parent):
                _copy(source, path, copy, mode, progress)
    except (sqlite3.Error, OSError) as error:
        why = cause(error)
        raise UnwritableError(
            "{copy}: cannot be made from {path}: {reason}", copy=str(copy), path=str(path), reason=why
        ) from error
    return copy.stat().st_size


def _copy(source: sqlite3.Connection, path: Path, copy: Path, mode: int, progress: Callable[[int, int], None]) -> None:
    with Folder(copy.parent.resolve()) as folder, folder.replacing(copy.name, mode) as descriptor:
        with closing(sqlite3.connect(f"/proc/self/fd/{descriptor}")) as made:
            source.backup(made, pages=SLICE_PAGES, progress=lambda _, left, total: progress(total - left, total))
            problems = [row for (row,) in made.execute("PRAGMA quick_check(3)") if row != "ok"]
        if problems:
            raise StoreError(
                "{path}: is damaged ({problem}); no copy was kept", path=str(path), problem=str(problems[0])
            )
        os.fsync(descriptor)


def would_free(target: str) -> Compaction:
    path = file_of(target)
    with explained(target), closing(_reading(path)) as database:
        free, page = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_size"))
    return Compaction(path.stat().st_size, free * page)


def compact(target: str) -> Compaction:
    """Rewrite the file without its free pages; return its size and the bytes freed.

    Raises:
        LockedError: a daemon writes into it.
        UnwritableError: there is no room for a second file, or it cannot be written.
    """
    path = file_of(target)
    with _as_its_owner(path):
        before = would_free(target)
        try:
            lock = engines.lock_for_writing(path)
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
                "{path}: cannot be compacted: {error}; it is unchanged", path=str(path), error=cause(error)
            ) from error
        finally:
            os.close(lock)
        size = path.stat().st_size
        return Compaction(size, before.file_bytes - size)


def _reading(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)


@contextmanager
def _as_its_owner(path: Path) -> Iterator[None]:
    """As root, act as the file's owner.

    SQLite opens, creates and deletes files named after the database or in its journal: as root, a user who can write
    there could make it do so to any file of the system.
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


#: tier -> its label and tables; ``rest`` is everything else
TIERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "sealed": (template("samples, sealed"), ("chunk",)),
    "newest": (template("samples, newest"), ("batch",)),
    "minutes": (template("minutes"), ("rollup_minute",)),
    "hours": (template("hours"), ("rollup_hour",)),
    "events": (template("events and alerts"), ("event", "transition", "outbox")),
    "rest": (template("everything else"), ()),
}
#: a rate over less than this is meaningless
_MIN_SPAN_SECONDS = 3600.0


@dataclass(frozen=True)
class Info:
    """Sizes in bytes, times in seconds since the epoch; None where unknown."""

    version: int
    hosts: tuple[str, ...]
    series: int
    file_bytes: int
    wal_bytes: int
    free_bytes: int
    #: by the names in ``TIERS``; empty where unknown
    tiers: dict[str, int]
    #: those that are sealed
    samples: int
    oldest: Oldest
    newest_wall: float | None
    set_aside: tuple[Path, ...]

    @property
    def bytes_a_sample(self) -> float | None:
        """Size of a sealed sample, without the summaries, which outlast it."""
        sealed = self.tiers.get("sealed", 0)
        return sealed / self.samples if sealed and self.samples else None

    @property
    def bytes_a_day(self) -> float | None:
        if self.newest_wall is None or self.oldest.raw_wall is None or not self.tiers:
            return None
        span = self.newest_wall - self.oldest.raw_wall
        raw = self.tiers["sealed"] + self.tiers["newest"]
        return raw / span * 86400 if span >= _MIN_SPAN_SECONDS else None


def info(reader: Reader) -> Info:
    """Examine a history."""
    with reader.connected() as connection:
        count = connection.scalar(select(func.count()).select_from(schema.series)) or 0
        samples = connection.scalar(select(func.sum(schema.chunk.c.samples))) or 0
        ends = (
            connection.scalar(select(func.max(schema.chunk.c.high_ms))),
            connection.scalar(select(func.max(schema.batch.c.ms))),
        )
    newest = max((ms for ms in ends if ms is not None), default=None)
    tiers, total, free = _sizes(reader)
    path = reader.path
    aside = path.parent.glob(f"{path.name}.damaged-*Z") if path is not None else ()
    return Info(
        version=reader.version,
        hosts=tuple(reader.hosts()),
        series=count,
        file_bytes=total,
        wal_bytes=engines.size_of(path and engines.log_path(path)) or 0,
        free_bytes=free,
        tiers=tiers,
        samples=samples,
        oldest=reader.oldest(),
        newest_wall=None if newest is None else newest / 1000,
        set_aside=tuple(sorted(aside)),
    )


def _sizes(reader: Reader) -> tuple[dict[str, int], int, int]:
    """Return bytes by tier (empty where this SQLite lacks dbstat), in total, and in free pages."""
    size: dict[str, int] = {}
    total = free_bytes = 0
    # not every SQLite is built with dbstat
    with suppress(StoreError), reader.connected() as connection:
        if not schema.is_server(connection):
            pages, free, page = engines.page_counts(connection)
            total, free_bytes = pages * page, free * page
            query = "SELECT coalesce(m.tbl_name, s.name), sum(s.pgsize) FROM dbstat s"
            query += " LEFT JOIN sqlite_master m ON m.name = s.name GROUP BY 1"
            size = {str(name): int(taken) for name, taken in connection.exec_driver_sql(query)}
        else:
            sizes = ((name, func.pg_total_relation_size(name)) for name in schema.metadata.tables)
            size = {name: connection.scalar(select(of)) or 0 for name, of in sizes}
            total = sum(size.values())
    if not size:
        return {}, total, free_bytes
    tiers = {tier: sum(size[table] for table in tables) for tier, (_, tables) in TIERS.items()}
    tiers["rest"] = sum(size.values()) - sum(tiers.values())
    return tiers, total, free_bytes


MINUTE_MS = MINUTES.step_seconds * 1000
#: limit of reported findings; a damaged page causes hundreds
MAX_FINDINGS = 20


def audit(reader: Reader, progress: Callable[[int, int], None]) -> list[MessageLike]:
    """Return the faults found; ``progress`` is called with (chunks done, chunks)."""
    if findings := reader.check():
        # after a damaged page nothing can be trusted, and each read of it would be another finding
        return [*findings[:MAX_FINDINGS]]
    with reader.connected() as connection:
        return [*islice(_chunks(connection, progress), MAX_FINDINGS)]


def _chunks(connection: Connection, progress: Callable[[int, int], None]) -> Iterator[MessageLike]:
    chunk = schema.chunk.c
    count = connection.scalar(select(func.count()).select_from(schema.chunk)) or 0
    for done, (number, sheet) in enumerate(tuples(connection, select(chunk.id, chunk.data).order_by(chunk.id))):
        progress(done, count)
        host, wrong = number >> schema.ROW_BITS, 0
        try:
            for entry in codec.entries_of(sheet):
                _, times, values = codec.samples_of(sheet, entry)
                which = schema.series_range(host)[0] | entry.number
                asked = series_reader.Asked(which, "", 1, min(times), max(times))
                asked = asked._replace(start_ms=asked.start_ms // MINUTE_MS * MINUTE_MS)
                kept = dict(series_reader.steps_of(connection, asked, MINUTES))
                made = codec.summarise(times, values, MINUTE_MS)
                wrong += sum(not _holds(kept.get(ms), seen) for ms, seen in made.items())
        except DAMAGE as error:
            yield say("chunk {number}: damaged ({why})", number=number, why=cause(error))
        if wrong:
            yield say("chunk {number}: {count} of its minutes do not match their samples", number=number, count=wrong)
    progress(count, count)


def _holds(recorded: codec.Summary | None, seen: codec.Summary) -> bool:  # may include more than these samples
    return recorded is not None and recorded.n >= seen.n and recorded.low <= seen.low and recorded.high >= seen.high


#: rows copied at a time
SLICE_ROWS = 300
_SIDE_FILES = ("-wal", "-shm")


def recover(path: Path, wall: float) -> Path:
    """Put the readable rows of a damaged file in its place; return where the file is kept now, with its date.

    Only the newest such file is kept. StoreError, OSError, or an error of SQLite: the copy could not be made; nothing
    has changed, and no room is taken.
    """
    size = path.stat().st_size
    if shutil.disk_usage(path.parent).free < size:
        # else each attempt would fill the disk anew
        raise StoreError("{path}: is damaged; {size_bytes} must be free to recover it", path=str(path), size_bytes=size)
    made = path.with_name(f"{path.name}.recovering")
    try:
        _copy_readable(path, made)
    except BaseException:
        _remove(made)
        raise
    earlier = list(path.parent.glob(f"{glob.escape(path.name)}.damaged-*"))
    stamp = datetime.fromtimestamp(wall, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    for suffix in (*_SIDE_FILES, ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    made.rename(path)
    for name in earlier:
        if not name.name.startswith(aside.name):
            name.unlink(missing_ok=True)
    log.error("%s was damaged; it is kept as %s, and its readable rows are in a new one", path, aside)
    return aside


def _remove(file: Path) -> None:
    for suffix in ("", *_SIDE_FILES):
        Path(f"{file}{suffix}").unlink(missing_ok=True)


def _copy_readable(path: Path, made: Path) -> None:
    _remove(made)
    engine = engines.writer_engine(made)
    with closing(sqlite3.connect(path)) as old, engine.connect() as connection:
        # a log would take as much room again, and a copy that is not finished is worth nothing
        engines.run_outside(connection, "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF")
        old.row_factory, old.text_factory = sqlite3.Row, engines.readable
        old.execute("PRAGMA writable_schema = ON")  # otherwise a damaged definition of one table would hide all others
        with connection.begin():
            engines.create(connection, str(path))
        for table in schema.metadata.sorted_tables:
            with connection.begin():
                _copy_rows(old, connection, table)
    engine.dispose()
    with made.open("rb") as copy:
        os.fsync(copy)


def _copy_rows(old: sqlite3.Connection, connection: Connection, table: Table) -> None:
    readable = _rows(old, table)
    while rows := [dict(row) for row in islice(readable, SLICE_ROWS)]:
        try:
            statements.insert_new(connection, table, rows)
        except IntegrityError:
            # a damaged value costs its row, not those that follow
            for row in rows:
                with suppress(IntegrityError):
                    statements.insert_new(connection, table, [row])


def _rows(old: sqlite3.Connection, table: Table) -> Iterator[sqlite3.Row]:
    """Yield the readable rows before the first unreadable page, and those behind the last."""
    keys = table.primary_key.columns.keys()
    for direction in ("", " DESC"):
        order = ", ".join(key + direction for key in keys)
        try:
            yield from old.execute(f"SELECT {', '.join(table.columns.keys())} FROM {table.name} ORDER BY {order}")
        except sqlite3.DatabaseError as error:
            log.debug("%s: %s", table.name, error)
        else:
            return
