"""Opens and creates the database: pragmas, the single writer, checks of readers, tables and views.

A file may come from anyone, so a reader trusts little of it, see https://www.sqlite.org/security.html. A schema is a
program: a view instead of a table can run forever, a generated column can produce gigabytes. So only tables with
exactly the definition made by ``create`` are read.
"""

from __future__ import annotations

import fcntl
import glob
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, delete, event, func, inspect, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable

from wslgpud.security import safe_files
from wslgpud.security.redaction import address
from wslgpud.sources import disk
from wslgpud.store import errors, schema
from wslgpud.store.postgresql import server_engine
from wslgpud.words import cause, template

#: marks the file as ours (shown by ``file`` and ``PRAGMA application_id``): "WGPU"
APPLICATION_ID = 0x57475055
#: time that a statement waits for another process's lock
BUSY_SECONDS = 5.0

#: file systems of Windows, of a host and of a network
_REMOTE = {"9p", "drvfs", "virtiofs", "vboxsf", "cifs", "smb3", "nfs", "nfs4"}
#: limit on steps of SQLite's virtual machine per statement: about a minute; ours take up to a hundredth
MAX_STEPS = 3_000_000_000
_STEPS_A_LOOK = 1_000_000
_CACHE_KIB = 512
_NO_HISTORY = template("{path}: no history here yet; start the daemon, or name its file")
_OURS = ", ".join(f"'{name}'" for name in schema.metadata.tables)
_TABLES = f"SELECT name, sql FROM sqlite_master WHERE name IN ({_OURS})"


def sqlite_path(target: str) -> Path | None:
    """Return the file behind a path or ``sqlite:///`` URL, None for a database server; StoreError: neither."""
    if "://" not in target:
        return Path(target)
    try:
        url = make_url(target)
    except (SQLAlchemyError, ValueError) as error:
        # whose text may quote the password
        raise errors.StoreError(
            "{database}: is not the address of a database; write a path, or postgresql+psycopg://user@host/database",
            database=shown(target),
        ) from error
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def shown(target: str) -> str:
    """Return ``target`` without user, password and query, for display."""
    return address(target, path=True)


def check_state_folder(folder: Path, mounts: str | None = None) -> str:
    """Return a warning about the file system below ``folder``, empty when there is none.

    SQLite's write-ahead log needs working shared memory and locks: on 9p and the like it fails with "disk I/O error" or
    "locking protocol" (gastownhall/beads#920) and does not lock against Windows (microsoft/WSL#2395): UnwritableError.
    ``mounts`` is the text of /proc/self/mounts.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    mount = disk.holder(disk.mounts(mounts), os.path.realpath(folder))
    kind = mount.type if mount is not None else ""
    if kind in _REMOTE:
        raise errors.UnwritableError(
            "{folder}: lies on a file system ({kind}) where SQLite cannot lock safely; choose a folder of Linux, "
            "such as /var/lib/wslgpud",
            folder=str(folder),
            kind=kind,
        )
    if kind in ("tmpfs", "ramfs"):
        return f"{folder}: lies in memory ({kind}), so history ends with the next restart"
    return ""


def prepare_folder(path: Path) -> None:
    """Create the folder of the database and make sure it can be written, or raise UnwritableError.

    The database, and all that is named after it, is closed to other users, whoever may have opened it.
    """
    folder = path.parent
    try:
        safe_files.make_folder(folder)
    except OSError as error:
        raise errors.UnwritableError(
            "{folder}: cannot be created ({reason}); name another folder in store.path",
            folder=str(folder),
            reason=cause(error),
        ) from error
    if path.is_dir():
        raise errors.NotADatabaseError("{path}: is a folder; name a file in store.path", path=str(path))
    refuse_odd_files(path)
    safe_files.narrow_files(sorted(folder.glob(f"{glob.escape(path.name)}*")))


def existing_file(path: Path) -> Path:
    """Return the path of a database, or raise StoreError: there is none, or the files beside it are not SQLite's."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
    except OSError as error:  # in a folder closed to us
        raise errors.explain(sqlite3.OperationalError("unable to open database file"), str(path)) from error
    if not stat.S_ISREG(mode):
        raise errors.StoreError(_NO_HISTORY, path=str(path))
    refuse_odd_files(path)
    return path


def refuse_odd_files(path: Path) -> None:
    """Raise NotADatabaseError for a pipe or link named like a file of SQLite: opening one may block forever."""
    for suffix in ("-wal", "-shm", "-journal"):
        beside = Path(f"{path}{suffix}")
        if os.path.lexists(beside) and not stat.S_ISREG(beside.lstat().st_mode):
            raise errors.NotADatabaseError("{beside}: is not a plain file; remove it", beside=str(beside))


