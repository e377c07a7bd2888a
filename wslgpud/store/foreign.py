"""An SQLite file may come from anybody: what a reader believes of it.

See https://www.sqlite.org/security.html. A schema is a program: a view in place of a table can run for ever,
a generated column can make gigabytes. So only tables are read that are, letter by letter, those that our own
migrations make.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from typing import Any

from sqlalchemy import Connection, Engine, event

from wslgpud.store import engine as engines
from wslgpud.store import migrations, schema
from wslgpud.store.errors import ForeignDatabaseError
from wslgpud.store.limits import MOST_ROW_BYTES
from wslgpud.words import say

#: steps of SQLite's virtual machine that one statement may take: a minute, about; ours take up to a hundredth
MOST_STEPS = 3_000_000_000
_STEPS_A_LOOK = 1_000_000
_CACHE_KIB = 512

_OURS = ", ".join(f"'{name}'" for name in (*schema.metadata.tables, "minute_of_part"))
_TABLES = f"SELECT name, sql FROM sqlite_master WHERE name IN ({_OURS})"  # noqa: S608 - our own names


class _Budget:
    """Counts what a statement takes, and ends it when that is too much."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> int:
        self.looks += 1
        return self.looks > MOST_STEPS // _STEPS_A_LOOK


def reader_engine(target: str) -> Engine:
    """Return an engine that reads a database and believes nothing of its schema.

    Raises:
        StoreError: there is no such database.
    """
    engine = engines.reader_engine(target)
    if engines.sqlite_path(target) is not None:
        _distrust(engine, target)
    return engine


def _distrust(engine: Engine, target: str) -> None:
    """Let no file that is opened by ``engine`` run code, write, or take memory and time without end."""

    def connected(connection: sqlite3.Connection, record: Any) -> None:
        # ten may read at once, each page once: SQLite would remember 20 MB of them
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON", "mmap_size = 0"):
            connection.execute(f"PRAGMA {pragma}")
        if sys.version_info >= (3, 11):
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_ROW_BYTES)
        record.info["budget"] = budget = _Budget()
        connection.set_progress_handler(budget, _STEPS_A_LOOK)
        _refuse_foreign(connection, target)

    def begins(connection: Connection, *_: object) -> None:
        connection.info["budget"].looks = 0

    event.listen(engine, "connect", connected)
    event.listen(engine, "before_cursor_execute", begins)


def _refuse_foreign(connection: sqlite3.Connection, target: str) -> None:
    found = {name: _plain(sql) for name, sql in connection.execute(_TABLES)}
    record = schema.schema_migration.name
    version = 0
    if record in found:
        _compare(found, {record: _made(1)[record]}, target)
        (version,) = connection.execute(f"SELECT max(version) FROM {record}").fetchone()  # noqa: S608
    if (version or 0) <= migrations.MIGRATIONS[-1].version:  # what is newer is told apart, and refused, later
        _compare(found, _made(version or 0), target)


def _compare(found: Mapping[str, str], made: Mapping[str, str], target: str) -> None:
    for name, sql in made.items():
        if found.get(name) != sql:
            raise ForeignDatabaseError(
                say(
                    "{target}: its {name} is not the table that wslgpud makes; move the file away, "
                    "or name another one",
                    target=str(target),
                    name=repr(name),
                )
            )


@cache
def _made(version: int) -> dict[str, str]:
    """Return the tables of a version, by name."""
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in migrations.statements("sqlite", version):
            database.execute(statement)
        return {name: _plain(sql) for name, sql in database.execute(_TABLES)}


def _plain(sql: str | None) -> str:
    return " ".join((sql or "").split())
