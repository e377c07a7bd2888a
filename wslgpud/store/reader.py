"""Reading history, from this process or another, while the daemon writes.

A file may come from anybody, so a reader believes little of it, see https://www.sqlite.org/security.html. A schema
is a program: a view in place of a table can run for ever, a generated column can make gigabytes. So only tables are
read that are, letter by letter, those that ``database`` makes.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, final
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable

from wslgpud.store import database, schema
from wslgpud.store import engine as engines
from wslgpud.store.errors import ForeignDatabaseError, explained
from wslgpud.store.history import History

#: steps of SQLite's virtual machine that one statement may take: a minute, about; ours take up to a hundredth
MOST_STEPS = 3_000_000_000
_STEPS_A_LOOK = 1_000_000
_CACHE_KIB = 512

_OURS = ", ".join(f"'{name}'" for name in schema.metadata.tables)
_TABLES = f"SELECT name, sql FROM sqlite_master WHERE name IN ({_OURS})"  # noqa: S608 - our own names


@final
class Reader(History, AbstractContextManager["Reader"]):
    """Connections that only read; usable from several threads."""

    def __init__(self, target: str, host: str = "") -> None:
        """Look into the database at ``target`` (a path or a URL).

        With ``host`` of what has no series (processes, events, incidents, stress runs) only that machine's:
        many may write into one database, and their pids and resources have the same names.

        Raises:
            StoreError: there is none, a newer wslgpud wrote it, or it cannot be read.
        """
        self._target, self.host = target, host
        #: the file, None for a database server
        self.path = engines.sqlite_path(target)
        #: device and inode of the file that is open
        self.identity: tuple[int, int] | None = None
        self._engine = _reader_engine(target)
        try:
            with self.connected() as connection:
                self.version = database.version_of(connection, engines.shown(target))
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the connections go."""
        self._engine.dispose()

    def check(self) -> list[str]:
        """Look through the whole file; return what is wrong with it, empty when nothing is."""
        if self.path is None:
            return []
        self._follow()
        try:
            with self._engine.begin() as connection:
                rows = connection.exec_driver_sql("PRAGMA quick_check(10)").scalars().all()
        except DBAPIError as error:
            return [str(error.orig)]
        return [row for row in rows if row != "ok"]

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """See History."""
        self._follow()
        with explained(self._target), self._engine.begin() as connection:
            yield connection

    def _follow(self) -> None:
        if self.path is None:
            return
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return
        if (found.st_dev, found.st_ino) != self.identity:
            if self.identity is not None:
                self._engine.dispose()
                self._engine = _reader_engine(self._target)
            self.identity = (found.st_dev, found.st_ino)


def _reader_engine(target: str) -> Engine:
    """Return an engine that trusts no file, runs no code of it, neither writes nor waits; StoreError: there is none."""
    path = engines.sqlite_path(target)
    if path is None:
        # each statement would see its own moment: what is sealed between two of them would be in neither
        return engines.server_engine(
            target, pool_pre_ping=True, pool_size=2, max_overflow=8, isolation_level="REPEATABLE READ"
        )
    # A file of another user whose writer has left cleanly has no log beside it, and SQLite may not make
    # one in that folder; it is then at rest and can be read as it is.
    at_rest = not os.access(engines.existing_file(path).parent, os.W_OK) and not engines.log_path(path).exists()
    address = f"file:{quote(os.fspath(path.absolute()))}?{'immutable=1' if at_rest else 'mode=ro'}&uri=true"
    timeout = {"timeout": engines.BUSY_SECONDS}
    engine = create_engine(f"sqlite:///{address}", connect_args=timeout, pool_size=2, max_overflow=8)
    engines.manual_transactions(engine, "BEGIN")

    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, record: Any) -> None:
        # ten may read at once, each page once: SQLite would remember 20 MB of them
        pragmas = (f"cache_size = -{_CACHE_KIB}", "trusted_schema = OFF", "query_only = ON")
        for pragma in (*pragmas, "cell_size_check = ON", "mmap_size = 0"):
            connection.execute(f"PRAGMA {pragma}")
        if sys.version_info >= (3, 11):
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, schema.MOST_ROW_BYTES)

        def looked() -> bool:
            record.info["looks"] += 1
            return bool(record.info["looks"] > MOST_STEPS // _STEPS_A_LOOK)

        record.info["looks"] = 0
        connection.set_progress_handler(looked, _STEPS_A_LOOK)
        _refuse_foreign(connection, target)

    @event.listens_for(engine, "before_cursor_execute")
    def begins(connection: Connection, *_: object) -> None:
        connection.info["looks"] = 0

    return engine


def _refuse_foreign(connection: sqlite3.Connection, target: str) -> None:
    found = {name: " ".join((sql or "").split()) for name, sql in connection.execute(_TABLES)}
    record, made = schema.schema_migration.name, _made()
    for names in ((record,), tuple(made)) if found else ():  # else the daemon is about to make them
        for name in names:
            if found.get(name) != made[name]:
                raise ForeignDatabaseError(
                    "{target}: its {name} is not the table that wslgpud makes; move the file away, or name another one",
                    target=target,
                    name=repr(name),
                )
        (version,) = connection.execute(f"SELECT max(version) FROM {record}").fetchone()  # noqa: S608 - our own name
        if (version or 0) > schema.VERSION:
            return  # refused later, as the file of a newer program


@cache
def _made() -> dict[str, str]:
    dialect = sqlite.dialect()
    made = {name: str(CreateTable(table).compile(dialect=dialect)) for name, table in schema.metadata.tables.items()}
    return {name: " ".join(sql.split()) for name, sql in made.items()}