def lock_path(path: Path) -> Path:
    # a separate file: closing any descriptor of the database would drop SQLite's own locks
    return path.with_name(path.name + ".lock")


def log_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def size_of(path: Path | None) -> int | None:
    with suppress(OSError):
        return None if path is None else path.stat().st_size
    return None


def identity(path: Path | None) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        if path is not None:
            status = path.stat()
            return status.st_dev, status.st_ino
    return None


def lock_for_writing(path: Path) -> int:
    """Return a descriptor that locks out other daemons until it is closed; else LockedError or UnwritableError."""
    lock = lock_path(path)
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise errors.UnwritableError(
            "{path}: {reason}; make the folder writable", path=str(lock), reason=cause(error)
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise errors.LockedError(
            "{path}: another wslgpud is writing into it; stop that one, or give this one another file in store.path",
            path=str(path),
        ) from error
    return descriptor


def writer_engine(path: Path) -> Engine:
    """Return the engine whose one connection writes; transactions begin as writers at once."""
    url = URL.create("sqlite", database=os.fspath(path))
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS}, poolclass=NullPool)
    manual_transactions(engine, "BEGIN IMMEDIATE")
    event.listen(engine, "connect", _writer_pragmas)

    @event.listens_for(engine, "do_connect")
    def connects(*_: object) -> None:
        try:
            safe_files.make_file(path)  # SQLite gives its log the same mode
        except OSError as error:
            raise sqlite3.OperationalError(f"unable to open database file: {error}") from error

    return engine


def reader_engine(target: str) -> Engine:
    """Return an engine that trusts no file, runs none of its code, neither writes nor waits; StoreError: no file."""
    path = sqlite_path(target)
    if path is None:
        # each statement would have its own snapshot: data sealed between two of them would be in neither
        pool = {"pool_pre_ping": True, "pool_size": 2, "max_overflow": 8}
        return server_engine(target, **pool, isolation_level="REPEATABLE READ")
    # Another user's file whose writer has exited cleanly has no log, and SQLite may be unable to create one in that
    # folder; it does not change and can be read as it is.
    at_rest = not os.access(existing_file(path).parent, os.W_OK) and not log_path(path).exists()
    address = f"file:{quote(os.fspath(path.absolute()))}?{'immutable=1' if at_rest else 'mode=ro'}&uri=true"
    timeout = {"timeout": BUSY_SECONDS}
    engine = create_engine(f"sqlite:///{address}", connect_args=timeout, pool_size=2, max_overflow=8)
    manual_transactions(engine, "BEGIN")

    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, record: Any) -> None:
        connection.text_factory = readable
        # ten may read at once, each page once: SQLite would cache 20 MB of them
        pragmas = (f"cache_size = -{_CACHE_KIB}", "trusted_schema = OFF", "query_only = ON")
        for pragma in (*pragmas, "cell_size_check = ON", "mmap_size = 0"):
            connection.execute(f"PRAGMA {pragma}")
        if sys.version_info >= (3, 11):
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, schema.MAX_ROW_BYTES)

        def looked() -> bool:
            record.info["looks"] += 1
            return bool(record.info["looks"] > MAX_STEPS // _STEPS_A_LOOK)

        record.info["looks"] = 0
        connection.set_progress_handler(looked, _STEPS_A_LOOK)
        _refuse_foreign(connection, target)

    @event.listens_for(engine, "before_cursor_execute")
    def begins(connection: Connection, *_: object) -> None:
        connection.info["looks"] = 0

    return engine


def _refuse_foreign(connection: sqlite3.Connection, target: str) -> None:
    tables = {name: " ".join((sql or "").split()) for name, sql in connection.execute(_TABLES)}
    if not tables:
        raise errors.StoreError(_NO_HISTORY, path=target)
    record, made = schema.schema_migration.name, _made()
    for names in ((record,), tuple(made)):
        for name in names:
            if tables.get(name) != made[name]:
                raise errors.ForeignDatabaseError(
                    "{target}: its {name} is not the table that wslgpud makes; move the file away, or name another one",
                    target=target,
                    name=repr(name),
                )
        (version,) = connection.execute(f"SELECT max(version) FROM {record}").fetchone()
        if (version or 0) > schema.VERSION:
            return  # rejected later, as the file of a newer program


@cache
def _made() -> dict[str, str]:
    dialect = sqlite.dialect()
    made = {name: str(CreateTable(table).compile(dialect=dialect)) for name, table in schema.metadata.tables.items()}
    return {name: " ".join(sql.split()) for name, sql in made.items()}


def manual_transactions(engine: Engine, begin: str) -> None:
    """Let SQLAlchemy, not the driver, begin transactions: the driver commits before DDL and begins late."""
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))


