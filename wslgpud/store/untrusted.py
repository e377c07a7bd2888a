"""An SQLite file may come from anybody: what a reader believes of it.

See https://www.sqlite.org/security.html. A schema is a program: a view in place of a table can run for ever,
a generated column can make gigabytes. So only tables are read that are, letter by letter, those that our own
migrations make.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from wslgpud.store import engine as engines
from wslgpud.store import migrations, schema
from wslgpud.store.errors import ForeignDatabaseError
from wslgpud.store.limits import MOST_ROW_BYTES

#: steps of SQLite's virtual machine that one statement may take: a minute, about; ours take up to a hundredth
MOST_STEPS = 3_000_000_000
_STEPS_A_LOOK = 1_000_000
_CACHE_KIB = 512

_OURS = ", ".join(f"'{name}'" for name in schema.metadata.tables)
_TABLES = f"SELECT name, sql FROM sqlite_master WHERE name IN ({_OURS})"  # noqa: S608 - our own names


def reader_engine(target: str) -> Engine:
    """Return an engine that believes nothing of a file, runs no code of it and does not write; else StoreError."""
    engine = engines.reader_engine(target)
    if engines.sqlite_path(target) is None:
        return engine

    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, record: Any) -> None:
        # ten may read at once, each page once: SQLite would remember 20 MB of them
        pragmas = (f"cache_size = -{_CACHE_KIB}", "trusted_schema = OFF", "query_only = ON")
        for pragma in (*pragmas, "cell_size_check = ON", "mmap_size = 0"):
            connection.execute(f"PRAGMA {pragma}")
        if sys.version_info >= (3, 11):
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_ROW_BYTES)

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
    if not found:
        return  # the daemon is about to make them
    record, made = schema.schema_migration.name, _made()
    _compare(found, {record: made[record]}, target)
    (version,) = connection.execute(f"SELECT max(version) FROM {record}").fetchone()  # noqa: S608 - our own name
    if (version or 0) <= migrations.newest():  # what is newer is told apart, and refused, later
        _compare(found, made, target)


def _compare(found: Mapping[str, str], made: Mapping[str, str], target: str) -> None:
    for name, sql in made.items():
        if found.get(name) != sql:
            raise ForeignDatabaseError(
                "{target}: its {name} is not the table that wslgpud makes; move the file away, or name another one",
                target=str(target),
                name=repr(name),
            )


@cache
def _made() -> dict[str, str]:
    dialect = sqlite.dialect()
    made = {name: str(CreateTable(table).compile(dialect=dialect)) for name, table in schema.metadata.tables.items()}
    return {name: " ".join(sql.split()) for name, sql in made.items()}