def readable(text: bytes) -> str:
    """Return text of SQLite, damaged or not: by default one flipped bit makes the driver give up its whole query."""
    return text.decode(errors="replace")


def _writer_pragmas(connection: Any, _: object) -> None:
    connection.text_factory = readable
    if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
        # must come before the log and any table: otherwise it stays off for the life of the file
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    # SQLite does not report disk errors while it checkpoints its log by itself
    settings = ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 0", "journal_size_limit = 8388608")
    for setting in (*settings, f"cache_size = -{_CACHE_KIB}", "temp_store = MEMORY"):
        connection.execute(f"PRAGMA {setting}")


def run_outside(connection: Connection, script: str) -> None:
    """Run SQL of SQLite outside any transaction, to its end."""
    driver: Any = connection.connection.dbapi_connection
    # Python 3.11's ``execute`` steps a pragma once, so that ``incremental_vacuum`` frees a single page
    driver.executescript(script)


def page_counts(connection: Connection) -> tuple[int, int, int]:
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (int(connection.exec_driver_sql(f"PRAGMA {name}").scalar() or 0) for name in names)
    return pages, free, size


def version_of(connection: Connection, target: str) -> int:
    """Return the version of a database, 0 for an empty one; NewerSchemaError: written by a newer wslgpud."""
    if not inspect(connection).has_table(schema.schema_migration.name):
        return 0
    version = connection.scalar(select(func.max(schema.schema_migration.c.version))) or 0
    if version > schema.VERSION:
        raise errors.NewerSchemaError(
            "{target}: written by a newer wslgpud (schema {version}, this one knows "
            "{newest}); update wslgpud, or move the file away to start a new history",
            target=target,
            version=version,
            newest=schema.VERSION,
        )
    return version


def create(connection: Connection, target: str, views: Mapping[str, str] = schema.VIEWS) -> None:
    """Create the tables and views of an empty database within the caller's transaction, or raise NewerSchemaError."""
    if version_of(connection, target):
        return
    schema.metadata.create_all(connection)
    for name, query in views.items():
        connection.exec_driver_sql(f"CREATE VIEW {name} AS {query}")
    first = {"version": schema.VERSION, "name": "first tables", "applied_ms": int(time.time() * 1000)}
    connection.execute(schema.schema_migration.insert(), first)


def prepare(connection: Connection, path: Path, host_name: str) -> int:
    """Create missing parts of an opened file; return the id of its machine.

    Raises:
        NewerSchemaError: a newer wslgpud wrote it.
        ForeignDatabaseError: the file is another program's.
    """
    mark = connection.exec_driver_sql("PRAGMA application_id").scalar()
    if mark != APPLICATION_ID and connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first():
        raise errors.ForeignDatabaseError(
            "{name}: belongs to another program; name another file in store.path", name=str(path)
        )
    create(connection, str(path))
    host = schema.host
    number: int | None = connection.scalar(select(host.c.id).where(host.c.name == host_name))
    if number is None:
        # a file is of one machine, which was renamed
        number = connection.scalar(select(func.min(host.c.id)))
        connection.execute(update(host).where(host.c.id == number).values(name=host_name))
        connection.execute(delete(schema.learned))  # or this is a copy on other hardware
    return add_host(connection, host_name) if number is None else number


def add_host(connection: Connection, name: str) -> int:
    """Add a machine to a database; return its id."""
    number = connection.scalar(select(func.coalesce(func.max(schema.host.c.id) + 1, 0))) or 0
    # there are chunks where only the row of the host was lost
    sealed = connection.scalar(select(func.max(schema.chunk.c.id)).where(schema.of_host(schema.chunk, number)))
    row = {"id": number, "name": name, "sealed": sealed or schema.row_range(number)[0]}
    connection.execute(schema.host.insert(), row)
    return number


def last_row(connection: Connection, host: int) -> int:
    """Return the last id of a host's rows of any kind."""
    queries = (select(func.max(table.c.id)).where(schema.of_host(table, host)) for table in schema.NUMBERED)
    return max(schema.row_range(host)[0], *(connection.scalar(query) or 0 for query in queries))
